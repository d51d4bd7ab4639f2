"""Figures of accuracy: matrices, the way through the stream, forgetting, disparity between orders, and the paper's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.grouped import (
    MAIN,
    Array,
    Group,
    Grouped,
    Measured,
    Place,
    any_known,
    figure_of,
    rounded,
    run_label,
)
from halrp.lab.report.heat_map import HeatMap


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of accuracy for which there are records."""
    found = (
        final_accuracy(grouped),
        over_stream(grouped),
        forgetting(grouped),
        order_disparity(grouped),
        accuracy_matrix(grouped),
    )
    return tuple(figure for figure in found if figure is not None)


def accuracy_matrix(grouped: Grouped) -> Figure | None:
    """The accuracy of every task after each task, a heat map for each run."""
    plots: dict[str, Plot] = {}
    for place, group, one in grouped.each():
        names = one.names()
        told = [i for i in range(len(names)) if np.isfinite(one.matrix[i]).any()]
        if told:
            plots[run_label(place, group, one)] = HeatMap(
                Axis("task"),
                Axis("after task"),
                names,
                tuple(names[i] for i in told),
                tuple(rounded(one.matrix[i].tolist()) for i in told),
                "accuracy in %",
            )
    return figure_of(
        "accuracy-matrix",
        "Accuracy of every task after each task",
        "A row is a moment of the stream, a column a task: where a column becomes worse downwards, the task was "
        "forgotten. Methods that learn all tasks at once have only the last row.",
        plots,
    )


def over_stream(grouped: Grouped) -> Figure | None:
    """The average accuracy of the tasks seen so far, after each task."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        series = []
        for group in place.main:
            averages = [_seen(one) for one in group.runs]
            y = rounded(group.mean(averages))
            if any_known(y):
                low, high = np.min(averages, axis=0), np.max(averages, axis=0)
                notes = tuple(_range(group, *ends) for ends in zip(low, high, strict=True))
                series.append(Series(group.name, place.positions, y, notes=notes, method=group.method))
        if series:
            axes = Axis("tasks learned"), Axis("average accuracy in %")
            plots[place.label] = Chart("lines", *axes, tuple(series))
    return figure_of(
        "accuracy-over-stream",
        "Accuracy over the stream",
        "The average test accuracy of the tasks seen so far after each task, a mean over orders and seeds." + MAIN,
        plots,
    )


def forgetting(grouped: Grouped) -> Figure | None:
    """Backward transfer by order and method."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        orders = tuple(dict.fromkeys(one.run.order for group in place.main for one in group.runs))
        series = []
        for group in place.main:
            by_order: dict[str, list[float]] = {}
            for one in group.runs:
                value = one.row["bwt"]
                by_order.setdefault(one.run.order, []).append(value if isinstance(value, float) else np.nan)
            y = rounded(float(np.mean(by_order[order])) if order in by_order else None for order in orders)
            if any_known(y):
                series.append(Series(group.name, orders, y, method=group.method))
        if series:
            axes = Axis("order"), Axis("backward transfer in points", zero=True)
            plots[place.label] = Chart("bars", *axes, tuple(series))
    return figure_of(
        "forgetting",
        "Forgetting",
        "Backward transfer: how much the accuracy of a task has changed, on average, from when it was learned to the "
        "end of the stream. Below zero is forgotten; exactly zero means that learned tasks never change. A mean over "
        "seeds for each order." + MAIN,
        plots,
    )


def order_disparity(grouped: Grouped) -> Figure | None:
    """Disparity between orders by method, beside the noise of training alone, all orders and the paper's."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        for name, largest in (("mopd", "the largest"), ("aopd", "the mean")):
            if series := _disparities(place, name):
                axes = Axis("method"), Axis(f"{name.upper()} in points: {largest} over tasks", zero=True)
                plots[f"{place.label} · {name.upper()}"] = Chart("bars", *axes, tuple(series))
    return figure_of(
        "order-disparity",
        "Disparity between orders",
        "How far a task's final accuracy differs between orders (OPD): MOPD is the largest over tasks, AOPD the mean. "
        "The noise floor is that of separate networks whose random draws alone differ, under the very same orders and "
        "seeds. Where every task came first once, and only the first one matters, the value is exact for all orders."
        + MAIN,
        plots,
    )


def final_accuracy(grouped: Grouped) -> Figure | None:
    """Accuracy at the end of the stream by method, beside the paper's."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        groups = [group for group in place.main if group.number("accuracy") is not None]
        if not groups:
            continue
        names = tuple(group.name for group in groups)
        printed = [place.printed(group.method) for group in groups]
        series = [
            Series(
                "ours",
                names,
                rounded(group.number("accuracy") for group in groups),
                rounded(group.number("error_usual") for group in groups),
                tuple(_spread(group) for group in groups),
            )
        ]
        if any(one is not None for one in printed):
            y = rounded(None if one is None else one.accuracy for one in printed)
            error = rounded(None if one is None else one.std for one in printed)
            series.append(Series("paper", names, y, error, dashed=True))
        axes = Axis("method"), Axis("average accuracy in %", zero=True)
        plots[place.label] = Chart("bars", *axes, tuple(series))
    return figure_of(
        "final-accuracy",
        "Accuracy at the end of the stream",
        "The average test accuracy of all tasks after the last one, a mean over orders and seeds with its standard "
        "error; dashed is what the paper says." + MAIN,
        plots,
    )


def _seen(one: Measured) -> Array:
    """The average accuracy of the tasks seen so far: (tasks,), NaN where one of them was not told."""
    return np.array([one.matrix[i, : i + 1].mean() for i in range(one.run.tasks)])


def _range(group: Group, low: float, high: float) -> str:
    return f"{group.repeats}, {low:.1f} to {high:.1f}" if len(group.runs) > 1 and low <= high else group.repeats


def _spread(group: Group) -> str:
    over = group.row["spread_over"]
    return f"{group.repeats}, standard error over {over}" if isinstance(over, str) else group.repeats


def _disparities(place: Place, name: str) -> list[Series]:
    """The bars of one of the two disparities."""
    exact = {group.name: group for group in place.groups if group.row["every_order"] is True}
    usual = {group.name: group for group in place.main if group.row["every_order"] is not True}
    names = tuple(
        n for n in dict.fromkeys(g.name for g in place.groups) if _has(usual.get(n), name) or _has(exact.get(n), name)
    )
    methods = {group.name: group.method for group in place.groups}

    def bars(title: str, groups: dict[str, Group], column: str, dashed: bool = False) -> Series:
        numbers = (groups[n].number(column) if n in groups else None for n in names)
        notes = tuple(groups[n].repeats if n in groups else "" for n in names)
        return Series(title, names, rounded(numbers), notes=notes, dashed=dashed)

    printed = [place.printed(methods[n]) for n in names]
    paper = rounded(None if one is None else getattr(one, name) for one in printed)
    found: Iterable[Series] = (
        bars("orders run", usual, name),
        bars("orders run: noise floor", usual, f"stl_{name}", dashed=True),
        bars("all orders", exact, name),
        bars("all orders: noise floor", exact, f"stl_{name}", dashed=True),
        Series("paper", names, paper, dashed=True),
    )
    return [series for series in found if any_known(series.y)]


def _has(group: Group | None, name: str) -> bool:
    return group is not None and group.number(name) is not None
