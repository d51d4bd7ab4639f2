"""The paper's tables beside ours: accuracies, and how much the order of tasks matters.

Every row that the paper prints is there, whether it was run or not, and every run of ours at such a place, whether the
paper prints its method or not. A run that differs from the paper's in its number of tasks or epochs, or in its network,
says so and is compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from halrp.lab.records.aggregate import Row, Undefined
from halrp.lab.records.schema import Record
from halrp.lab.registry import STREAMS
from halrp.lab.report import paper
from halrp.lab.report.lines import ORDERS, PLACE, Line, lines
from halrp.lab.report.paper import Place
from halrp.lab.report.relations import all_relations, relations
from halrp.lab.report.table import Column, Table, Value
from halrp.lab.report.usual import chosen

__all__ = ["all_relations", "comparison", "judged", "relations"]

ALONE = 10.0
"""How many of the paper's ± a difference has to exceed where ours has no error. The ± is that of a mean over five
orders and five seeds: one run scatters about five times as much, and twice that is asked for."""

ROW = (*PLACE, Column("method", "method", filters=True))
RUNS = (Column("runs", "runs"), Column("orders", "orders", about="the orders of tasks that were run"))
HOW = (
    Column("settings", "settings", about="those of the method and of training that are not the defaults"),
    Column("note", "note", about="how the run differs from the paper's; where nothing is compared, why"),
)

ACCURACY_ABOUT = (
    "Final accuracy in %, mean over tasks, as the paper prints it and as ours. Our ± is the usual standard error over "
    "what its column says, the paper's is over five seeds. Ours is equal if the difference is at most √(±² + ±²) of "
    "the two, else better or worse. A row of ours without an error is never called equal, and better or worse only if "
    f"the difference exceeds {ALONE:g} times the paper's ±, which is about two standard deviations of one run. Runs "
    "with another number of tasks or epochs, or another network, are not compared."
)
USUAL_ABOUT = (
    "One row for each method: of several settings, those of the benchmark's preset, or else those with the most runs. "
)
OTHERS_ABOUT = "Runs of the same methods with other settings, or under orders of another kind. "
ORDERS_ABOUT = (
    "MOPD and AOPD: the largest and the mean range of a task's final accuracy over orders, in points; less is better. "
    "The paper's are over five orders, after a mean over five seeds, and only ours over five orders are compared. "
    "Fewer seeds make ranges wider, and the floor, stl with other draws under the very same orders and seeds, shows "
    "how wide for nothing but chance. Neither side has an error: better and worse say that AOPD differs by more than "
    "the floor, and nothing is called equal. All orders: exact values for methods that were run with every task first."
)


def comparison(records: Iterable[Record], only: Collection[Place] | None = None) -> tuple[Table, Table, Table]:
    """The paper's accuracies beside ours, its disparities between orders beside ours, and accuracies of other settings.

    `only` are the places that are wanted; without it they are all that the paper prints.
    """
    found = lines(records, only)
    usual, others = standing(found)
    first = [line for line in others if line.row is not None and line.row["every_order"]]
    return (
        _accuracies("paper-accuracy", "Accuracy beside the paper's", USUAL_ABOUT + ACCURACY_ABOUT, usual),
        _disparities([line for line in found if any(line is one for one in (*usual, *first))]),
        _accuracies("paper-settings", "Other settings beside the paper's", OTHERS_ABOUT + ACCURACY_ABOUT, others),
    )


def standing(found: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    """The lines that stand for their methods, one each at a place, and the others."""
    groups: dict[tuple[Place, str], list[Line]] = {}
    for line in found:
        groups.setdefault((line.place, line.method), []).append(line)
    usual = []
    for some in groups.values():
        alike = [line for line in some if not line.obstacles] or some
        usual.append(alike[0] if alike[0].row is None else chosen(alike, _row))
    return usual, [line for some in groups.values() for line in some if not any(line is one for one in usual)]


def _row(line: Line) -> Row:
    assert line.row is not None, "a method that was run has no line without a row"
    return line.row


# ---- accuracy -----------------------------------------------------------------------------------------------------


def _accuracies(key: str, title: str, about: str, found: Iterable[Line]) -> Table:
    columns = (
        *ROW,
        Column("paper", "paper", 2),
        Column("paper_error", "paper ±", 2),
        Column("ours", "ours", 2),
        Column("ours_error", "±", 2, about="the usual standard error"),
        Column("difference", "difference", 2, signed=True, about="ours − paper"),
        Column("over", "± over", about="orders or seeds: what the error is over"),
        *RUNS,
        *HOW,
    )
    rows, marks = [], []
    for line in found:
        one, ours, error = line.printed, line.number("accuracy"), line.number("error_usual")
        notes = line.obstacles
        if line.row is not None and isinstance(reason := line.row["accuracy"], Undefined):
            notes = [*notes, reason.reason]
        difference = None if notes or one is None or ours is None else ours - one.accuracy
        rows.append(
            line.identity()
            | {
                "paper": None if one is None else one.accuracy,
                "paper_error": None if one is None else one.std,
                "ours": ours,
                "ours_error": error,
                "over": None if line.row is None or error is None else str(line.row["spread_over"]),
                "difference": difference,
            }
            | line.runs()
            | {"note": "; ".join([*notes, *line.remarks, *_sequential(line)]) or None}
        )
        marks.append(judged(difference, None if one is None else one.std, error))
    return Table(key, title, about, columns, tuple(rows), tuple(marks))


def judged(difference: float | None, paper_error: float | None, our_error: float | None) -> str:
    """Say whether ours is better, equal or worse; empty if it cannot be said. `ACCURACY_ABOUT` tells the rule."""
    if difference is None or paper_error is None:
        return ""
    if our_error is not None and _within(difference, math.hypot(paper_error, our_error)):
        return "equal"
    if our_error is None and _within(difference, ALONE * paper_error):
        return ""
    return "better" if difference > 0 else "worse"


def _within(difference: float, bound: float) -> bool:
    """Whether a difference is at most a bound; what the tables' sums lose in the last digits does not count."""
    return abs(difference) <= bound + 1e-9


def _sequential(line: Line) -> list[str]:
    """The paper tells the accuracies of one benchmark for the order of identities."""
    special = line.place[0] == "omniglot-rotation" and line.row is not None and line.row["orders"] != "sequential"
    return ["the paper's order is sequential"] if special and line.printed is not None else []


# ---- order robustness ---------------------------------------------------------------------------------------------


def _disparities(found: Iterable[Line]) -> Table:
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
        Column("stl_mopd", "floor MOPD", 2, about="that of stl when nothing but its draws differs"),
        Column("stl_aopd", "floor AOPD", 2, about="that of stl when nothing but its draws differs"),
        Column("all_mopd", "all orders MOPD", 2, about="exact, over every order there is"),
        Column("all_aopd", "all orders AOPD", 2, about="exact, over every order there is"),
        *RUNS,
        Column("seeds", "seeds"),
        *HOW,
    )
    rows, marks = [], []
    for line in _with_orders(list(found)):
        one, row, notes = line.printed, line.row, line.obstacles
        every = row is not None and bool(row["every_order"])
        if row is not None and not every:
            notes = notes + _lacking(row)
        cells: dict[str, Value] = {"seeds": None if row is None else len(str(row["seeds"]).split())}
        for name in ("mopd", "aopd"):
            theirs: float | None = None if one is None else getattr(one, name)
            ours = line.number(name)
            cells |= {f"{name}_paper": theirs, name: None if every else ours, f"all_{name}": ours if every else None}
            cells[f"{name}_difference"] = None if notes or every or theirs is None or ours is None else ours - theirs
            cells[f"stl_{name}"] = line.number(f"stl_{name}")
        note = "; ".join([*notes, *line.remarks]) or None
        rows.append(line.identity() | cells | line.runs() | {"note": note})
        marks.append(_steadier(cells["aopd_difference"], cells["stl_aopd"]))
    return Table(
        "paper-orders", "Order robustness beside the paper's", ORDERS_ABOUT, columns, tuple(rows), tuple(marks)
    )


def _with_orders(found: list[Line]) -> list[Line]:
    """The rows that say something of orders: of runs under one order the first, where there is nothing else."""
    chosen: list[Line] = []
    several = {(line.place, line.printed) for line in found if line.row is not None and _orders(line.row) > 1}
    for line in found:
        if not any(one.mopd is not None for one in paper.at(line.place)):
            continue
        if line.row is not None and _orders(line.row) > 1:
            chosen.append(line)
        elif line.printed is not None and (line.place, line.printed) not in several:
            several.add((line.place, line.printed))
            chosen.append(line)
    return chosen


def _lacking(row: Row) -> list[str]:
    """Why the disparity of a row cannot be compared, or is not there."""
    if isinstance(row["mopd"], Undefined):
        return [row["mopd"].reason]
    return [] if _orders(row) == ORDERS else [f"{_orders(row)} orders, not {ORDERS}"]


def _steadier(difference: Any, floor: Any) -> str:
    if difference is None or floor is None or _within(difference, floor):
        return ""
    return "better" if difference < 0 else "worse"


def _orders(row: Row) -> int:
    return STREAMS[str(row["stream"])].tasks if row["every_order"] else len(str(row["orders"]).split())
