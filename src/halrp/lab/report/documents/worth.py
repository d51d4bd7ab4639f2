"""Tables and figures of what parts of a delta are worth, from the benchmarks' records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.documents.cells import grouped_digits, markdown
from halrp.lab.report.documents.speed import rows_in
from halrp.lab.report.figure import Axis
from halrp.lab.report.table import Column

LEAST = 1e-5
"""Decreases of the loss below it are drawn there: the axes are logarithmic."""


def bytes_table(path: Path) -> str:
    """Where the bytes of files go, a row for each group of parts."""
    files = rows_in(path)
    groups = list(dict.fromkeys(group for file in files for group in file["groups"]))
    rows: list[dict[str, Any]] = [
        {"group": group} | {file["name"]: file["groups"].get(group) for file in files} for group in groups
    ]
    rows.append({"group": "the file"} | {file["name"]: file["bytes"] for file in files})
    columns = (Column(file["name"], file["name"], format=grouped_digits) for file in files)
    return markdown((Column("group", "bytes of"), *columns), rows)


def bytes_chart(path: Path) -> tuple[Chart, str]:
    """The same as bars, and its title."""
    files, setting = rows_in(path), _setting(path)
    groups = tuple(dict.fromkeys(group for file in files for group in file["groups"]))
    series = tuple(
        Series(file["name"], groups, tuple(file["groups"].get(group, 0) for group in groups)) for file in files
    )
    title = f"Where the bytes of a task's file go, {setting['network']}"
    return Chart("bars", Axis("part of the file"), Axis("bytes"), series), title


def correlations_table(path: Path) -> str:
    """How well predicted and measured worth agree, over all parts and over those of each kind."""
    columns = (
        Column("network", "network"),
        Column("parts", "parts"),
        Column("count", "number"),
        Column("correlation", "rank correlation", 2),
    )
    return markdown(columns, json.loads(path.read_text("utf-8"))["rows"])


def importance_table(path: Path) -> str:
    """How well estimates of importance agree with what cutting a warmed-up layer costs."""
    data = Column("fraction", "data", format=lambda share: f"{share:.0%}")
    columns = (
        Column("stream", "stream"),
        data,
        Column("statistics", "statistics"),
        Column("estimate", "estimate"),
        Column("dropped", "layers dropped", format=str),
        Column("all cuts", "all cuts", format=str),
        Column("ratio", "predicted / measured", format=lambda ratio: f"{ratio:.2g}"),
    )
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
    for row in rows:
        for key in ("dropped", "all cuts"):
            row[key] = f"{row[key]:.2f} ± {row[f'{key}, error']:.2f}"
    return markdown(columns, rows)


def worth_chart(path: Path) -> tuple[Chart, str]:
    """Predicted and measured decrease of the loss by each part alone, and the title."""
    record = json.loads(path.read_text("utf-8"))
    network, parts = list(record["parts"].items())[-1]
    series = []
    for kind in sorted({part["kind"] for part in parts}):
        chosen = sorted((part for part in parts if part["kind"] == kind), key=lambda part: part["predicted"])
        x = tuple(max(LEAST, part["predicted"]) for part in chosen)
        y = tuple(max(LEAST, part["measured"]) for part in chosen)
        series.append(Series(kind, x, y, notes=tuple(part["part"] for part in chosen)))
    axes = Axis("predicted decrease of the loss", log=True), Axis("measured decrease", log=True)
    return Chart("points", *axes, tuple(series)), f"Predicted and measured worth of parts, {network}"


def ablations_table(path: Path) -> str:
    """Accuracy with one choice changed, and its paired difference to the default."""
    columns = (
        Column("field", "field"),
        Column("name", "choice"),
        Column("accuracy", "accuracy (%)", 2),
        Column("gain", "difference (points)", format="{:+.2f}".format),
        Column("error", "±", 2),
        Column("bytes", "bytes per task", format=grouped_digits),
    )
    rows = rows_in(path)
    for row in rows:
        if not row["field"]:  # what the others are compared with
            row["gain"] = row["error"] = None
    return markdown(columns, rows)


def entropy_table(path: Path) -> str:
    """What coders make of the quantised numbers of files."""
    rows = [
        {"precision": row["precision"], "coder": coder, **sizes}
        for row in json.loads(path.read_text("utf-8"))["rows"]
        for coder, sizes in row["coders"].items()
    ]
    columns = (
        Column("precision", "precision"),
        Column("coder", "coder"),
        Column("of stream %", "of the numbers (%)", 1),
        Column("of files %", "of the files (%)", 1),
    )
    return markdown(columns, rows)


def _setting(path: Path) -> dict[str, Any]:
    setting: dict[str, Any] = json.loads(path.read_text("utf-8"))["what"]
    return setting
