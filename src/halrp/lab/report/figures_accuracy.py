"""Figures of accuracy: final, over the stream, by task, forgetting, and disparity between orders."""

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
    SetupGroups,
    any_known,
    figure_of,
    rounded,
    run_label,
)
from halrp.lab.report.heat_map import HeatMap


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of accuracy for which there are records."""
    candidates = (
        final_accuracy(grouped),
        over_stream(grouped),
        forgetting(grouped),
        order_disparity(grouped),
        accuracy_matrix(grouped),
    )
    return tuple(figure for figure in candidates if figure is not None)


def accuracy_matrix(grouped: Grouped) -> Figure | None:
    """The accuracy of every task after each task, a heat map for each run."""
    plots: dict[str, Plot] = {}
    for setup, group, measured in grouped.each():
        names = measured.names()
        known = [i for i in range(len(names)) if np.isfinite(measured.matrix[i]).any()]
        if known:
            plots[run_label(setup, group, measured)] = HeatMap(
                Axis("task"),
                Axis("after task"),
                names,
                tuple(names[i] for i in known),
                tuple(rounded(measured.matrix[i].tolist()) for i in known),
                "accuracy in %",
            )
    return figure_of(
        "accuracy-matrix",
        "Accuracy of every task after each task",
        "A row is a point of the stream, a column a task: where the values of a column fall from top to bottom, the "
        "task was forgotten. Methods that learn all tasks at once have only the last row.",
        plots,
    )


def over_stream(grouped: Grouped) -> Figure | None:
    """The average accuracy of the tasks seen so far, after each task."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        series = []
        for group in setup.main:
            averages = [_seen(measured) for measured in group.runs]
            y = rounded(group.mean(averages))
            if any_known(y):
                low, high = np.min(averages, axis=0), np.max(averages, axis=0)
                notes = tuple(_range(group, *ends) for ends in zip(low, high, strict=True))
                series.append(Series(group.name, setup.positions, y, notes=notes, method=group.method))
        if series:
            axes = Axis("tasks learned"), Axis("average accuracy in %")
            plots[setup.label] = Chart("lines", *axes, tuple(series))
    return figure_of(
        "accuracy-over-stream",
        "Accuracy over the stream",
        "The average test accuracy of the tasks seen so far after each task, a mean over orders and seeds." + MAIN,
        plots,
    )


def forgetting(grouped: Grouped) -> Figure | None:
    """Backward transfer by order and method."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        orders = tuple(dict.fromkeys(measured.run.order for group in setup.main for measured in group.runs))
        series = []
        for group in setup.main:
            by_order: dict[str, list[float]] = {}
            for measured in group.runs:
                value = measured.row["bwt"]
                by_order.setdefault(measured.run.order, []).append(value if isinstance(value, float) else np.nan)
            y = rounded(float(np.mean(by_order[order])) if order in by_order else None for order in orders)
            if any_known(y):
                series.append(Series(group.name, orders, y, method=group.method))
        if series:
            axes = Axis("order"), Axis("backward transfer in points", zero=True)
            plots[setup.label] = Chart("bars", *axes, tuple(series))
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
    for setup in grouped.setups:
        for name, largest in (("mopd", "the largest"), ("aopd", "the mean")):
            if series := _disparities(setup, name):
                axes = Axis("method"), Axis(f"{name.upper()} in points: {largest} over tasks", zero=True)
                plots[f"{setup.label} · {name.upper()}"] = Chart("bars", *axes, tuple(series))
    return figure_of(
        "order-disparity",
        "Disparity between orders",
        "How far a task's final accuracy differs between orders (OPD): MOPD is the largest over tasks, AOPD "
        "the mean. The noise floor is that of separate networks that differ in their random seeding alone, "
        "under the same orders and seeds. Where every task came first once, and results depend on the first "
        "task alone, the value is exact for all orders." + MAIN,
        plots,
    )


def final_accuracy(grouped: Grouped) -> Figure | None:
    """Accuracy at the end of the stream by method, beside the paper's."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        groups = [group for group in setup.main if group.number("accuracy") is not None]
        if not groups:
            continue
        names = tuple(group.name for group in groups)
        printed = [setup.printed(group.method) for group in groups]
        series = [
            Series(
                "ours",
                names,
                rounded(group.number("accuracy") for group in groups),
                rounded(group.number("error_usual") for group in groups),
                tuple(_spread(group) for group in groups),
            )
        ]
        if any(entry is not None for entry in printed):
            y = rounded(None if entry is None else entry.accuracy for entry in printed)
            error = rounded(None if entry is None else entry.std for entry in printed)
            series.append(Series("paper", names, y, error, dashed=True))
        axes = Axis("method"), Axis("average accuracy in %", zero=True)
        plots[setup.label] = Chart("bars", *axes, tuple(series))
    return figure_of(
        "final-accuracy",
        "Accuracy at the end of the stream",
        "The average test accuracy of all tasks after the last one, a mean over orders and seeds with its standard "
        "error; dashed is the paper's result." + MAIN,
        plots,
    )


def _seen(measured: Measured) -> Array:
    """The average accuracy of the tasks seen so far: (tasks,), NaN where one of them was not measured."""
    return np.array([measured.matrix[i, : i + 1].mean() for i in range(measured.run.tasks)])


def _range(group: Group, low: float, high: float) -> str:
    return f"{group.repeats}, {low:.1f} to {high:.1f}" if len(group.runs) > 1 and low <= high else group.repeats


def _spread(group: Group) -> str:
    over = group.row["spread_over"]
    return f"{group.repeats}, standard error over {over}" if isinstance(over, str) else group.repeats


def _disparities(setup: SetupGroups, name: str) -> list[Series]:
    """The bars of one of the two disparities."""
    exact = {group.name: group for group in setup.groups if group.row["every_order"] is True}
    representative = {group.name: group for group in setup.main if group.row["every_order"] is not True}
    names = tuple(
        n
        for n in dict.fromkeys(g.name for g in setup.groups)
        if _has(representative.get(n), name) or _has(exact.get(n), name)
    )
    methods = {group.name: group.method for group in setup.groups}

    def bars(title: str, groups: dict[str, Group], column: str, dashed: bool = False) -> Series:
        numbers = (groups[n].number(column) if n in groups else None for n in names)
        notes = tuple(groups[n].repeats if n in groups else "" for n in names)
        return Series(title, names, rounded(numbers), notes=notes, dashed=dashed)

    printed = [setup.printed(methods[n]) for n in names]
    paper = rounded(None if entry is None else getattr(entry, name) for entry in printed)
    candidates: Iterable[Series] = (
        bars("orders run", representative, name),
        bars("orders run: noise floor", representative, f"stl_{name}", dashed=True),
        bars("all orders", exact, name),
        bars("all orders: noise floor", exact, f"stl_{name}", dashed=True),
        Series("paper", names, paper, dashed=True),
    )
    return [series for series in candidates if any_known(series.y)]


def _has(group: Group | None, name: str) -> bool:
    return group is not None and group.number(name) is not None
