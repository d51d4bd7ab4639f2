"""The report's main table, the paper's results beside ours: accuracies, and how much the order of tasks matters.

From a record to a cell of it: `records.loading.load` reads the files, `records.frames.runs` measures each run,
`records.summary.summarise` averages over orders and seeds, `pairing.pairs` joins the groups with the paper's rows, and
`comparison` here makes the columns and the marks. `table_writers` and the page show the result.

Every row that the paper prints is present, whether it was run or not, and every run of ours on such a benchmark,
whether the paper prints its method or not. A run that differs from the paper's in its number of tasks or epochs, or in
its network, has a note and is compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from halrp.lab.records.frames import Frame
from halrp.lab.registry import STREAMS
from halrp.lab.report import paper
from halrp.lab.report.pairing import BENCHMARK, ORDERS, Pair, by_method, pairs, representative_pair
from halrp.lab.report.paper import Benchmark
from halrp.lab.report.table import Column, Table, Value

ALONE = 10.0
"""The multiple of the paper's ± that a difference has to exceed where ours has no error. The ± is that of a mean over
five orders and five seeds: one run scatters about five times as much, and twice that is required."""

ROW = (*BENCHMARK, Column("method", "method", filters=True))
RUNS = (Column("runs", "runs"), Column("orders", "orders", about="the orders of tasks that were run"))
NOTES = (
    Column("settings", "settings", about="those of the method and of training that are not the defaults"),
    Column("note", "note", about="how the run differs from the paper's, or why nothing is compared"),
)

ACCURACY_ABOUT = (
    "Final accuracy in %, mean over tasks, as the paper prints it and as ours. Our ± is the usual standard error over "
    "what its column names, the paper's is over five seeds. Ours is equal if the difference is at most √(±² + ±²) of "
    "the two, else better or worse. A row of ours without an error is never called equal, and better or worse only if "
    f"the difference exceeds {ALONE:g} times the paper's ±, which is about two standard deviations of one run. Runs "
    "with another number of tasks or epochs, or another network, are not compared."
)
CHOSEN_ABOUT = (
    "One row for each method: of several settings, those of the benchmark's preset, or else those with the most runs. "
)
OTHERS_ABOUT = "Runs of the same methods with other settings, or under orders of another kind. "
ORDERS_ABOUT = (
    "MOPD and AOPD: the largest and the mean range of a task's final accuracy over orders, in percentage points (pp); "
    "less is better. The paper's are over five orders, after a mean over five seeds; only ours over five orders are "
    "compared. Fewer seeds make ranges wider; the floor, stl with other random draws under the same orders and seeds, "
    "is the range of chance alone. Neither side has an error: better and worse mean that AOPD differs by more than the "
    "floor, and nothing is called equal. All orders: exact values for methods that were run with every task first."
)


def comparison(groups: Frame, only: Collection[Benchmark] | None = None) -> tuple[Table, Table, Table]:
    """The paper's accuracies beside ours, its disparities between orders beside ours, and accuracies of other settings.

    `groups` are rows of `summarise`; `only` are the benchmarks that are wanted, by default all that the paper prints.
    """
    paired = pairs(groups, only)
    chosen, others = representatives(paired)
    shown = {id(pair) for pair in chosen} | {id(pair) for pair in others if pair.group and pair.group["every_order"]}
    return (
        _accuracies("paper-accuracy", "Accuracy beside the paper's", CHOSEN_ABOUT + ACCURACY_ABOUT, chosen),
        _disparities([pair for pair in paired if id(pair) in shown]),
        _accuracies("paper-settings", "Other settings beside the paper's", OTHERS_ABOUT + ACCURACY_ABOUT, others),
    )


def representatives(paired: Iterable[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The pairs that represent their methods, one each per benchmark, and the others."""
    chosen, others = [], []
    for same in by_method(paired).values():
        comparable = [pair for pair in same if not pair.obstacles] or same
        first = comparable[0] if comparable[0].group is None else representative_pair(comparable)
        chosen.append(first)
        others += [pair for pair in same if pair is not first]
    return chosen, others


# ---- accuracy -----------------------------------------------------------------------------------------------------


def _accuracies(key: str, title: str, about: str, paired: Iterable[Pair]) -> Table:
    columns = (
        *ROW,
        Column("paper", "paper", 2),
        Column("paper_error", "paper ±", 2),
        Column("ours", "ours", 2),
        Column("ours_error", "±", 2, about="the usual standard error"),
        Column("difference", "difference", 2, signed=True, about="ours − paper"),
        Column("over", "± over", about="orders or seeds: what the error is over"),
        *RUNS,
        *NOTES,
    )
    rows, marks = [], []
    for pair in paired:
        printed, ours, error = pair.printed, pair.number("accuracy"), pair.number("error_usual")
        notes = pair.obstacles
        if pair.group is not None and "accuracy" in pair.group["undefined"]:
            notes = [*notes, pair.group["undefined"]["accuracy"]]
        difference = None if notes or printed is None or ours is None else ours - printed.accuracy
        rows.append(
            pair.columns()
            | {
                "paper": None if printed is None else printed.accuracy,
                "paper_error": None if printed is None else printed.std,
                "ours": ours,
                "ours_error": error,
                "over": None if pair.group is None or error is None else str(pair.group["spread_over"]),
                "difference": difference,
                "note": "; ".join([*notes, *pair.remarks, *_sequential(pair)]) or None,
            }
        )
        marks.append(judged(difference, None if printed is None else printed.std, error))
    return Table(key, title, about, columns, tuple(rows), tuple(marks))


def judged(difference: float | None, paper_error: float | None, our_error: float | None) -> str:
    """Whether ours is better, equal or worse; empty if neither is certain. `ACCURACY_ABOUT` has the rule."""
    if difference is None or paper_error is None:
        return ""
    if our_error is not None and _within(difference, math.hypot(paper_error, our_error)):
        return "equal"
    if our_error is None and _within(difference, ALONE * paper_error):
        return ""
    return "better" if difference > 0 else "worse"


def _within(difference: float, bound: float) -> bool:
    """Whether a difference is at most a bound, up to rounding errors of sums."""
    return abs(difference) <= bound + 1e-9


def _sequential(pair: Pair) -> list[str]:
    """The paper's accuracies of one benchmark are those of the order by identity."""
    special = STREAMS[pair.benchmark.stream].by_identity
    if not special or pair.group is None or pair.printed is None or pair.group["orders"] == special:
        return []
    return [f"the paper's order is {special}"]


# ---- order robustness ---------------------------------------------------------------------------------------------


def _disparities(paired: Iterable[Pair]) -> Table:
    columns = (
        *ROW,
        *(
            column
            for name in ("mopd", "aopd")
            for column in (
                Column(f"{name}_paper", f"{name.upper()} paper", 2),
                Column(name, f"{name.upper()} ours", 2),
                Column(f"{name}_difference", "difference", 2, signed=True, about="ours − paper; less is better"),
            )
        ),
        Column("stl_mopd", "floor MOPD", 2, about="that of stl when only its random draws differ"),
        Column("stl_aopd", "floor AOPD", 2, about="that of stl when only its random draws differ"),
        Column("all_mopd", "all orders MOPD", 2, about="exact, over every order of the stream"),
        Column("all_aopd", "all orders AOPD", 2, about="exact, over every order of the stream"),
        *RUNS,
        Column("seeds", "seeds"),
        *NOTES,
    )
    rows, marks = [], []
    for pair in _with_orders(list(paired)):
        printed, group, notes = pair.printed, pair.group, pair.obstacles
        exact = group is not None and bool(group["every_order"])
        if group is not None and not exact:
            notes = notes + _lacking(group)
        cells: dict[str, Value] = {"seeds": None if group is None else len(group["seeds"].split())}
        for name in ("mopd", "aopd"):
            theirs: float | None = None if printed is None else getattr(printed, name)
            ours = pair.number(name)
            cells |= {f"{name}_paper": theirs, name: None if exact else ours, f"all_{name}": ours if exact else None}
            cells[f"{name}_difference"] = None if notes or exact or theirs is None or ours is None else ours - theirs
            cells[f"stl_{name}"] = pair.number(f"stl_{name}")
        rows.append(pair.columns() | cells | {"note": "; ".join([*notes, *pair.remarks]) or None})
        marks.append(_steadier(cells["aopd_difference"], cells["stl_aopd"]))
    title = "Order robustness beside the paper's"
    return Table("paper-orders", title, ORDERS_ABOUT, columns, tuple(rows), tuple(marks))


def _with_orders(paired: list[Pair]) -> list[Pair]:
    """The pairs that have several orders; of runs under one order the first, where there is nothing else."""
    rows: list[Pair] = []
    several = {(pair.benchmark, pair.printed) for pair in paired if pair.group is not None and _orders(pair.group) > 1}
    for pair in paired:
        if all(printed.mopd is None for printed in paper.at(pair.benchmark)):
            continue
        if pair.group is not None and _orders(pair.group) > 1:
            rows.append(pair)
        elif pair.printed is not None and (pair.benchmark, pair.printed) not in several:
            several.add((pair.benchmark, pair.printed))
            rows.append(pair)
    return rows


def _lacking(group: Mapping[str, Any]) -> list[str]:
    """Why the disparity of a group cannot be compared, or is undefined."""
    if "mopd" in group["undefined"]:
        return [group["undefined"]["mopd"]]
    return [] if _orders(group) == ORDERS else [f"{_orders(group)} orders, not {ORDERS}"]


def _steadier(difference: Any, floor: Any) -> str:
    if difference is None or floor is None or _within(difference, floor):
        return ""
    return "better" if difference < 0 else "worse"


def _orders(group: Mapping[str, Any]) -> int:
    return STREAMS[group["stream"]].tasks if group["every_order"] else len(group["orders"].split())
