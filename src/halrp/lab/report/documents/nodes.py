"""Tables of what a node holds, computed from the records of `benchmarks.scale` and `benchmarks.serve_store`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halrp.lab.report.documents.cells import grouped_digits, markdown
from halrp.lab.report.table import Column

BATCH = 64
"""Rows of the batches that `benchmarks.serve_store` times."""
MEMORY = {"256 MB": 256 << 20, "1 GB": 1 << 30, "4 GB": 4 << 30, "16 GB": 16 << 30}
OTHER_SIZES = (20_000, 50_000, 500_000)
"""Bytes of task files for which the table is computed, beside the measured one."""
SHARES = (0.0, 0.01, 0.1, 1.0)
"""Of rows whose task is read first."""


def held_table(path: Path) -> str:
    """How many tasks fit into an amount of memory, by the size of their files."""
    rows = _record(path)["rows"]
    measured, beside = _bytes_of_a_task(rows)
    sizes = sorted({*OTHER_SIZES, measured})
    titles = {size: f"{size / 1000:.0f} KB{' (measured)' if size == measured else ''}" for size in sizes}
    columns = [Column("memory", f"memory for tasks, {beside / 1000:.0f} KB beside each file")]
    columns += [Column(str(size), f"tasks of {titles[size]}", format=grouped_digits) for size in sizes]
    counted = [
        {"memory": name, **{str(size): limit // (size + beside) for size in sizes}} for name, limit in MEMORY.items()
    ]
    return markdown(columns, counted)


def computed_table(path: Path) -> str:
    """Rows a second that one thread computes, of random tasks in batches, without HTTP."""
    columns = (
        Column("network", "network"),
        Column("present", "tasks in a batch"),
        Column("rows", "rows a second", format=grouped_digits),
    )
    return markdown(columns, [row | {"rows": BATCH / _seconds(row)} for row in _record(path)["mixed"]])


def read_table(scale: Path, mixed: Path) -> str:
    """The same for LeNet by the share of rows whose task is not in memory and is read first."""
    [lenet] = [row for row in _record(mixed)["mixed"] if row["network"] == "lenet"]
    read = max(row["read"] for row in _record(scale)["rows"])
    columns = (Column("share", "rows whose task is read first"), Column("rows", "rows a second", format=grouped_digits))
    rows = [{"share": f"{100 * share:.0f} %", "rows": 1 / (_seconds(lenet) / BATCH + share * read)} for share in SHARES]
    return markdown(columns, rows)


def _bytes_of_a_task(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The bytes of a task's file, and those that it takes in memory beside them, by the stores of most and least."""
    few, many = min(rows, key=_in_memory), max(rows, key=_in_memory)
    number = _in_memory(many) - _in_memory(few)
    file = round(many["file bytes"] / _in_memory(many))
    return file, round((many["resident bytes"] - few["resident bytes"]) / number) - file


def _in_memory(row: Mapping[str, Any]) -> int:
    return int(row["resident"])


def _seconds(row: Mapping[str, Any]) -> float:
    """Of a batch in the way that the predictor chooses."""
    return float(row["fastest"]) / 1000


def _record(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
