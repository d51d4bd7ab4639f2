"""Figures of ablations: the effect of changing one setting, or two, with all else equal. Records show which there are.

Groups of a method in a setup are compared on the orders and seeds that all of them were run with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from halrp.lab.records import metrics
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.records.schema import as_text
from halrp.lab.report import paper
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.grouped import Group, Grouped, Measured, SetupGroups, any_known, figure_of, is_number, rounded
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.paper import Ablated

FEWEST = 3
"""Fewest values of a setting that are shown."""
FILLED = 2 / 3
"""Smallest share of a grid of two settings that is shown."""
WIDE = 30
"""How far apart values have to be, as a ratio, for a logarithmic axis."""
PARTS = ("halrp-official", "lrp", "random-lrp")
SHARED = " All values are compared on the same orders and seeds."


@dataclass(frozen=True)
class Compared:
    """A group, with those of its runs that are compared."""

    group: Group
    runs: tuple[Measured, ...]

    def accuracy(self) -> tuple[float | None, float | None]:
        """The mean final accuracy on test data in %, and its standard error."""
        return _mean([_number(entry.row["accuracy"]) for entry in self.runs])

    def validation(self) -> float | None:
        """The mean final accuracy on validation data in %; None if a record lacks it."""
        finals = [entry.run.rows[-1].get("val") or [None] for entry in self.runs]
        return _mean([100 * float(np.mean(final)) if all(map(is_number, final)) else None for final in finals])[0]


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All ablations for which there are records."""
    candidates = (numbers(grouped), names(grouped), grids(grouped), parts(grouped))
    return tuple(figure for figure in candidates if figure is not None)


def numbers(grouped: Grouped) -> Figure | None:
    """Accuracy against one numeric setting."""
    plots: dict[str, Plot] = {}
    for setup, label, key, groups in _single(grouped):
        compared = _compared([group for group in groups if is_number(group.values.get(key))])
        if _count(compared, key) >= FEWEST:
            ordered = sorted(compared, key=lambda entry: float(entry.group.values[key]))
            x = tuple(float(f"{entry.group.values[key]:.6g}") for entry in ordered)
            log = x[0] > 0 and x[-1] / x[0] >= WIDE
            axes = Axis(key, log=log), Axis("average accuracy in %")
            if series := _test_and_validation(ordered, x):
                plots[label] = Chart("lines", *axes, (*series, *_printed_values(setup, key, ordered[0].group)))
    return figure_of(
        "ablation-numbers",
        "One setting, a number",
        "The average accuracy at the end of the stream with different values of one setting and all else equal; "
        "dashed is the accuracy on validation data, by which a setting may be chosen. Where the paper "
        "has an ablation, its values are shown too." + SHARED,
        plots,
    )


def names(grouped: Grouped) -> Figure | None:
    """Accuracy for every value of one setting that is not a number."""
    plots: dict[str, Plot] = {}
    for _, label, key, groups in _single(grouped):
        known = [group for group in groups if key in group.values]
        if len({_value(group, key) for group in known if is_number(group.values[key])}) >= FEWEST:
            continue  # shown as a line
        compared = _compared(known)
        if _count(compared, key) >= FEWEST:
            axes = Axis(key), Axis("average accuracy in %", zero=True)
            if series := _test_and_validation(compared, tuple(_value(entry.group, key) for entry in compared)):
                plots[label] = Chart("bars", *axes, series)
    return figure_of(
        "ablation-names",
        "One setting, a choice",
        "The average accuracy at the end of the stream for every choice of one setting, with all else equal; dashed "
        "is the accuracy on validation data." + SHARED,
        plots,
    )


def grids(grouped: Grouped) -> Figure | None:
    """Accuracy over two settings."""
    plots: dict[str, Plot] = {}
    for _, label, keys, groups in _alike(grouped, 2):
        compared = _compared([group for group in groups if all(key in group.values for key in keys)])
        sides = [_sorted({_value(entry.group, key): entry.group.values[key] for entry in compared}) for key in keys]
        if min(map(len, sides)) < 2 or max(map(len, sides)) < FEWEST:
            continue
        accuracies = {tuple(_value(entry.group, key) for key in keys): entry.accuracy()[0] for entry in compared}
        if len(accuracies) >= FILLED * len(sides[0]) * len(sides[1]) and any_known(accuracies.values()):
            values = tuple(rounded(accuracies.get((row, column)) for column in sides[1]) for row in sides[0])
            axes = Axis(keys[1]), Axis(keys[0])
            plots[label] = HeatMap(*axes, sides[1], sides[0], values, "average accuracy in %")
    return figure_of(
        "ablation-grids",
        "Two settings",
        "The average accuracy at the end of the stream over two settings, with all else equal." + SHARED,
        plots,
    )


def parts(grouped: Grouped) -> Figure | None:
    """HALRP as released beside LRP and Random LRP, each of which leaves out one of its parts."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        compared = _compared([group for group in setup.main if group.method in PARTS])
        methods = {entry.group.method for entry in compared}
        if PARTS[0] not in methods or len(methods) < 2:
            continue
        x = tuple(entry.group.name for entry in compared)
        series = _test_and_validation(compared, x, validation=False)
        if series:
            beside = rounded(_printed_part(setup, entry.group) for entry in compared)
            both = (*series, Series("paper", x, beside, dashed=True)) if any_known(beside) else series
            axes = Axis("method"), Axis("average accuracy in %", zero=True)
            plots[setup.label] = Chart("bars", *axes, both)
    return figure_of(
        "ablation-parts",
        "Without importance, without the SVD",
        "LRP gives every layer the same rank, Random LRP begins with random factors; all else is as in halrp-official. "
        "Dashed is the paper's result." + SHARED,
        plots,
    )


def _single(grouped: Grouped) -> Iterator[tuple[SetupGroups, str, str, list[Group]]]:
    for setup, label, keys, groups in _alike(grouped, 1):
        yield setup, label, keys[0], groups


def _alike(grouped: Grouped, free: int) -> Iterator[tuple[SetupGroups, str, tuple[str, ...], list[Group]]]:
    """Groups of a method in a setup that differ in `free` settings and in nothing else, with a label and their keys."""
    for setup in grouped.setups:
        by_method: dict[tuple[str, bool], list[Group]] = {}
        for group in setup.groups:
            by_method.setdefault((group.method, group.shows_first), []).append(group)
        for (method, first), groups in by_method.items():
            if len(groups) < FEWEST:
                continue
            known = sorted({key for group in groups for key in group.values})
            varied = [key for key in known if len({_value(group, key) for group in groups}) > 1]
            for keys in combinations(varied, free):
                buckets: dict[str, list[Group]] = {}
                for group in groups:
                    rest = {key: group.values[key] for key in varied if key not in keys and key in group.values}
                    buckets.setdefault(as_text(rest), []).append(group)
                for bucket in buckets.values():
                    if len(bucket) >= FEWEST:
                        label = f"{setup.label} · {method} · {' × '.join(keys)}" + " · orders first-K" * first
                        changed = _changed(bucket[0], set(varied).difference(keys))
                        yield setup, label + (f" ({changed})" if len(buckets) > 1 else ""), keys, bucket


def _changed(group: Group, keys: Iterable[str]) -> str:
    """Those of some settings that are not the defaults of today."""
    given = {**group.runs[0].run.recipe, **group.runs[0].run.settings}
    return as_text({key: given[key] for key in keys if key in given}) or "all else default"


def _compared(groups: Sequence[Group]) -> tuple[Compared, ...]:
    """As many groups as possible that share an order and seed, with all their runs of orders and seeds they share."""
    having: dict[tuple[str, int], set[int]] = {}
    for i, group in enumerate(groups):
        for entry in group.runs:
            having.setdefault(entry.pair, set()).add(i)
    if not having:
        return ()
    chosen = max(having.values(), key=len)
    pairs = {pair for pair, members in having.items() if members >= chosen}
    return tuple(
        Compared(groups[i], tuple(entry for entry in groups[i].runs if entry.pair in pairs)) for i in sorted(chosen)
    )


def _count(compared: Iterable[Compared], key: str) -> int:
    return len({_value(entry.group, key) for entry in compared})


def _test_and_validation(
    compared: Sequence[Compared], x: tuple[Any, ...], validation: bool = True
) -> tuple[Series, ...]:
    """The series of a chart, none if no accuracy is known."""
    y, error = zip(*(entry.accuracy() for entry in compared), strict=True)
    notes = tuple(f"{len(entry.runs)} run{'s' * (len(entry.runs) > 1)}" for entry in compared)
    method = compared[0].group.method if validation else ""
    series = [Series("test", x, rounded(y), rounded(error), notes, method)]
    if validation:
        series.append(
            Series("validation", x, rounded(entry.validation() for entry in compared), (), notes, method, True)
        )
    return tuple(entry for entry in series if any_known(entry.y))


def _ablated(setup: SetupGroups, method: str) -> list[Ablated]:
    """The rows of the paper's ablation, which is on all data, that can be compared with a method of ours in a setup."""
    if not setup.whole or setup.run.fraction != 1:
        return []
    here = setup.run.stream, setup.run.backbone
    return [row for row in paper.ablation() if (row.stream, row.backbone) == here and method in row.ours]


def _printed_values(setup: SetupGroups, key: str, group: Group) -> tuple[Series, ...]:
    """The paper's ablation of one setting, where the other is that of a group."""
    rows = _ablated(setup, group.method)
    if key == "rate":
        by_value = {row.alpha: row for row in rows if row.n_r == group.values.get("warm_up")}
    elif key == "warm_up":
        by_value = {row.n_r: row for row in rows if row.alpha == group.values.get("rate")}
    else:
        return ()
    known = sorted(((x, row) for x, row in by_value.items() if x is not None), key=lambda entry: entry[0])
    if not known:
        return ()
    x, y, error = zip(*((x, row.accuracy, row.std) for x, row in known), strict=True)
    return (Series("paper", x, rounded(y), rounded(error), dashed=True),)


def _printed_part(setup: SetupGroups, group: Group) -> float | None:
    """What the paper prints for HALRP, or for one of its ablations."""
    if (printed := setup.printed(group.method)) is not None:
        return printed.accuracy
    return next((row.accuracy for row in _ablated(setup, group.method) if row.alpha is None), None)


def _mean(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    try:
        if len(known) < len(values):
            return None, None
        return metrics.mean(known), metrics.standard_error(known) if len(known) > 1 else None
    except UndefinedMetric:
        return None, None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _value(group: Group, key: str) -> str:
    """A setting of a group as a text that is equal when the values are."""
    if key not in group.values:
        return "unknown"
    value = group.values[key]
    return "none" if value is None else as_text({"": float(value) if is_number(value) else value}).removeprefix("=")


def _sorted(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts of values: numbers first, by size, then the others as they came."""
    return tuple(sorted(values, key=lambda entry: (0, float(values[entry])) if is_number(values[entry]) else (1, 0.0)))
