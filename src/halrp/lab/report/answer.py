"""Which method, how large, how sure: the first section of a report on pretrained backbones."""

from __future__ import annotations

import math

from halrp.lab import registry
from halrp.lab.records import by_size, paired
from halrp.lab.records.by_size import SIZES, Point
from halrp.lab.report.study import Study
from halrp.lab.report.table import Column, Table, plain_rows

OURS = "halrp"
"""The method that others are compared with."""

SIZE_COLUMNS = (
    Column("benchmark", "benchmark", filters=True),
    Column("size", "KB", about="most bytes of a task, in thousands", filters=True),
    Column("method", "method", filters=True),
    Column("variant", "settings", about="those that validation data chose within the size"),
    Column("bytes", "bytes", 0, about="what a later task takes"),
    Column("accuracy", "accuracy %", 1, about="mean over tasks, orders and seeds"),
    Column("difference", "− HALRP", 1, True, "mean difference over the tasks, orders and seeds of both"),
    Column("error", "±", 1, about="its standard error over tasks"),
    Column("p", "p", 3, about="sign flips of the tasks' mean differences, corrected by Holm's rule at each size"),
    Column("verdict", "against HALRP", filters=True),
)
METHOD_COLUMNS = (
    Column("benchmark", "benchmark", filters=True),
    Column("method", "method", filters=True),
    Column("variant", "settings", about="those that validation data chose at any size"),
    Column("bytes", "bytes", 0, about="what a later task takes"),
    Column("accuracy", "accuracy %", 1, about="where the task is known"),
    Column("area", "area", 1, about="mean accuracy over the logarithm of bytes from 5 to 400 KB"),
    Column("inferred", "task inferred %", 1, about="accuracy where the task is not known"),
    Column("identified", "task found %", 1, about="share of examples whose task was identified"),
    Column("seconds", "seconds", 1, about="of all tasks of a run; features from a cache count"),
    Column("peak", "peak MB", 0, about="the highest memory of the process, in 10⁶ bytes"),
)


def tables(study: Study) -> tuple[Table, ...]:
    """Both tables; none if no pretrained backbone was run."""
    setups = {
        label: by_size.points(groups, study.runs)
        for label, groups in study.setups.items()
        if is_pretrained(str(groups["backbone"].iloc[0]))
    }
    setups = {label: listed for label, listed in setups.items() if listed}
    return (at_sizes(setups), of_methods(setups)) if setups else ()


def is_pretrained(backbone: str) -> bool:
    """Whether a backbone of the registry or of a library is pretrained; a user's own code is not imported."""
    entry = registry.BACKBONES.get(backbone)
    return backbone.partition(":")[0] in registry.LIBRARIES if entry is None else entry.pretrained


def at_sizes(setups: dict[str, list[Point]]) -> Table:
    """The best methods first, at each size."""
    rows: list[dict[str, object]] = []
    for label, listed in setups.items():
        before: list[Point] = []
        for size in SIZES:
            best = [by_size.chosen(candidates, size) for candidates in by_size.by_method(listed).values()]
            here = sorted((point for point in best if point is not None), key=lambda point: -point.accuracy)
            if here and here != before:
                rows += [{"benchmark": label, "size": size // 1000} | row for row in _compared(here)]
            before = here
    about = (
        "For each size the setting of every method that validation data choose among those that fit, and what a paired "
        "permutation test says of its difference to HALRP: better, not distinguishable, or worse. Sizes at which "
        "nothing changes are left out."
    )
    return Table("sizes", "Which method at which size", about, SIZE_COLUMNS, plain_rows(rows))


def _compared(here: list[Point]) -> list[dict[str, object]]:
    """Rows of the methods at one size, compared with ours if it is there."""
    ours = next((point for point in here if point.method == OURS), None)
    rivals = [p for p in here if ours is not None and p is not ours and p.finals.keys() & ours.finals.keys()]
    tests = {id(p): paired.compare(p.finals, ours.finals) for p in rivals if ours is not None}
    sure = dict(zip(tests, paired.corrected([test.p for test in tests.values()]), strict=True))
    rows: list[dict[str, object]] = []
    for point in here:
        row: dict[str, object] = {"method": point.title, "variant": point.variant or None}
        row |= {"bytes": point.bytes, "accuracy": point.accuracy}
        row |= dict.fromkeys(("difference", "error", "p", "verdict"))
        if id(point) in tests:
            test, p = tests[id(point)], sure[id(point)]
            row |= {"difference": test.difference, "error": test.error, "p": p}
            row["verdict"] = paired.verdict(test.difference, p)
        rows.append(row)
    return rows


def of_methods(setups: dict[str, list[Point]]) -> Table:
    """One row for each method, with what validation data choose at any size."""
    rows: list[dict[str, object]] = []
    for label, listed in setups.items():
        for candidates in by_size.by_method(listed).values():
            point = by_size.chosen(candidates, math.inf)
            assert point is not None, "there is a point without a limit"
            row: dict[str, object] = {"benchmark": label}
            row |= {"method": point.title, "variant": point.variant or None, "bytes": point.bytes}
            row |= {"accuracy": point.accuracy, "area": by_size.area(candidates)}
            row |= {"inferred": point.inferred, "identified": point.identified}
            rows.append(row | {"seconds": point.seconds, "peak": point.peak / 1e6})
    about = (
        "The setting of each method that validation data choose, whatever its size, with the task known and inferred, "
        "and the area under accuracy against the logarithm of bytes, where a method that has nothing as small guesses."
    )
    return Table("methods", "Methods on pretrained networks", about, METHOD_COLUMNS, plain_rows(rows))
