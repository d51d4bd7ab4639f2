"""Tables of the benchmarks' records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halrp.lab.report.documents.cells import markdown
from halrp.lab.report.table import Column, Markdown

NAME = Column("code", "method")


def times_table(path: Path) -> str:
    """Time per task as tasks accumulate: at some positions, and how much each further task adds."""
    measured = rows_in(path)
    positions = [p for p in (1, 2, 5, 10, 15, 20) if p <= len(measured[0]["beside"])]
    rows = []
    for row in sorted(measured, key=lambda row: -_slope(row["beside"])):
        ratios = row["beside"]
        growth = {"slope": 100 * _slope(ratios), "last": np.mean(ratios[-3:]) / np.mean(ratios[1:4])}
        rows.append({**row, **growth, **{f"task {p}": ratios[p - 1] for p in positions}})
    columns = (
        NAME,
        *(Column(f"task {p}", f"task {p}", 2) for p in positions),
        Column("slope", "each further task, % of stl's", format="{:+.1f}".format),
        Column("last", "last three to tasks 2 – 4", 2),
    )
    return markdown(columns, rows)


def ratios_table(path: Path, title: str) -> str:
    """The ratios of a benchmark with their quartiles."""
    quartiles = Column("lower", "quartiles", 2, others=("upper",), separator=" – ")
    return markdown((Column("name", title), Column("ratio", "ratio", 2), quartiles), rows_in(path))


def memory_table(path: Path) -> str:
    """Peak memory of learning, and its ratio to that of training the whole network."""
    columns = (Column("name", "learning"), Column("megabytes", "MB", 0), Column("ratio", "ratio", 2))
    return markdown(columns, rows_in(path))


def starts_table(path: Path) -> str:
    """Accuracy of each start of a delta, and its paired gain over training without components."""
    columns = (
        Column("code", "stream"),
        Column("start", "start"),
        Column("accuracy", "accuracy (%)", 2),
        Column("gain", "gain (points)", format="{:+.2f}".format),
        Column("error", "±", 2),
        Column("bytes", "bytes per task", format="{:,}".format),
        Column("runs", "seeds"),
    )
    rows = [row | {"start": row["name"], "runs": len(row["accuracies"])} for row in rows_in(path)]
    for row in rows:
        row["code"] = Markdown(f"`{row['stream']}`")
        if row["name"] == "no components":  # what the others are compared with
            row["gain"] = row["error"] = None
    return markdown(columns, rows)


def decoding_table(path: Path) -> str:
    """How long each data set takes from its stored form, and from the cached arrays."""
    columns = (
        Column("code", "set"),
        Column("layout", "layout"),
        Column("images", "images", format="{:,}".format),
        Column("stored", "MB", 1, others=("decoded",), separator=" → "),
        Column("first", "decoded s", 2),
        Column("again", "opened again s", 3),
        Column("through", "read through s", 3),
    )
    return markdown(columns, rows_in(path))


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of a benchmark's record."""
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
    return [row | {"code": Markdown(f"`{row['name']}`")} if "name" in row else row for row in rows]


def _slope(ratios: Sequence[float]) -> float:
    """By how much a ratio rises from task to task, least squares over all but the first."""
    return float(np.polyfit(np.arange(1, len(ratios)), np.asarray(ratios[1:]), 1)[0])
