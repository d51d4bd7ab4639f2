"""Shapes that several figures share: a line per method over the stream, bars by method, a heat map per run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from halrp.lab.records.frames import Frame
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.study import Study

REPRESENTED = (
    " Of several settings of a method, those of the benchmark's preset are shown, or else those with the most runs."
)
"""Part of the text of figures that show representatives of methods."""


def figure_of(key: str, title: str, about: str, plots: Mapping[str, Plot | None]) -> Figure | None:
    """A figure of the plots that there are, unless there is nothing to draw."""
    drawn = {label: plot for label, plot in plots.items() if plot is not None}
    return Figure(key, title, about, drawn) if drawn else None


def present(*figures: Figure | None) -> tuple[Figure, ...]:
    """The figures that have something to draw."""
    return tuple(figure for figure in figures if figure is not None)


def chart(kind: Literal["lines", "bars", "points"], x: Axis, y: Axis, series: Iterable[Series]) -> Chart | None:
    """A chart of the series that have a value; None if none has."""
    known = tuple(entry for entry in series if any(value is not None for value in entry.y))
    return Chart(kind, x, y, known) if any(not entry.dashed or entry.method for entry in known) else None


def lines_over_stream(
    study: Study,
    values: Any,
    axes: tuple[Axis, Axis],
    digits: Callable[[Iterable[float]], tuple[float | None, ...]],
    combine: Literal["mean", "max"] = "mean",
    first: int = 0,
    with_range: bool = False,
) -> dict[str, Chart | None]:
    """A chart for each setup: values by row of `Study.steps` over positions from `first` on, a line for each method.

    Runs are combined to one line, which has no value where one of them has none.
    """
    by_run = study.steps.assign(values=values).pivot(index="position", columns="run", values="values")
    members = study.runs.groupby("group").groups
    combined: Callable[..., Any] = np.max if combine == "max" else np.mean
    charts = {}
    for label, groups in study.representatives.items():
        lines = []
        for group in groups[["name", "method", "tasks", "runs", "repeats"]].itertuples():
            runs = by_run[members[group.Index]].to_numpy()[first : group.tasks]
            notes = [group.repeats] * len(runs)
            if with_range and group.runs > 1:
                ends = zip(notes, runs.min(axis=1), runs.max(axis=1), strict=True)
                notes = [f"{note}, {low:.1f} to {high:.1f}" if low <= high else note for note, low, high in ends]
            x, y = tuple(range(first + 1, group.tasks + 1)), digits(combined(runs, axis=1))
            lines.append(Series(group.name, x, y, notes=tuple(notes), method=group.method))
        charts[label] = chart("lines", *axes, lines)
    return charts


def bars_of(
    title: str, groups: Frame, column: str, error: str = "", notes: Iterable[str] = (), dashed: bool = False
) -> Series:
    """A bar for each row of `Study.groups`, above the name of its method."""
    errors = rounded(groups[error]) if error else ()
    return Series(title, tuple(groups["name"]), rounded(groups[column]), errors, tuple(notes), dashed=dashed)


def bars_of_paper(groups: Frame, value: str, error: str = "") -> Series:
    """What the paper prints for each row of `Study.groups`."""
    y = rounded(getattr(printed, value, None) for printed in groups["printed"])
    errors = rounded(getattr(printed, error, None) for printed in groups["printed"]) if error else ()
    return Series("paper", tuple(groups["name"]), y, errors, dashed=True)


def by_run(study: Study, draw: Callable[[Frame], Plot | None]) -> dict[str, Plot | None]:
    """A plot for each run, from its rows of `Study.steps`."""
    labels = study.runs["label"]
    return {labels[run]: draw(steps) for run, steps in study.steps_by_run.items()}


def rounded(values: Iterable[float | None], digits: int = 2) -> tuple[float | None, ...]:
    """Numbers with a number of digits after the point; None for those that are missing or not finite."""
    return tuple(None if v is None or not math.isfinite(v) else round(float(v), digits) + 0.0 for v in values)


def significant(values: Iterable[float | None], digits: int = 4) -> tuple[float | None, ...]:
    """Numbers above zero with a number of significant digits, for a logarithmic axis; None for all others."""
    return tuple(
        None if v is None or not math.isfinite(v) or v <= 0 else float(f"{float(v):.{digits}g}") for v in values
    )
