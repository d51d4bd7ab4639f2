"""Accuracy at equal bytes: which setting of a method a size allows, and the area under accuracy against log bytes.

A setting is chosen by validation data, among those whose later tasks take no more bytes than the size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halrp.checks import is_number
from halrp.lab.records import metrics
from halrp.lab.records.frames import Frame
from halrp.lab.records.schema import Record

SIZES = (5_000, 10_000, 25_000, 50_000, 100_000, 200_000, 400_000)
"""Bytes of a task at which methods are compared."""


@dataclass(frozen=True)
class Point:
    """One method with its settings: what a task takes, and how well its tasks do."""

    method: str
    title: str
    variant: str
    bytes: float
    accuracy: float
    validation: float
    guess: float
    """The accuracy of a guess, in %."""
    finals: Mapping[tuple[int, tuple[str, int]], float]
    """Final accuracies in % by identity, and by order and seed."""
    seconds: float
    peak: float
    inferred: float
    """Accuracy in % where the task is not known; NaN if the method was not measured so."""
    identified: float
    """The share of rows in % whose task was found; NaN likewise."""


def points(groups: Frame, runs: Frame) -> list[Point]:
    """The groups of a setup that have a size, an accuracy and a validation accuracy; `runs` have the column group."""
    listed = []
    for index, group in groups.iterrows():
        mine = runs[runs["group"] == index]
        size, accuracy, validation = group["later_bytes"], group["accuracy"], mine["validation"].mean()
        if not size > 0 or math.isnan(accuracy) or math.isnan(validation):
            continue
        records: list[Record] = [*mine["record"]]
        finals = {
            (identity, (record.order, record.seed)): value
            for record in records
            for identity, value in metrics.by_identity(record.rows).items()
        }
        inferred, identified = (_last(records, name) for name in ("inferred", "identified"))
        listed.append(
            Point(
                group["method"],
                group["title"],
                group["variant"],
                float(size),
                float(accuracy),
                float(validation),
                _guess(records[0]),
                finals,
                float(group["seconds"]),
                float(group["peak_bytes"]),
                inferred,
                identified,
            )
        )
    return listed


def _guess(record: Record) -> float:
    classes = [row.get("classes") for row in record.rows]
    known = [100 / count for count in classes if is_number(count) and count]
    return sum(known) / len(known) if known else 0.0


def _last(records: Sequence[Record], name: str) -> float:
    """The mean in % of what the last rows have under a name; NaN if one of them lacks it."""
    means = []
    for record in records:
        shares: Any = record.rows[-1].get(name)
        if not isinstance(shares, list) or not shares or not all(map(is_number, shares)):
            return math.nan
        means.append(100 * sum(shares) / len(shares))
    return sum(means) / len(means)


def chosen(candidates: Iterable[Point], limit: float) -> Point | None:
    """The point of one method that validation data choose within a limit of bytes; of equals, the smaller."""
    fitting = [point for point in candidates if point.bytes <= limit]
    return max(fitting, key=lambda point: (point.validation, -point.bytes)) if fitting else None


def by_method(listed: Iterable[Point]) -> dict[str, list[Point]]:
    """The points of each method."""
    methods: dict[str, list[Point]] = {}
    for point in listed:
        methods.setdefault(point.method, []).append(point)
    return methods


def area(candidates: Sequence[Point], lowest: float = SIZES[0], highest: float = SIZES[-1]) -> float:
    """The mean of accuracy over the logarithm of bytes between two sizes.

    At each size the accuracy is that of the chosen point, and that of a guess where none is small enough.
    """
    steps = sorted({lowest, highest, *(p.bytes for p in candidates if lowest < p.bytes < highest)})
    total = 0.0
    for start, end in itertools.pairwise(steps):
        point = chosen(candidates, start)
        total += (candidates[0].guess if point is None else point.accuracy) * math.log(end / start)
    return total / math.log(highest / lowest)
