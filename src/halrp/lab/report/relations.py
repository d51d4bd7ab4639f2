"""Which method is more accurate than which: the orderings that the paper's tables show, and whether ours agree."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import combinations, product

from halrp.lab.records.frames import Frame
from halrp.lab.report import paper
from halrp.lab.report.pairing import BENCHMARK, Pair, benchmark_columns, by_method, pairs, representative_pair
from halrp.lab.report.paper import Benchmark, Printed
from halrp.lab.report.table import Column, Table, Value

COLUMNS = (
    *BENCHMARK,
    Column("better", "more accurate", about="in the paper", filters=True),
    Column("worse", "less accurate", about="in the paper", filters=True),
    Column("paper", "paper", 2, signed=True, about="the difference of the paper's accuracies"),
    Column("paper_error", "paper ±", 2, about="the sum of the paper's two ±"),
    Column("ours", "ours", 2, signed=True, about="the difference of our accuracies"),
    Column("ours_error", "±", 2, about="√(±² + ±²) of our two standard errors"),
    Column("holds", "holds", about="whether our difference has the paper's sign", filters=True),
)
ABOUT = (
    "Pairs of methods whose accuracies differ by more than the sum of their ± in the paper, and our difference of the "
    "same pair, in percentage points. Of several settings of a method, those of the preset count, or else those with "
    "the most runs, and only if tasks, epochs and network are the paper's. Each of our methods that the paper calls "
    "HALRP has rows."
)


def relations(groups: Frame, only: Collection[Benchmark] | None = None) -> Table:
    """The clear orderings that the paper shows anywhere, or for the given benchmarks, and whether they hold in ours."""
    wanted = None if only is None else [paper.benchmark_of(*benchmark) for benchmark in only]
    rows = _rows(pairs(groups, wanted))
    hold, compared = sum(row["holds"] == "yes" for row in rows), sum(row["holds"] is not None for row in rows)
    count = f"{hold} of {compared} clear orderings of the paper hold here."
    if compared < len(rows):
        count += f" {len(rows) - compared} more cannot be compared, as one of the methods was not run like the paper's."
    return Table("relations", "Orderings of methods", f"{count} {ABOUT}", COLUMNS, tuple(rows))


def _rows(paired: list[Pair]) -> list[dict[str, Value]]:
    methods: dict[Benchmark, dict[str, Pair]] = {pair.benchmark: {} for pair in paired}
    for (benchmark, method), same in by_method(paired).items():
        if usable := [pair for pair in same if pair.number("accuracy") is not None and not pair.obstacles]:
            methods[benchmark][method] = representative_pair(usable)
    rows = []
    for benchmark, here in methods.items():
        for two in combinations(paper.at(benchmark), 2):
            better, worse = sorted(two, key=lambda printed: -printed.accuracy)
            if not _clear(better, worse):
                continue
            shared = benchmark_columns(benchmark)
            shared |= {"paper": better.accuracy - worse.accuracy, "paper_error": _sum(better, worse)}
            ours = [[here[name] for name in side.ours if name in here] for side in (better, worse)]
            if not ours[0] or not ours[1]:
                names: dict[str, Value] = {"better": better.ours[0], "worse": worse.ours[0]}
                rows.append(shared | names | dict.fromkeys(("ours", "ours_error", "holds")))
            rows += [shared | _difference(*two_of_ours) for two_of_ours in product(*ours)]
    return rows


def _sum(better: Printed, worse: Printed) -> float:
    return (better.std or 0) + (worse.std or 0)


def _clear(better: Printed, worse: Printed) -> bool:
    if better.std is None or worse.std is None:
        return False
    return better.accuracy - worse.accuracy > _sum(better, worse) + 1e-9


def _difference(better: Pair, worse: Pair) -> dict[str, Value]:
    """Our difference between two methods, of which the first is the better one in the paper."""
    first, second = (pair.number("accuracy") or 0.0 for pair in (better, worse))
    errors = [error for pair in (better, worse) if (error := pair.number("error_usual")) is not None]
    return {
        "better": better.method,
        "worse": worse.method,
        "ours": first - second,
        "ours_error": math.hypot(*errors) if len(errors) == 2 else None,
        "holds": "yes" if first > second else "no",
    }
