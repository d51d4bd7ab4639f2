"""Records → the sections of a report, and what the page says about the records themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from halrp.lab.records.aggregate import Row, Undefined
from halrp.lab.records.schema import Problem, Record, Run
from halrp.lab.report import figures_ablation, figures_accuracy, figures_size, figures_time, paper
from halrp.lab.report.comparison import comparison
from halrp.lab.report.grouped import BACKBONES, Grouped, Place, stream_title
from halrp.lab.report.page import LeftOut, MadeFrom, Section
from halrp.lab.report.relations import all_relations
from halrp.lab.report.table import Column, Table, Value

FACTS = {"halrp": "halrp", "commit": "commit", "torch": "torch", "python": "Python", "machine": "machine"}
"""What of a record's environment the page shows, and its title there."""
LISTED = 6
"""How many values of such a fact are listed."""

RUN_COLUMNS = (
    Column("method", "method", filters=True),
    Column("stream", "stream", filters=True),
    Column("backbone", "backbone", filters=True),
    Column("network", "network", about="settings of the backbone"),
    Column("fraction", "data %", about="share of the training and validation data", filters=True),
    Column("tasks", "tasks", about="how many tasks were learned"),
    Column("epochs", "epochs", about="epochs of each task"),
    Column("order", "order", about="the order of the tasks", filters=True),
    Column("seed", "seed", filters=True),
    Column("accuracy", "accuracy", 2, about="mean over tasks of the accuracy after the last task, in %"),
    Column(
        "bwt", "BWT", 2, True, "backward transfer: what the accuracy of a task changed after it was learned, in points"
    ),
    Column("growth_bytes", "growth, bytes %", 1, about="stored bytes beyond those of one single-task model"),
    Column(
        "growth_parameters", "growth, parameters %", 1, about="stored numbers beyond those of one single-task model"
    ),
    Column("growth_counted", "growth, counted %", 1, about="the same, counted as the paper counts"),
    Column("later_bytes", "bytes per later task", 0, about="what each task after the first adds"),
    Column("seconds", "seconds", 1, about="time of all tasks, on whatever machine it was"),
    Column("peak_bytes", "peak MB", 0, about="the highest memory of the process while it learned, in 10⁶ bytes"),
    Column("settings", "settings", about="those of the method that are not its defaults"),
    Column("recipe", "recipe", about="those of training that are not its defaults"),
    Column("missing", "why a value is missing"),
)
PERCENT = ("fraction", "growth_bytes", "growth_parameters", "growth_counted")
"""Columns that are shares in rows of runs, and told in % on the page."""


def build(records: Iterable[Record]) -> tuple[Section, ...]:
    """The sections of a report; one without parts is left out."""
    records = list(records)
    grouped = Grouped.of(records)
    sections = (
        Section("places", "What was run", parts=(places(grouped),)),
        Section("paper", "Beside the paper", parts=beside_paper(records)),
        Section("accuracy", "Accuracy", parts=figures_accuracy.figures(grouped)),
        Section("size", "Size", parts=figures_size.figures(grouped)),
        Section("time", "Time and memory", parts=figures_time.figures(grouped)),
        Section("settings", "Settings", parts=figures_ablation.figures(grouped)),
        Section("runs", "All runs", parts=(all_runs(grouped),)),
    )
    return tuple(section for section in sections if section.parts)


def beside_paper(records: Sequence[Record]) -> tuple[Table, ...]:
    """What the paper prints beside ours, and which of its orderings of methods hold where something was run."""
    here = {paper.place_of(run.stream, run.backbone, run.fraction) for run in map(Run.of, records)}
    if here.isdisjoint(paper.places()):
        return ()  # other benchmarks than the paper's: there is nothing to stand beside
    found = (*map(_run_first, comparison(records)), all_relations(records, here))
    return tuple(table for table in found if table.rows)


def _run_first(table: Table) -> Table:
    """A table beside the paper with methods in its first column, and places where nothing was run at its end."""
    if not table.rows:
        return table
    columns = sorted(table.columns, key=lambda column: column.key != "method")
    here = {(row["benchmark"], row["backbone"], row["data"]) for row in table.rows if row["runs"] is not None}
    marked = zip(table.rows, table.marks or [""] * len(table.rows), strict=True)
    ordered = sorted(marked, key=lambda one: (one[0]["benchmark"], one[0]["backbone"], one[0]["data"]) not in here)
    rows, marks = zip(*ordered, strict=True)
    return replace(table, columns=tuple(columns), rows=rows, marks=marks)


def places(grouped: Grouped) -> Table:
    """One row for each place: what was run there, and how often."""
    columns = (
        Column("stream", "benchmark"),
        Column("backbone", "backbone"),
        Column("network", "network", about="settings of the backbone"),
        Column("fraction", "data %", about="share of the training and validation data"),
        Column("tasks", "tasks", about="how many tasks were learned"),
        Column("epochs", "epochs", about="epochs of each task"),
        Column("methods", "methods"),
        Column("settings", "methods and settings", about="how many different ones"),
        Column("orders", "orders", about="how many orders of the tasks"),
        Column("seeds", "seeds", about="how many seeds"),
        Column("runs", "runs"),
    )
    rows = tuple(map(_place, grouped.places))
    about = "One row for each combination of benchmark, network, share of the data, number of tasks and epochs."
    return Table("places", "Benchmarks and runs", about, _with_values(columns, rows, ("network",)), rows)


def _place(place: Place) -> dict[str, Value]:
    runs = [one.run for group in place.groups for one in group.runs]
    row = place.groups[0].row
    return {
        "stream": stream_title(place.run.stream),
        "backbone": BACKBONES.get(place.run.backbone, place.run.backbone),
        "network": _value(row, "network") or None,
        "fraction": _value(row, "fraction"),
        "tasks": place.run.tasks,
        "epochs": place.run.epochs,
        "methods": len({run.method for run in runs}),
        "settings": len(place.distinct),
        "orders": len({run.order for run in runs}),
        "seeds": len({run.seed for run in runs}),
        "runs": len(runs),
    }


def all_runs(grouped: Grouped) -> Table:
    """One row for each run, as `halrp.lab.records.aggregate.runs_table` has it."""
    rows = tuple(_run(one.row) for _, _, one in grouped.each())
    columns = _with_values(RUN_COLUMNS, rows, ("network", "settings", "recipe", "missing"))
    about = "One row for each record, with what was measured on it. A value that a record does not tell is empty."
    return Table("runs", "Runs", about, columns, rows)


def _run(row: Row) -> dict[str, Value]:
    reasons: dict[str, list[str]] = {}
    titles = {column.key: column.title for column in RUN_COLUMNS}
    for name, value in row.items():
        if isinstance(value, Undefined):
            reasons.setdefault(value.reason, []).append(titles.get(name, name))
    missing = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    found: dict[str, Value] = {column.key: _value(row, column.key) for column in RUN_COLUMNS if column.key in row}
    if isinstance(peak := found["peak_bytes"], (int, float)):
        found["peak_bytes"] = peak / 1e6
    return found | {"missing": missing or None}


def _value(row: Row, name: str) -> Value:
    """A value of a row of `records.aggregate` for a table: shares in %, None for what is undefined or empty."""
    value = row[name]
    if isinstance(value, Undefined) or value == "":
        return None
    if name in PERCENT:
        share = round(100 * float(value), 9)
        return int(share) if share.is_integer() else share
    return value


def _with_values(
    columns: Iterable[Column], rows: Sequence[dict[str, Value]], optional: Iterable[str]
) -> tuple[Column, ...]:
    """The columns without those of the optional ones that are empty in every row."""
    empty = {key for key in optional if all(row[key] is None for row in rows)}
    return tuple(column for column in columns if column.key not in empty)


# ---- about the records --------------------------------------------------------------------------------------------


def made_from(records: Sequence[Record], paths: Iterable[Path]) -> MadeFrom:
    """What the page says it was made from: names of folders, not where they are."""
    facts = []
    for key, title in FACTS.items():
        values = Counter(str((record.get("environment") or {}).get(key) or "unknown") for record in records)
        if set(values) == {"unknown"}:
            continue
        # The most frequent first, and equal ones by name, so that the order of files does not matter.
        told = sorted(values.items(), key=lambda one: (-one[1], one[0]))
        some = [value if len(told) == 1 else f"{value} ({count})" for value, count in told[:LISTED]]
        more = [f"and {len(told) - LISTED} more"] if len(told) > LISTED else []
        facts.append((title if len(told) == 1 else f"{title} (records)", ", ".join(some + more)))
    return MadeFrom(len(records), tuple(dict.fromkeys(_name(path) for path in paths)), tuple(facts))


def left_out(problems: Iterable[Problem], paths: Iterable[Path]) -> tuple[LeftOut, ...]:
    """The files that were not used; their folders are named as they were given, without what is above them."""
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
