"""Results of the paper and groups of our runs, paired row by row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from halrp.lab.records.frames import Frame
from halrp.lab.registry import STREAMS
from halrp.lab.report import paper
from halrp.lab.report.paper import Benchmark, Printed
from halrp.lab.report.representative import representative
from halrp.lab.report.table import Column, Value

ORDERS = 5
"""The number of orders over which the paper measures disparity."""
BENCHMARK = (
    Column("benchmark", "benchmark", filters=True),
    Column("backbone", "backbone", filters=True),
    Column("data", "data %", about="share of the training and validation data", filters=True),
)


class Pair(NamedTuple):
    """A row of the comparison: what the paper prints, what we ran, or both."""

    benchmark: Benchmark
    method: str
    """Ours; where nothing was run, the first of those that are compared with the paper's."""
    printed: Printed | None
    group: dict[str, Any] | None
    """A row of `halrp.lab.records.summary.summarise`; None if nothing was run."""

    @property
    def obstacles(self) -> list[str]:
        """How the runs differ from the paper's so that the two cannot be compared."""
        if self.group is None:
            return ["not run"]
        stream, backbone, _ = self.benchmark
        tasks, epochs, schedule = STREAMS[stream].tasks, self.group["epochs"], paper.schedule(stream, backbone)
        differences = [] if self.group["tasks"] == tasks else [f"{self.group['tasks']} of {tasks} tasks"]
        if epochs is None:
            differences.append("epochs unknown")
        elif schedule is not None and epochs != schedule.epochs:
            differences.append(f"{epochs} epochs, not {schedule.epochs}")
        return [*differences, *([f"network {self.group['network']}"] if self.group["network"] else [])]

    @property
    def remarks(self) -> list[str]:
        """What else a reader should know of the comparison."""
        notes = [self.printed.note] if self.printed is not None and self.printed.note else []
        if self.group is None:
            return notes
        schedule = paper.schedule(self.benchmark.stream, self.benchmark.backbone)
        if schedule is None:
            return [*notes, "the paper does not document its training here"]
        for name in ("lr", "batch"):
            used, theirs = self.group["record"].values[name], getattr(schedule, name)
            if _short(used) != _short(theirs):
                notes.append(f"{name} {_short(used)}, not {_short(theirs)}")
        return notes

    def number(self, name: str) -> float | None:
        """A number of ours; None if there is none."""
        value = None if self.group is None else self.group[name]
        return float(value) if isinstance(value, (int, float)) and not math.isnan(value) else None

    def columns(self) -> dict[str, Value]:
        """The columns that identify the row, and those about its runs."""
        row: dict[str, Value] = {**benchmark_columns(self.benchmark), "method": self.method}
        if self.group is None:
            return row | dict.fromkeys(("settings", "runs", "orders"))
        settings = ", ".join(filter(None, (self.group["settings"], self.group["recipe"])))
        orders = self.group["orders"].split()
        brief = self.group["every_order"] or len(orders) <= ORDERS
        text = self.group["orders"] if brief else f"{len(orders)} orders"
        shown = {"settings": settings, "runs": self.group["runs"], "orders": text}
        return row | shown | {"method": self.group["record"].label}


def pairs(groups: Frame, only: Collection[Benchmark] | None = None) -> list[Pair]:
    """The paper's results and our groups of runs, benchmark by benchmark, in the paper's order.

    `groups` are rows of `summarise`, `only` the benchmarks that are wanted. Methods that the paper lacks come last.
    """
    ours: dict[Benchmark, list[dict[str, Any]]] = {}
    for group in groups.to_dict("records"):
        ours.setdefault(paper.benchmark_of(group["stream"], group["backbone"], group["fraction"]), []).append(group)
    result = []
    for benchmark in paper.benchmarks():
        if only is not None and benchmark not in only:
            continue
        here = ours.get(benchmark, [])
        for printed in paper.at(benchmark):
            run = [Pair(benchmark, g["method"], printed, g) for g in here if g["method"] in printed.ours]
            result += run or [Pair(benchmark, printed.ours[0], printed, None)]
        known = {method for printed in paper.at(benchmark) for method in printed.ours}
        result += [Pair(benchmark, group["method"], None, group) for group in here if group["method"] not in known]
    return result


def by_method(paired: Iterable[Pair]) -> dict[tuple[Benchmark, str], list[Pair]]:
    """The pairs of each method, benchmark by benchmark."""
    methods: dict[tuple[Benchmark, str], list[Pair]] = {}
    for pair in paired:
        methods.setdefault((pair.benchmark, pair.method), []).append(pair)
    return methods


def representative_pair(candidates: list[Pair]) -> Pair:
    """The pair, of several that were run with one method, that represents it."""
    return candidates[representative([pair.group or {} for pair in candidates])]


def benchmark_columns(benchmark: Benchmark) -> dict[str, Value]:
    """The values of the columns `BENCHMARK`."""
    return {"benchmark": benchmark.stream, "backbone": benchmark.backbone, "data": percent(benchmark.fraction)}


def percent(fraction: float) -> int | float:
    """A share in %, as a whole number where it is one."""
    share = round(100 * fraction, 9)
    return int(share) if share.is_integer() else share


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value).partition(",")[0]
