"""Figures of time and memory over the stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from halrp.lab.records import metrics
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.grouped import MAIN, Array, Group, Grouped, Measured, SetupGroups, any_known, figure_of, rounded


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of time and memory for which there are records."""
    candidates = (time(grouped), memory(grouped))
    return tuple(figure for figure in candidates if figure is not None)


def time(grouped: Grouped) -> Figure | None:
    """Seconds of each task and of all tasks so far, as multiples of those of the first task of `stl`."""

    def ratios(measured: Measured, cumulative: bool) -> Array:
        try:
            times = metrics.time_ratios(measured.column("seconds"), measured.row["time_unit"])
        except UndefinedMetric:
            return np.full(measured.run.tasks, np.nan)
        return np.array(times.cumulative if cumulative else times.per_task)

    def mean(cumulative: bool, group: Group) -> Array:
        return group.mean(ratios(measured, cumulative) for measured in group.runs)

    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        for cumulative, title in ((False, "each task"), (True, "all tasks so far")):
            y = f"time of {title}, in first tasks of stl"
            series = _lines(setup, partial(mean, cumulative))
            if series:
                plots[f"{setup.label} · {title}"] = Chart("lines", Axis("task"), Axis(y, zero=True), series)
    return figure_of(
        "time",
        "Time over the stream",
        "The seconds that learning took, divided by those of the first task of `stl` with as many epochs on the same "
        "kind of machine; a mean over orders and seeds. Methods that learn all tasks at once spend it all at the end."
        + MAIN,
        plots,
    )


def memory(grouped: Grouped) -> Figure | None:
    """The most memory that was in use while each task was learned."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        series = _lines(
            setup, lambda group: np.max([measured.column("peak_bytes") / 1e6 for measured in group.runs], axis=0), 1
        )
        if series:
            axes = Axis("task"), Axis("peak memory in MB", zero=True)
            plots[setup.label] = Chart("lines", *axes, series)
    return figure_of(
        "memory",
        "Peak memory over the stream",
        "The most memory, in millions of bytes, that was in use while each task was learned: the highest of all "
        "orders and seeds. On a CPU it is that of the whole process, program and data included." + MAIN,
        plots,
    )


def _lines(setup: SetupGroups, find: Callable[[Group], Array], digits: int = 3) -> tuple[Series, ...]:
    """A line over positions for each group that has one."""
    lines = []
    for group in setup.main:
        y = rounded(find(group), digits)
        if any_known(y):
            notes = (group.repeats,) * len(y)
            lines.append(Series(group.name, setup.positions, y, notes=notes, method=group.method))
    return tuple(lines)
