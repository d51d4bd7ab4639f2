"""Figures of time and memory over the stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from halrp.lab.records import metrics
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.grouped import MAIN, Array, Group, Grouped, Measured, Place, any_known, figure_of, rounded


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of time and memory for which there are records."""
    found = (time(grouped), memory(grouped))
    return tuple(figure for figure in found if figure is not None)


def time(grouped: Grouped) -> Figure | None:
    """Seconds of each task and of all tasks so far, as multiples of those of the first task of `stl`."""

    def ratios(one: Measured, cumulative: bool) -> Array:
        try:
            times = metrics.time_ratios(one.column("seconds"), one.row["time_unit"])
        except UndefinedMetric:
            return np.full(one.run.tasks, np.nan)
        return np.array(times.cumulative if cumulative else times.per_task)

    plots: dict[str, Plot] = {}
    for place in grouped.places:
        for cumulative, title in ((False, "each task"), (True, "all tasks so far")):
            y = f"time of {title}, in first tasks of stl"
            series = _lines(place, lambda group, c=cumulative: group.mean(ratios(one, c) for one in group.runs))  # type: ignore[misc]
            if series:
                plots[f"{place.label} · {title}"] = Chart("lines", Axis("task"), Axis(y, zero=True), series)
    return figure_of(
        "time",
        "Time over the stream",
        "The seconds that learning took, divided by those in which `stl` learns its first task with as many epochs on "
        "such a machine; a mean over orders and seeds. Methods that learn all tasks at once spend it all at the end."
        + MAIN,
        plots,
    )


def memory(grouped: Grouped) -> Figure | None:
    """The most memory that was in use while each task was learned."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        series = _lines(place, lambda group: np.max([one.column("peak_bytes") / 1e6 for one in group.runs], axis=0), 1)
        if series:
            axes = Axis("task"), Axis("peak of memory in MB", zero=True)
            plots[place.label] = Chart("lines", *axes, series)
    return figure_of(
        "memory",
        "Peak of memory over the stream",
        "The most memory, in millions of bytes, that was in use while each task was learned: the highest of all "
        "orders and seeds. On a CPU it is that of the whole process, program and data included." + MAIN,
        plots,
    )


def _lines(place: Place, find: Callable[[Group], Array], digits: int = 3) -> tuple[Series, ...]:
    """A line over positions for each group that has one."""
    found = []
    for group in place.main:
        y = rounded(find(group), digits)
        if any_known(y):
            notes = (group.repeats,) * len(y)
            found.append(Series(group.name, place.positions, y, notes=notes, method=group.method))
    return tuple(found)
