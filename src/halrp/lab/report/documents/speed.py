"""Tables of the benchmarks' records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from halrp.lab.report.documents.markdown import table


def times_table(path: Path) -> str:
    """Time per task as tasks accumulate: at some positions, and how much each further task adds."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    places = [p for p in (1, 2, 5, 10, 15, 20) if p <= len(rows[0]["beside"])]
    lines = []
    for row in sorted(rows, key=lambda row: -_slope(row["beside"])):
        ratios = row["beside"]
        first, last = np.mean(ratios[1:4]), np.mean(ratios[-3:])
        shown = [f"{ratios[p - 1]:.2f}" for p in places]
        lines.append((f"`{row['name']}`", *shown, f"{100 * _slope(ratios):+.1f}", f"{last / first:.2f}"))
    head = ("method", *(f"task {p}" for p in places), "each further task, % of stl's", "last three to tasks 2 – 4")
    return table(head, lines)


def _slope(ratios: Sequence[float]) -> float:
    """By how much a ratio rises from task to task, least squares over all but the first."""
    return float(np.polyfit(np.arange(1, len(ratios)), np.asarray(ratios[1:]), 1)[0])


def ratios_table(path: Path, title: str) -> str:
    """The ratios of a benchmark with their quartiles."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    lines = [(row["name"], f"{row['ratio']:.2f}", f"{row['lower']:.2f} – {row['upper']:.2f}") for row in rows]
    return table((title, "ratio", "quartiles"), lines)


def decoding_table(path: Path) -> str:
    """How long each data set takes from its stored form, and from the kept arrays."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    lines = [
        (
            f"`{row['name']}`",
            row["layout"],
            f"{row['images']:,}",
            f"{row['stored']:.1f} → {row['decoded']:.1f}",
            f"{row['first']:.2f}",
            f"{row['again']:.3f}",
            f"{row['through']:.3f}",
        )
        for row in rows
    ]
    return table(("set", "layout", "images", "MB", "decoded s", "opened again s", "read through s"), lines)
