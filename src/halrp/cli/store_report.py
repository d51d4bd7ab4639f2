"""`halrp report STORE`: what a store holds, as a table on the screen and as a page."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halrp.terminal import echo, print_prose, print_table

if TYPE_CHECKING:
    from halrp.lab.report.page import Section
    from halrp.lab.report.table import Column, Table
    from halrp.report import Report, TaskReport

COLOURS = {"bitwise": "green", "to rounding": "green", "may have changed": "yellow", "damaged": "red"}
HALVES = ("base-*.safetensors", "layout-*.json", "tasks/*.safetensors")
"""Files by which a store is recognised that has lost its manifest."""


def is_store(path: Path) -> bool:
    """Whether a path is a store, or was one before its manifest was lost."""
    return path.is_dir() and ((path / "manifest.json").exists() or any(any(path.glob(half)) for half in HALVES))


def read(folder: Path, key: Path | None, model: str | None, options: Mapping[str, Any]) -> Report:
    """What a store holds; with a model, its tasks are loaded and compute the outputs that their files prove.

    `options` are what else `Learner.load` needs of the model.
    """
    from halrp.errors import DamagedTaskWarning
    from halrp.report import of_store
    from halrp.store.store import Store

    report = of_store(Store(folder, verify_key=key))
    if model is None or not report.tasks or len(report.problems) == len(report.tasks):
        return report
    from halrp.learner import Learner
    from halrp.tools.importing import build_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedTaskWarning)  # the report names them
        loaded = Learner.load(folder, build_model(model), verify_key=key, skip_damaged=True, **options)
    return loaded.report()


def show(report: Report) -> None:
    """Print the table, and below it what was compared."""
    if report.tasks:
        print_table(report.table, COLOURS)
        echo()
    for line in report.remarks():
        print_prose(line, style="")


# ---- the page -----------------------------------------------------------------------------------------------------


def page_of(report: Report, folder: Path, title: str) -> str:
    """The page: tasks, ranks, where the bytes go, and how tasks were learned."""
    from halrp.lab.report.page import MadeOf, page
    from halrp.tools.listing import listing

    content = listing(folder)
    facts = {
        "retained": report.verdict.removeprefix("Retained ").rstrip(".") if report.tasks else "no tasks",
        "base": f"{report.base_bytes:,} bytes, fingerprint {content['fingerprint'][:12]}…",
        "with all tasks": f"{report.bytes:,} bytes",
        "as separate networks": f"{report.separate_bytes:,} bytes",
        "written by": f"halrp {content['version']}, generation {content['generation']}",
    }
    lead = f"What the store `{folder.resolve().name or folder}` holds, and whether its tasks are what was committed."
    return page(title, [*_sections(report)], None, MadeOf(lead, tuple(facts.items())))


def _sections(report: Report) -> Iterator[Section]:
    from halrp.lab.report.page import Section

    if report.tasks:
        yield Section("tasks", "Tasks", report.verdict, parts=(_tasks(report), _checks(report)))
        yield Section("inside", "What tasks store", parts=(_bytes(report), *_ranks(report)))
        yield Section("learned", "How tasks were learned", parts=(_learned(report),))


def _tasks(report: Report) -> Table:
    from halrp.lab.report.table import Column

    columns = (
        Column("task", "task"),
        Column("bytes", "bytes", about="of its file"),
        Column("ranks", "sum of ranks", about="over the weights that it has components for"),
        Column("weights", "weights", about="those that have components"),
        Column("dense", "dense", about="weights that are stored in full"),
        Column("start", "start %", 1, about="score on validation data before training, where that is a solution"),
        Column("score", "score %", 1, about="score on validation data when the task was committed"),
        Column("retained", "retained", about="whether it is what was committed", filters=True),
        Column("outputs", "outputs", about="those of its proof, computed again", filters=True),
        Column("problem", "problem"),
    )
    rows = [_task(task.to_json()) for task in report.tasks]
    about = "A row for each task, in the order of learning."
    return _table("tasks", "Every task", about, columns, rows, {"start", "score", "dense", "outputs", "problem"})


def _task(facts: Mapping[str, Any]) -> dict[str, Any]:
    retained = facts["retained"]
    return {
        "task": facts["name"],
        "bytes": facts["bytes"],
        "ranks": sum(facts["ranks"].values()),
        "weights": len(facts["ranks"]),
        "dense": len(facts["dense"]) or None,
        "start": _percent(facts["start_score"]),
        "score": _percent(facts["score"]),
        "retained": retained["state"],
        "outputs": retained["outputs"],
        "problem": retained["problem"],
    }


def _percent(score: float | None) -> float | None:
    return None if score is None else 100 * score


def _checks(report: Report) -> Table:
    """What the verdict rests on."""
    from halrp.lab.report.table import Column

    columns = (Column("kind", "compared"), Column("tasks", "tasks"), Column("result", "result"))
    about = "What the verdict rests on. Nothing is claimed that is not here."
    return _table("checks", "What was compared", about, columns, [check._asdict() for check in report.checks], set())


def _bytes(report: Report) -> Table:
    """Where the bytes of each task's file go."""
    from halrp.lab.report.table import Column
    from halrp.tools import file_parts

    columns = (Column("task", "task"), *(Column(group, group) for group in file_parts.GROUPS))
    rows = [
        {"task": task.name} | {group: part.bytes for group, part in file_parts.groups(task.delta).items()}
        for task in report.tasks
        if task.delta is not None
    ]
    about = "Bytes of a task's file by what they are for. The header holds names, settings, ranks and codes."
    return _table("bytes", "Where the bytes go", about, columns, rows, set(file_parts.GROUPS))


def _ranks(report: Report) -> Iterator[Table]:
    """The ranks of each weight, if there are any."""
    from halrp.lab.report.table import Column

    columns = (
        Column("task", "task", filters=True),
        Column("weight", "weight", filters=True),
        Column("rank", "rank", about="number of components; empty for a weight that is stored in full"),
        Column("recovered", "loss recovered %", 1, about="share of the predicted loss that its components recover"),
    )
    rows = [
        {"task": task.name, "weight": weight, "rank": rank, "recovered": _recovered(task, weight)}
        for task in report.tasks
        for weight, rank in (*task.ranks.items(), *((weight, None) for weight in task.dense))
    ]
    if rows:
        about = "A row for each weight that a task has components for, or stores in full."
        yield _table("ranks", "Ranks", about, columns, rows, {"recovered"})


def _recovered(task: TaskReport, weight: str) -> float | None:
    layer = None if task.delta is None else task.delta.recovered.get(weight)
    return None if layer is None or not layer.predicted > 0 else 100 * layer.share


def _learned(report: Report) -> Table:
    """What provenance says of each task."""
    from halrp.lab.report.table import Column

    columns = (
        Column("task", "task"),
        Column("kind", "kind", about="the objective of the task", filters=True),
        Column("classes", "outputs", about="the width of its head"),
        Column("guess", "guess %", 1, about="score of the best constant answer on validation data"),
        Column("version", "halrp", filters=True),
        Column("seed", "seed"),
        Column("allocate", "allocation"),
        Column("epochs", "epochs"),
        Column("batch", "batch"),
        Column("lr", "learning rate"),
        Column("precision", "forward passes", about="the precision of its forward passes, if it is not the model's"),
    )
    rows = [
        _provenance(task.delta.provenance) | _kind(task) | {"task": task.name, "precision": task.delta.autocast}
        for task in report.tasks
        if task.delta is not None
    ]
    about = "Settings that each task's file holds; `halrp inspect --json` shows all of them."
    optional = {column.key for column in columns} - {"task", "kind", "version"}
    return _table("learned", "Settings", about, columns, rows, optional)


def _kind(task: TaskReport) -> dict[str, Any]:
    facts = task.to_json()
    return {"kind": facts["objective"]["name"], "classes": facts["classes"], "guess": _percent(facts["guess_score"])}


def _provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    method, recipe = (provenance.get(name) for name in ("method", "recipe"))
    allocate = method.get("allocate") if isinstance(method, Mapping) else None
    shown = allocate if isinstance(allocate, Mapping) else {}
    settings = ", ".join(f"{name}={value}" for name, value in shown.items() if name != "type" and value is not None)
    recipe = recipe if isinstance(recipe, Mapping) else {}
    return {
        "version": str(provenance.get("halrp") or "unknown"),
        "seed": _plain(provenance.get("seed")),
        "allocate": f"{shown.get('type', '')} {settings}".strip() or None,
        **{name: _plain(recipe.get(name)) for name in ("epochs", "batch", "lr")},
    }


def _plain(value: Any) -> str | int | float | None:
    """What a cell can hold of a value from a file."""
    return value if isinstance(value, (str, int, float)) or value is None else str(value)


def _table(
    key: str, title: str, about: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], optional: set[str]
) -> Table:
    """A table without those optional columns that are empty in every row."""
    from halrp.lab.report.table import Table

    empty = {name for name in optional if all(row.get(name) is None for row in rows)}
    return Table(key, title, about, tuple(column for column in columns if column.key not in empty), tuple(rows))
