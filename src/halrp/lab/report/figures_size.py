"""Figures of size: growth, what accuracy costs, ranks, importance, and what components would buy."""

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
"""At most so many plots of spectra."""
SPECTRA_OF_RUN = 3
"""Tasks of a run whose spectra are drawn: the first, the middle and the last."""


def figures(grouped: Grouped) -> tuple[Figure, ...]:
    """All figures of size for which there are records."""
    found = (frontier(grouped), growth(grouped), ranks(grouped), importance(grouped), spectra(grouped))
    return tuple(figure for figure in found if figure is not None)


def frontier(grouped: Grouped) -> Figure | None:
    """Final accuracy against the bytes that a later task adds, a point for every method and its settings."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        points: dict[str, list[tuple[float, float, float | None, str]]] = {}
        for group in place.distinct:
            bytes_, accuracy = group.number("later_bytes"), group.number("accuracy")
            if bytes_ is not None and accuracy is not None and bytes_ > 0:
                note = ", ".join(filter(None, (group.apart, group.repeats)))
                point = round(bytes_), accuracy, group.number("error_usual"), note
                points.setdefault(group.method, []).append(point)
        series = []
        for method, found in points.items():
            x, y, error, notes = zip(*sorted(found, key=lambda point: point[:2]), strict=True)
            series.append(Series(method, x, rounded(y), rounded(error), notes, method))
        if series:
            axes = Axis("bytes that a later task adds", log=True), Axis("average accuracy in %")
            plots[place.label] = Chart("points", *axes, tuple(series))
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
    for place in grouped.places:
        for size, title in SIZES.items():
            series = []
            for group in place.main:
                y = significant(100 * group.mean(_growth(one, size) for one in group.runs))[1:]
                if any_known(y):
                    notes = (group.repeats,) * len(y)
                    series.append(Series(group.name, place.positions[1:], y, notes=notes, method=group.method))
            if series:
                axes = Axis("tasks learned"), Axis(f"growth in {title}, % of a single-task model", log=True)
                plots[f"{place.label} · {title}"] = Chart("lines", *axes, tuple(series))
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
    for place, group, one in grouped.each():
        facts = _facts(one, "ranks")
        layers = _layers(facts)
        if layers:
            views = [str(row.get("view") or "") for row in one.run.rows]
            several = len(set(filter(None, views))) > 1
            shown = [f"{n} · {v}" if several and v else n for n, v in zip(one.names(), views, strict=True)]
            values = [[fact.get(layer) for fact in facts] for layer in layers]
            plots[run_label(place, group, one)] = _by_layer(shown, layers, values, "rank")
    return figure_of(
        "ranks",
        "Ranks",
        "How many components each layer keeps for each task. A layer that a task owns outright is empty, and so is the "
        "task that makes the base. Where a run chose between views of convolutions, the choice stands beside the task.",
        plots,
    )


def importance(grouped: Grouped) -> Figure | None:
    """The importance of each layer for each task, a heat map for each run."""
    plots: dict[str, Plot] = {}
    for place, group, one in grouped.each():
        facts = _facts(one, "importance")
        layers = _layers(facts)
        if layers:
            told = [value for fact in facts for value in fact.values() if value > 0]
            values = [
                rounded((_decades(fact.get(layer), min(told, default=1)) for fact in facts), 3) for layer in layers
            ]
            unit = "powers of 10"
            plots[run_label(place, group, one)] = _by_layer(one.names(), layers, values, unit)
    return figure_of(
        "importance",
        "Importance of layers",
        "What a unit of squared error in each layer costs the loss of each task, beside the least of the run: 0 is the "
        "least, 2 a hundred times as much.",
        plots,
    )


def spectra(grouped: Grouped) -> Figure | None:
    """The predicted loss that each component of each layer buys, those kept and those cut, for a few tasks."""
    plots: dict[str, Plot] = {}
    for place in grouped.places:
        for group in place.distinct:
            found = next((one for one in group.runs if any(_facts(one, "scores"))), None)
            if found is None:
                continue
            told = [i for i, fact in enumerate(_facts(found, "scores")) if fact]
            for i in sorted({told[0], told[len(told) // 2], told[-1]}):
                label = f"{run_label(place, group, found)} · task {found.names()[i]}"
                axes = Axis("component"), Axis("predicted loss it buys", log=True)
                if series := _spectrum(_facts(found, "scores")[i], _facts(found, "ranks")[i]):
                    plots[label] = Chart("lines", *axes, series)
    return figure_of(
        "spectra",
        "What components buy, and the cut",
        "The predicted loss that each component of a layer buys, the first 40 of them. Solid lines are the components "
        "that were kept, dashed ones those that were cut; a layer that a task owns outright keeps all. Shown is the "
        "first run of each method and its settings, "
        f"with at most {SPECTRA_OF_RUN} of its tasks: the first, the middle and the last"
        + (f"; of {len(plots)} plots the first {SPECTRA}." if len(plots) > SPECTRA else "."),
        dict(list(plots.items())[:SPECTRA]),
    )


def _growth(one: Measured, size: str) -> Array:
    """Growth after each position, (tasks,), as `halrp.lab.records.aggregate` has it at the last one."""
    sizes = one.column(size)
    final = one.row[f"growth_{size}"]
    if not isinstance(final, float) or not sizes[-1] > 0:
        return np.full(len(sizes), np.nan)
    single = sizes[-1] / (1 + final)
    return np.asarray(sizes / single - 1)


def _facts(one: Measured, name: str) -> list[Mapping[str, Any]]:
    """A fact of every row that is told by layer, as a number or a list of them; empty where the record does not say."""

    def fine(value: object) -> bool:
        return all(map(is_number, value)) if isinstance(value, list) else is_number(value) and name != "scores"

    found = [row.get(name) for row in one.run.rows]
    return [{n: v for n, v in fact.items() if fine(v)} if isinstance(fact, dict) else {} for fact in found]


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
    """Two series for each layer: what was kept and what was cut. A layer has one colour, as if it were a method."""
    found = []
    for layer, bought in scores.items():
        y = significant(bought, 3)
        x = tuple(range(1, len(y) + 1))
        cut = min(int(ranks.get(layer, len(y))), len(y))  # a layer that is not named is owned outright
        kept = Series(f"{layer}: kept", x[:cut], y[:cut], method=layer)
        rest = Series(f"{layer}: cut", x[cut:], y[cut:], method=layer, dashed=True)
        found += [series for series in (kept, rest) if any_known(series.y)]
    return tuple(found)
