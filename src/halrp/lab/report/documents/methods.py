"""Tables of methods side by side, and beside the paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from halrp.lab import demo
from halrp.lab.records.aggregate import Row, Undefined
from halrp.lab.report.documents.markdown import (
    loaded,
    named,
    number,
    paper_of,
    summary,
    table,
    value,
    whole,
    with_error,
)
from halrp.lab.report.relations import relations
from halrp.lab.report.usual import chosen


class Place(NamedTuple):
    """Where methods are compared, and the folder of its records, which is called as the preset that makes them."""

    folder: str
    stream: str
    fraction: float = 1.0
    backbone: str = "lenet"

    def rows(self, root: Path) -> list[Row]:
        """One row for each method and its settings here, the most accurate first."""
        here = self.stream, self.backbone, self.fraction
        rows = [row for row in summary(root / self.folder) if (row["stream"], row["backbone"], row["fraction"]) == here]
        return sorted(rows, key=lambda row: -value(row["accuracy"]))


def main_table(place: Place, root: Path) -> str:
    """For the README: every method's accuracy beside the paper's, what is forgotten, and what is stored in bytes."""
    methods: dict[str, list[Row]] = {}
    for row in place.rows(root):
        methods.setdefault(str(row["method"]), []).append(row)
    rows = [chosen(some, lambda row: row) for some in methods.values()]
    lines = [
        (
            f"`{row['method']}`",
            with_error(row),
            paper_of(row).accuracy,
            "–" if isinstance(row["bwt"], Undefined) else f"{0.0 - value(row['bwt']):.2f}",
            whole(row["later_bytes"]),
            "–" if isinstance(row["growth_bytes"], Undefined) else f"{1 + value(row['growth_bytes']):.2f}",
        )
        for row in sorted(rows, key=lambda row: -value(row["accuracy"]))
    ]
    head = ("method", "accuracy %", "paper", "forgotten, points", "bytes per further task", "all tasks, in networks")
    return table(head, lines)


def demo_table(folder: Path) -> str:
    """The four runs of the demo."""
    records = {record["cell"]["method"]: record["rows"] for record in loaded(folder)}
    return demo.markdown({name: records[name] for name in demo.LABELS})


def methods_table(place: Place, root: Path) -> str:
    """Every method's accuracy, forgetting, disparity, size and time, beside the paper's accuracy and disparity.

    Where runs differ in their number of tasks or epochs, each says its own.
    """
    rows = place.rows(root)
    mixed = len({(row["tasks"], row["epochs"]) for row in rows}) > 1
    head = ("method", "accuracy % ±", "paper", "difference", "BWT", "MOPD / AOPD", "paper's", "growth", "time", "runs")
    lines = [
        (
            named(row) + (f", {row['tasks']} tasks, {row['epochs']} epochs" if mixed else ""),
            with_error(row),
            *paper_of(row)[:2],
            number(row["bwt"], 2),
            f"{number(row['mopd'], 1)} / {number(row['aopd'], 1)}",
            paper_of(row).disparity,
            number(row["growth_counted"], 3),
            number(row["time_ratio"], 1),
            str(row["runs"]),
        )
        for row in rows
    ]
    return table(head, lines)


def orderings(place: Place, root: Path) -> str:
    """How many of the orderings that the paper's table clearly shows hold in our runs, and which do not."""
    rows = relations(list(loaded(root / place.folder)), place.stream, place.backbone, place.fraction).rows
    judged = [row for row in rows if row["holds"] is not None]
    failed = [row for row in judged if row["holds"] != "yes"]
    count = f"{len(judged) - len(failed)} of {len(judged)} hold."
    if not failed:
        return count
    lines = []
    for row in failed:
        ours, error = (math.nan if row[n] is None else float(row[n]) for n in ("ours", "ours_error"))  # type: ignore[arg-type]
        spread = "" if math.isnan(error) else f" ± {error:.2f}"
        lines.append((f"`{row['better']}` > `{row['worse']}`", f"{row['paper']:+.2f}", f"{ours:+.2f}{spread}"))
    return f"{count} Those that do not:\n\n" + table(("the paper's ordering", "paper", "ours"), lines)


def method_table(places: list[Place], root: Path, method: str) -> str:
    """All that was measured of one method, beside the paper."""
    head = (
        "stream", "data", "settings", "orders", "accuracy % ±", "paper", "difference", "BWT", "MOPD / AOPD",
        "growth", "bytes per task",
    )  # fmt: skip
    lines = [
        (
            f"`{row['stream']}`",
            f"{100 * place.fraction:g} %",
            str(row["settings"]),
            str(row["orders"]).replace(" ", ""),
            with_error(row),
            *paper_of(row)[:2],
            number(row["bwt"], 2),
            f"{number(row['mopd'], 1)} / {number(row['aopd'], 1)}",
            number(row["growth_counted"], 3),
            whole(row["later_bytes"]),
        )
        for place in places
        for row in place.rows(root)
        if row["method"] == method
    ]
    return table(head, lines)
