"""Tables of methods side by side, and beside the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from halrp.lab.records import frames
from halrp.lab.registry import METHODS
from halrp.lab.report.documents.cells import (
    ACCURACY,
    BWT,
    DISPARITY,
    GROWTH,
    LATER_BYTES,
    PAPER,
    described,
    grouped_digits,
    groups,
    markdown,
    records,
)
from halrp.lab.report.paper import Benchmark
from halrp.lab.report.relations import relations
from halrp.lab.report.table import Column, Markdown

METHOD = Column("method", "method")
DEMO = ("stl", "finetune", "halrp-official", "halrp-budget")
"""The methods of the demo, in the order of its table."""


class BenchmarkStudy(NamedTuple):
    """A benchmark on which methods are compared, and the folder of its records, which is named after its preset."""

    folder: str
    stream: str
    fraction: float = 1.0
    backbone: str = "lenet"

    @property
    def benchmark(self) -> Benchmark:
        """The key of the paper's results."""
        return Benchmark(self.stream, self.backbone, self.fraction)

    def rows(self, root: Path) -> list[dict[str, Any]]:
        """One row for each method and its settings, the most accurate first."""
        rows = groups(root / self.folder)
        here = (
            (rows["stream"] == self.stream) & (rows["backbone"] == self.backbone) & (rows["fraction"] == self.fraction)
        )
        ordered = rows[here].sort_values("accuracy", ascending=False, kind="stable")
        return [dict(row) for row in ordered.to_dict("records")]


def main_table(study: BenchmarkStudy, root: Path) -> str:
    """For the README: every method's accuracy beside the paper's, its forgetting, and what it stores."""
    columns = (
        METHOD,
        *ACCURACY,
        PAPER[0],
        Column("forgetting", "forgetting (pp)", 2),
        LATER_BYTES,
        Column("total", "total size, × one network", 2),
    )
    rows = [
        described(row) | {"forgetting": 0.0 - row["bwt"], "total": 1 + row["growth_bytes"]}
        for row in study.rows(root)
        if row["representative"]
    ]
    return markdown(columns, rows)


def demo_table(folder: Path) -> str:
    """The four runs of the demo."""
    runs = {row["method"]: row for row in frames.runs(records(folder)).to_dict("records")}
    columns = (
        Column("title", ""),
        Column("accuracy", "average accuracy", format="{:.2f} %".format),
        Column("forgetting", "forgetting (pp)", 2),
        Column("later_bytes", LATER_BYTES.title, format=lambda value: f"{int(value):,}"),
    )
    rows = [{**runs[name], "title": METHODS[name].title, "forgetting": 0.0 - runs[name]["bwt"]} for name in DEMO]
    return markdown(columns, rows)


def methods_table(study: BenchmarkStudy, root: Path) -> str:
    """Every method's accuracy, forgetting, disparity, size and time, beside the paper's accuracy and disparity.

    Where runs differ in their number of tasks or epochs, each row has its own.
    """
    rows = [described(row) for row in study.rows(root)]
    if len({(row["tasks"], row["epochs"]) for row in rows}) > 1:
        rows = [row | {"run": Markdown(f"{row['run']}, {row['tasks']} tasks, {row['epochs']} epochs")} for row in rows]
    columns = (
        Column("run", "method"),
        *ACCURACY,
        *PAPER,
        BWT,
        DISPARITY,
        Column("paper_disparity", "paper's"),
        GROWTH,
        Column("time_ratio", "time", 1),
        Column("runs", "runs"),
    )
    return markdown(columns, rows)


def orderings(study: BenchmarkStudy, root: Path) -> str:
    """How many of the orderings that the paper's table clearly shows hold in our runs, and which do not."""
    rows = relations(groups(root / study.folder), [study.benchmark]).rows
    compared = [row for row in rows if row["holds"] is not None]
    failed = [row for row in compared if row["holds"] != "yes"]
    count = f"{len(compared) - len(failed)} of {len(compared)} hold."
    if not failed:
        return count
    columns = (
        Column("ordering", "the paper's ordering"),
        Column("paper", "paper", 2, signed=True),
        Column("ours", "ours", 2, signed=True),
        Column("ours_error", "±", 2),
    )
    shown = [row | {"ordering": Markdown(f"`{row['better']}` > `{row['worse']}`")} for row in map(dict, failed)]
    return f"{count} Those that do not:\n\n{markdown(columns, shown)}"


def method_table(studies: Sequence[BenchmarkStudy], root: Path, method: str) -> str:
    """All measurements of one method, beside the paper."""
    columns = (
        Column("stream", "stream"),
        Column("data", "data"),
        Column("settings", "settings"),
        Column("orders", "orders"),
        *ACCURACY,
        *PAPER,
        BWT,
        DISPARITY,
        GROWTH,
        replace(LATER_BYTES, title="bytes per task", format=grouped_digits),
    )
    rows = [
        described(row) | {"orders": row["orders"].replace(" ", "")}
        for study in studies
        for row in study.rows(root)
        if row["method"] == method
    ]
    return markdown(columns, rows)
