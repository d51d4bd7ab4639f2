"""Figures of time and memory over the stream."""

from __future__ import annotations

from functools import partial

from halrp.lab.report.figure import Axis, Figure
from halrp.lab.report.shapes import REPRESENTED, figure_of, lines_over_stream, present, rounded
from halrp.lab.report.study import Study

TIMES = {"time_ratio": "each task", "time_so_far": "all tasks so far"}


def figures(study: Study) -> tuple[Figure, ...]:
    """All figures of time and memory for which there are records."""
    return present(time(study), memory(study))


def time(study: Study) -> Figure | None:
    """Seconds of each task and of all tasks so far, as multiples of those of the first task of `stl`."""
    charts = {}
    for column, title in TIMES.items():
        axes = Axis("task"), Axis(f"time of {title}, in first tasks of stl", zero=True)
        charts[title] = lines_over_stream(study, study.steps[column], axes, partial(rounded, digits=3))
    return figure_of(
        "time",
        "Time over the stream",
        "The seconds that learning took, divided by those of the first task of `stl` with as many epochs on the same "
        "kind of machine; a mean over orders and seeds. Methods that learn all tasks at once spend it all at the end."
        + REPRESENTED,
        {f"{setup} · {title}": charts[title][setup] for setup in study.setups for title in charts},
    )


def memory(study: Study) -> Figure | None:
    """The most memory that was in use while each task was learned."""
    axes = Axis("task"), Axis("peak memory in MB", zero=True)
    return figure_of(
        "memory",
        "Peak memory over the stream",
        "The most memory, in millions of bytes, that was in use while each task was learned: the highest of all "
        "orders and seeds. On a CPU it is that of the whole process, program and data included." + REPRESENTED,
        lines_over_stream(study, study.steps["peak_bytes"] / 1e6, axes, partial(rounded, digits=1), "max"),
    )
