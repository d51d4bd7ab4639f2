"""Records → the sections of a report, and what the page states about the records themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from halrp.lab.records import frames
from halrp.lab.records.frames import Frame
from halrp.lab.records.loading import Problem
from halrp.lab.records.schema import Record
from halrp.lab.report import answer, figures_ablation, figures_accuracy, figures_size, figures_time, paper
from halrp.lab.report.comparison import comparison
from halrp.lab.report.page import LeftOut, MadeFrom, Section
from halrp.lab.report.pairing import percent
from halrp.lab.report.relations import relations
from halrp.lab.report.study import Study, backbone_title, stream_title
from halrp.lab.report.table import Column, Table, Value

FACTS = {"halrp": "halrp", "commit": "commit", "torch": "torch", "python": "Python", "machine": "machine"}
"""Entries of a record's environment that the page shows, and their titles there."""
LISTED = 6
"""The number of values of such an entry that are listed."""

RUN_COLUMNS = (
    Column("method", "method", filters=True),
    Column("stream", "stream", filters=True),
    Column("backbone", "backbone", filters=True),
    Column("network", "network", about="settings of the backbone"),
    Column("fraction", "data %", about="share of the training and validation data", filters=True),
    Column("tasks", "tasks", about="number of tasks that were learned"),
    Column("epochs", "epochs", about="epochs of each task"),
    Column("order", "order", about="the order of the tasks", filters=True),
    Column("seed", "seed", filters=True),
    Column("accuracy", "accuracy", 2, about="mean over tasks of the accuracy after the last task, in %"),
    Column("bwt", "BWT", 2, True, "backward transfer: the change of a task's accuracy after it was learned, in pp"),
    Column("growth_bytes", "growth, bytes %", 1, about="stored bytes beyond those of one single-task model"),
    Column(
        "growth_parameters", "growth, parameters %", 1, about="stored numbers beyond those of one single-task model"
    ),
    Column("growth_counted", "growth, counted %", 1, about="the same, counted as the paper counts"),
    Column("later_bytes", "bytes per later task", 0, about="what each task after the first adds"),
    Column("seconds", "seconds", 1, about="time of all tasks, on the machine of the run"),
    Column("peak_bytes", "peak MB", 0, about="the highest memory of the process while it learned, in 10⁶ bytes"),
    Column("settings", "settings", about="those of the method that are not its defaults"),
    Column("recipe", "recipe", about="those of training that are not its defaults"),
    Column("missing", "missing values"),
)
PERCENT = ("fraction", "growth_bytes", "growth_parameters", "growth_counted")
"""Columns that are shares in frames, and shown in %."""


def build(records: Iterable[Record]) -> tuple[Section, ...]:
    """The sections of a report; one without parts is left out."""
    study = Study.of(records)
    sections = (
        Section("answer", "Which method, how large, how sure", parts=answer.tables(study)),
        Section("setups", "What was run", parts=(setups(study),)),
        Section("paper", "Beside the paper", parts=beside_paper(study.groups)),
        Section("accuracy", "Accuracy", parts=figures_accuracy.figures(study)),
        Section("size", "Size", parts=figures_size.figures(study)),
        Section("time", "Time and memory", parts=figures_time.figures(study)),
        Section("settings", "Settings", parts=figures_ablation.figures(study)),
        Section("runs", "All runs", parts=(all_runs(study.runs),)),
    )
    return tuple(section for section in sections if section.parts)


def beside_paper(groups: Frame) -> tuple[Table, ...]:
    """The paper's results beside ours, and which of its orderings of methods hold on the benchmarks that were run."""
    here = {paper.benchmark_of(*key) for key in zip(*(groups[n] for n in paper.Benchmark._fields), strict=True)}
    if here.isdisjoint(paper.benchmarks()):
        return ()  # other benchmarks than the paper's: there is nothing to compare with
    tables = (*map(_run_first, comparison(groups)), relations(groups, here))
    return tuple(table for table in tables if table.rows)


def _run_first(table: Table) -> Table:
    """A comparison with methods in its first column, and benchmarks that were not run at its end."""
    if not table.rows:
        return table
    columns = sorted(table.columns, key=lambda column: column.key != "method")
    here = {(row["benchmark"], row["backbone"], row["data"]) for row in table.rows if row["runs"] is not None}
    marked = zip(table.rows, table.marks or [""] * len(table.rows), strict=True)
    ordered = sorted(marked, key=lambda pair: (pair[0]["benchmark"], pair[0]["backbone"], pair[0]["data"]) not in here)
    rows, marks = zip(*ordered, strict=True)
    return replace(table, columns=tuple(columns), rows=rows, marks=marks)


def setups(study: Study) -> Table:
    """One row for each experimental setup: what was run there, and how often."""
    columns = (
        Column("stream", "benchmark"),
        Column("backbone", "backbone"),
        Column("network", "network", about="settings of the backbone"),
        Column("fraction", "data %", about="share of the training and validation data"),
        Column("tasks", "tasks", about="number of tasks that were learned"),
        Column("epochs", "epochs", about="epochs of each task"),
        Column("methods", "methods"),
        Column("settings", "methods and settings", about="number of different ones"),
        Column("orders", "orders", about="number of orders of the tasks"),
        Column("seeds", "seeds", about="number of seeds"),
        Column("runs", "runs"),
    )
    rows = []
    for groups in study.setups.values():
        runs, setup = study.runs[study.runs["group"].isin(groups.index)], groups["record"].iloc[0].setup
        rows.append(
            setup._asdict()
            | {"stream": stream_title(setup.stream), "backbone": backbone_title(setup.backbone)}
            | {"fraction": percent(setup.fraction), "network": setup.network or None}
            | {"methods": runs["method"].nunique(), "settings": int(groups["distinct"].sum())}
            | {"orders": runs["order"].nunique(), "seeds": runs["seed"].nunique(), "runs": len(runs)}
        )
    about = "One row for each combination of benchmark, network, share of the data, number of tasks and epochs."
    return Table("setups", "Benchmarks and runs", about, _with_values(columns, rows, ("network",)), tuple(rows))


def all_runs(runs: Frame) -> Table:
    """One row for each run."""
    labels = (record.label for record in runs["record"])
    rows = tuple(_run(row | {"method": label}) for row, label in zip(frames.plain(runs), labels, strict=True))
    columns = _with_values(RUN_COLUMNS, rows, ("network", "settings", "recipe", "missing"))
    about = "One row for each record, with its metrics. A value that a record lacks is empty."
    return Table("runs", "Runs", about, columns, rows)


def _run(row: dict[str, Any]) -> dict[str, Value]:
    """A row of `frames.runs` for a table: shares in %, memory in MB, the reasons of missing values as text."""
    titles = {column.key: column.title for column in RUN_COLUMNS}
    undefined = {titles[key]: reason for key, reason in row["undefined"].items() if key in titles}
    values: dict[str, Any] = {
        column.key: None if row[column.key] == "" else row[column.key] for column in RUN_COLUMNS[:-1]
    }
    shares = {key: percent(values[key]) for key in PERCENT if values[key] is not None}
    peak = None if row["peak_bytes"] is None else row["peak_bytes"] / 1e6
    return values | shares | {"peak_bytes": peak, "missing": frames.reasons(undefined) or None}


def _with_values(
    columns: Iterable[Column], rows: Sequence[Mapping[str, Value]], optional: Iterable[str]
) -> tuple[Column, ...]:
    """The columns without those of the optional ones that are empty in every row."""
    empty = {key for key in optional if all(row[key] is None for row in rows)}
    return tuple(column for column in columns if column.key not in empty)


# ---- about the records --------------------------------------------------------------------------------------------


def made_from(records: Sequence[Record], paths: Iterable[Path]) -> MadeFrom:
    """What the page is made from: names of folders, not their paths."""
    facts = []
    for key, title in FACTS.items():
        values = Counter(str(record.environment.get(key) or "unknown") for record in records)
        if set(values) == {"unknown"}:
            continue
        # The most frequent first, and equal ones by name, so that the order of files does not matter.
        counted = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        some = [value if len(counted) == 1 else f"{value} ({count})" for value, count in counted[:LISTED]]
        more = [f"and {len(counted) - LISTED} more"] if len(counted) > LISTED else []
        facts.append((title if len(counted) == 1 else f"{title} (records)", ", ".join(some + more)))
    return MadeFrom(len(records), tuple(dict.fromkeys(_name(path) for path in paths)), tuple(facts))


def left_out(problems: Iterable[Problem], paths: Iterable[Path]) -> tuple[LeftOut, ...]:
    """The files that were not used; their folders are named without the path above them."""
    given = sorted(paths, key=lambda path: len(path.parts), reverse=True)
    return tuple(
        LeftOut(_shown(str(problem.path), given), problem.kind, _shown(problem.reason, given)) for problem in problems
    )


def _name(path: Path) -> str:
    return path.resolve().name or path.anchor


def _shown(text: str, given: Iterable[Path]) -> str:
    for path in given:
        if path.is_absolute() or ".." in path.parts:
            text = text.replace(str(path), _name(path))
    return text
