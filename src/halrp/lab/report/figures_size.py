"""Figures of size: growth, accuracy against size, ranks, importance, and the loss that components recover."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halrp.checks import is_number
from halrp.lab.records.frames import Frame
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.shapes import (
    REPRESENTED,
    by_run,
    chart,
    figure_of,
    lines_over_stream,
    present,
    rounded,
    significant,
)
from halrp.lab.report.study import Study

SIZES = {"bytes": "bytes", "parameters": "parameters", "counted": "the paper's count"}
SPECTRA = 60
"""Most plots of spectra."""
SPECTRA_OF_RUN = 3
"""Tasks of a run whose spectra are drawn: the first, the middle and the last."""


def figures(study: Study) -> tuple[Figure, ...]:
    """All figures of size for which there are records."""
    return present(frontier(study), growth(study), ranks(study), importance(study), spectra(study))


def frontier(study: Study) -> Figure | None:
    """Final accuracy against the bytes that a later task adds, a point for every method and its settings."""
    axes = Axis("bytes that a later task adds", log=True), Axis("average accuracy in %")

    def draw(groups: Frame) -> Chart | None:
        groups = groups[groups["distinct"] & groups["accuracy"].notna() & (groups["later_bytes"] > 0)]
        groups = groups.assign(x=[*map(round, groups["later_bytes"])])
        series = []
        for (method, title), same in groups.groupby(["method", "title"], sort=False):
            points = same.sort_values(["x", "accuracy"])
            texts = zip(points["variant"], points["repeats"], strict=True)
            notes = (f"{variant}, {repeats}" if variant else repeats for variant, repeats in texts)
            values = rounded(points["accuracy"]), rounded(points["error_usual"])
            series.append(Series(title, tuple(points["x"].tolist()), *values, tuple(notes), method))
        return chart("points", *axes, series)

    return figure_of(
        "frontier",
        "Accuracy against size",
        "The average accuracy at the end of the stream against the bytes that each task after the first adds, for "
        "every method and all its settings. Further up and to the left is better; `stl` stores a network for every "
        "task. Methods that learn all tasks at once add nothing task by task and are not here.",
        {label: draw(groups) for label, groups in study.setups.items()},
    )


def growth(study: Study) -> Figure | None:
    """How much larger than a single-task model all that is stored has become, after each task."""
    charts = {}
    for size, title in SIZES.items():
        axes = Axis("tasks learned"), Axis(f"growth in {title}, % of a single-task model", log=True)
        charts[title] = lines_over_stream(study, 100 * study.steps[f"growth_{size}"], axes, significant, first=1)
    return figure_of(
        "growth",
        "Growth over the stream",
        "What all tasks so far take beyond a single-task model, in % of it, a mean over orders and seeds: in bytes as "
        "stored, in parameters, and as the paper counts, without biases and zeros. The scale is logarithmic, so that "
        "the first task, where growth is zero, is not shown." + REPRESENTED,
        {f"{setup} · {title}": charts[title][setup] for setup in study.setups for title in charts},
    )


def ranks(study: Study) -> Figure | None:
    """The rank of each layer for each task, a heat map for each run."""

    def draw(steps: Frame) -> HeatMap | None:
        views = [view if isinstance(view, str) else "" for view in steps.get("view", [""] * len(steps))]
        several = len({*views} - {""}) > 1
        labels = [f"{n} · {v}" if several and v else n for n, v in zip(steps["label"], views, strict=True)]
        return _heat_map(labels, _by_layer(steps, "ranks"), "rank")

    return figure_of(
        "ranks",
        "Ranks",
        "How many components each layer keeps for each task. A layer that a task owns (dense) is empty, and so is the "
        "task that trains the base. Where a run chose between views of convolutions, the choice stands beside the "
        "task.",
        by_run(study, draw),
    )


def importance(study: Study) -> Figure | None:
    """The importance of each layer for each task, a heat map for each run."""

    def draw(steps: Frame) -> HeatMap | None:
        by_layer = _by_layer(steps, "importance")
        least = min((value for values in by_layer for value in values.values() if value > 0), default=1)
        decades = [
            {layer: round(math.log10(v / least), 3) + 0.0 if v > 0 else None for layer, v in values.items()}
            for values in by_layer
        ]
        return _heat_map([*steps["label"]], decades, "powers of 10")

    return figure_of(
        "importance",
        "Importance of layers",
        "What a unit of squared error in each layer costs the loss of each task, relative to the least of the run: 0 "
        "is the least, 2 a hundred times as much.",
        by_run(study, draw),
    )


def spectra(study: Study) -> Figure | None:
    """The predicted loss that each component of each layer recovers, retained or cut, for a few tasks."""
    axes = Axis("component"), Axis("predicted loss it recovers", log=True)
    plots = {}
    for group in study.groups.index[study.groups["distinct"].astype(bool)]:
        runs = (study.steps_by_run[run] for run in study.runs.index[study.runs["group"] == group])
        steps = next((steps for steps in runs if any(_by_layer(steps, "scores"))), None)
        if steps is None:
            continue
        scores, retained = _by_layer(steps, "scores"), _by_layer(steps, "ranks")
        known = [i for i, by_layer in enumerate(scores) if by_layer]
        for i in sorted({known[0], known[len(known) // 2], known[-1]}):
            label = f"{study.runs['label'][steps['run'].iloc[i]]} · task {steps['label'].iloc[i]}"
            plots[label] = chart("lines", *axes, _spectrum(scores[i], retained[i]))
    drawn = [label for label, plot in plots.items() if plot is not None]
    return figure_of(
        "spectra",
        "Loss recovered by components, and the cut",
        "The predicted loss that each component of a layer recovers, for its first 40. Solid lines are the components "
        "that were retained, dashed ones those that were cut; a layer that a task owns (dense) retains all. Shown is "
        f"the first run of each method and its settings, with at most {SPECTRA_OF_RUN} of its tasks: the first, the "
        "middle and the last" + (f"; of {len(drawn)} plots the first {SPECTRA}." if len(drawn) > SPECTRA else "."),
        {label: plots[label] for label in drawn[:SPECTRA]},
    )


def _by_layer(steps: Frame, name: str) -> list[dict[str, Any]]:
    """A detail of every row by layer, as a number or, of scores, a list of them; empty where the record lacks it."""

    def valid(value: object) -> bool:
        return all(map(is_number, value)) if isinstance(value, list) else is_number(value) and name != "scores"

    details = steps.get(name, [None] * len(steps))
    return [{n: v for n, v in fact.items() if valid(v)} if isinstance(fact, dict) else {} for fact in details]


def _heat_map(tasks: Sequence[str], by_layer: Sequence[Mapping[str, Any]], unit: str) -> HeatMap | None:
    """Numbers by layer and task; layers are in the order in which the fullest rows have them."""
    layers = tuple(dict.fromkeys(layer for values in sorted(by_layer, key=len, reverse=True) for layer in values))
    values = tuple(tuple(values.get(layer) for values in by_layer) for layer in layers)
    return HeatMap(Axis("task"), Axis("layer"), tuple(tasks), layers, values, unit) if layers else None


def _spectrum(scores: Mapping[str, list[float]], ranks: Mapping[str, Any]) -> Iterator[Series]:
    """Two series for each layer: retained and cut components. A layer has one colour, as if it were a method."""
    for layer, recovered in scores.items():
        y = significant(recovered, 3)
        x = tuple(range(1, len(y) + 1))
        cut = min(int(ranks.get(layer, len(y))), len(y))  # a layer that is not named is owned
        yield Series(f"{layer}: retained", x[:cut], y[:cut], method=layer)
        yield Series(f"{layer}: cut", x[cut:], y[cut:], method=layer, dashed=True)
