"""Figures of size: growth, accuracy against size, ranks, importance, and the loss that components recover."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.grouped import (
    MAIN,
    Array,
    Grouped,
    Measured,
    any_known,
    figure_of,
    is_number,
    rounded,
    run_label,
    significant,
)
from halrp.lab.report.heat_map import HeatMap

SIZES = {"bytes": "bytes", "parameters": "parameters", "counted": "the paper's count"}
SPECTRA = 60
"""Most plots of spectra."""
SPECTRA_OF_RUN = 3
"""Tasks of a run whose spectra are drawn: the first, the middle and the last."""


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of size for which there are records."""
    candidates = (frontier(grouped), growth(grouped), ranks(grouped), importance(grouped), spectra(grouped))
    return tuple(figure for figure in candidates if figure is not None)


def frontier(grouped: Grouped) -> Figure | None:
    """Final accuracy against the bytes that a later task adds, a point for every method and its settings."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        points: dict[str, list[tuple[float, float, float | None, str]]] = {}
        for group in setup.distinct:
            bytes_, accuracy = group.number("later_bytes"), group.number("accuracy")
            if bytes_ is not None and accuracy is not None and bytes_ > 0:
                note = ", ".join(filter(None, (group.variant, group.repeats)))
                point = round(bytes_), accuracy, group.number("error_usual"), note
                points.setdefault(group.method, []).append(point)
        series = []
        for method, entries in points.items():
            x, y, error, notes = zip(*sorted(entries, key=lambda point: point[:2]), strict=True)
            series.append(Series(method, x, rounded(y), rounded(error), notes, method))
        if series:
            axes = Axis("bytes that a later task adds", log=True), Axis("average accuracy in %")
            plots[setup.label] = Chart("points", *axes, tuple(series))
    return figure_of(
        "frontier",
        "Accuracy against size",
        "The average accuracy at the end of the stream against the bytes that each task after the first adds, for "
        "every method and all its settings. Further up and to the left is better; `stl` stores a network for every "
        "task. Methods that learn all tasks at once add nothing task by task and are not here.",
        plots,
    )


def growth(grouped: Grouped) -> Figure | None:
    """How much larger than a single-task model all that is stored has become, after each task."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        for size, title in SIZES.items():
            series = []
            for group in setup.main:
                y = significant(100 * group.mean(_growth(measured, size) for measured in group.runs))[1:]
                if any_known(y):
                    notes = (group.repeats,) * len(y)
                    series.append(Series(group.name, setup.positions[1:], y, notes=notes, method=group.method))
            if series:
                axes = Axis("tasks learned"), Axis(f"growth in {title}, % of a single-task model", log=True)
                plots[f"{setup.label} · {title}"] = Chart("lines", *axes, tuple(series))
    return figure_of(
        "growth",
        "Growth over the stream",
        "What all tasks so far take beyond a single-task model, in % of it, a mean over orders and seeds: in bytes as "
        "stored, in parameters, and as the paper counts, without biases and zeros. The scale is logarithmic, so that "
        "the first task, where growth is zero, is not shown." + MAIN,
        plots,
    )


def ranks(grouped: Grouped) -> Figure | None:
    """The rank of each layer for each task, a heat map for each run."""
    plots: dict[str, Plot] = {}
    for setup, group, measured in grouped.each():
        facts = _facts(measured, "ranks")
        layers = _layers(facts)
        if layers:
            views = [str(row.get("view") or "") for row in measured.run.rows]
            several = len(set(filter(None, views))) > 1
            shown = [f"{n} · {v}" if several and v else n for n, v in zip(measured.names(), views, strict=True)]
            values = [[fact.get(layer) for fact in facts] for layer in layers]
            plots[run_label(setup, group, measured)] = _by_layer(shown, layers, values, "rank")
    return figure_of(
        "ranks",
        "Ranks",
        "How many components each layer keeps for each task. A layer that a task owns (dense) is empty, and so is the "
        "task that trains the base. Where a run chose between views of convolutions, the choice stands beside the "
        "task.",
        plots,
    )


def importance(grouped: Grouped) -> Figure | None:
    """The importance of each layer for each task, a heat map for each run."""
    plots: dict[str, Plot] = {}
    for setup, group, measured in grouped.each():
        facts = _facts(measured, "importance")
        layers = _layers(facts)
        if layers:
            positive = [value for fact in facts for value in fact.values() if value > 0]
            values = [
                rounded((_decades(fact.get(layer), min(positive, default=1)) for fact in facts), 3) for layer in layers
            ]
            unit = "powers of 10"
            plots[run_label(setup, group, measured)] = _by_layer(measured.names(), layers, values, unit)
    return figure_of(
        "importance",
        "Importance of layers",
        "What a unit of squared error in each layer costs the loss of each task, relative to the least of the run: 0 "
        "is the least, 2 a hundred times as much.",
        plots,
    )


def spectra(grouped: Grouped) -> Figure | None:
    """The predicted loss that each component of each layer recovers, retained or cut, for a few tasks."""
    plots: dict[str, Plot] = {}
    for setup in grouped.setups:
        for group in setup.distinct:
            first = next((measured for measured in group.runs if any(_facts(measured, "scores"))), None)
            if first is None:
                continue
            positions = [i for i, fact in enumerate(_facts(first, "scores")) if fact]
            for i in sorted({positions[0], positions[len(positions) // 2], positions[-1]}):
                label = f"{run_label(setup, group, first)} · task {first.names()[i]}"
                axes = Axis("component"), Axis("predicted loss it recovers", log=True)
                if series := _spectrum(_facts(first, "scores")[i], _facts(first, "ranks")[i]):
                    plots[label] = Chart("lines", *axes, series)
    return figure_of(
        "spectra",
        "Loss recovered by components, and the cut",
        "The predicted loss that each component of a layer recovers, for its first 40. Solid lines are the components "
        "that were retained, dashed ones those that were cut; a layer that a task owns (dense) retains all. Shown is "
        "the first run of each method and its settings,"
        f"with at most {SPECTRA_OF_RUN} of its tasks: the first, the middle and the last"
        + (f"; of {len(plots)} plots the first {SPECTRA}." if len(plots) > SPECTRA else "."),
        dict(list(plots.items())[:SPECTRA]),
    )


def _growth(measured: Measured, size: str) -> Array:
    """Growth after each position, (tasks,), as `halrp.lab.records.aggregate` has it at the last one."""
    sizes = measured.column(size)
    final = measured.row[f"growth_{size}"]
    if not isinstance(final, float) or not sizes[-1] > 0:
        return np.full(len(sizes), np.nan)
    single = sizes[-1] / (1 + final)
    return np.asarray(sizes / single - 1)


def _facts(measured: Measured, name: str) -> list[Mapping[str, Any]]:
    """A detail of every row by layer, as a number or a list of them; empty where the record lacks it."""

    def fine(value: object) -> bool:
        return all(map(is_number, value)) if isinstance(value, list) else is_number(value) and name != "scores"

    details = [row.get(name) for row in measured.run.rows]
    return [{n: v for n, v in fact.items() if fine(v)} if isinstance(fact, dict) else {} for fact in details]


def _layers(facts: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """All layers, in the order in which the fullest rows have them."""
    return tuple(dict.fromkeys(layer for fact in sorted(facts, key=len, reverse=True) for layer in fact))


def _by_layer(
    tasks: Sequence[str], layers: Sequence[str], values: Iterable[Sequence[float | None]], unit: str
) -> HeatMap:
    return HeatMap(Axis("task"), Axis("layer"), tuple(tasks), tuple(layers), tuple(map(tuple, values)), unit)


def _decades(value: float | None, least: float) -> float | None:
    return None if value is None or value <= 0 else math.log10(value / least)


def _spectrum(scores: Mapping[str, list[float]], ranks: Mapping[str, Any]) -> tuple[Series, ...]:
    """Two series for each layer: retained and cut components. A layer has one colour, as if it were a method."""
    pairs = []
    for layer, recovered in scores.items():
        y = significant(recovered, 3)
        x = tuple(range(1, len(y) + 1))
        cut = min(int(ranks.get(layer, len(y))), len(y))  # a layer that is not named is owned
        retained = Series(f"{layer}: retained", x[:cut], y[:cut], method=layer)
        rest = Series(f"{layer}: cut", x[cut:], y[cut:], method=layer, dashed=True)
        pairs += [series for series in (retained, rest) if any_known(series.y)]
    return tuple(pairs)
