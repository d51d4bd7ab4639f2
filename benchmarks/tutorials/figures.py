"""The figures of tutorials: which numbers of a program they show, and how these are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.drawing import COLOURS, Panel, legend, svg

Numbers = Mapping[str, Any]
"""By name of a line or a kind of bar: a number for each label across; beside them "across", the labels."""


class Figure(NamedTuple):
    """One tutorial's figure."""

    numbers: Callable[[Mapping[str, Any]], Numbers]
    """From the program's names to what is shown."""
    draw: Callable[[Numbers], str]


def curves(title: str, below: str, beside: str, log: bool = False) -> Callable[[Numbers], str]:
    """Draw a line for each name, over numbers."""

    def draw(numbers: Numbers) -> str:
        across, lines = numbers["across"], numbers["lines"]
        every = [value for values in lines.values() for value in values]
        ends = (across[0] / 1.1, across[-1] * 1.1) if log else (across[0] - 0.3, across[-1] + 0.3)
        panel = Panel(50, 30, 340, 150, ends, (max(0, min(every) - 3), min(100, max(every) + 3)), (log, False))
        panel.axes(below, beside, "{:,g}".format, across)
        for colour, values in zip(COLOURS, lines.values(), strict=False):
            panel.line(list(zip(across, values, strict=True)), colour)
            panel.dots(list(zip(across, values, strict=True)), colour)
        return svg(560, 225, [*panel.parts, *legend(405, 60, list(lines))], title)

    return draw


def bars(title: str, beside: str) -> Callable[[Numbers], str]:
    """Draw a bar for each name at each label."""

    def draw(numbers: Numbers) -> str:
        across, lines = numbers["across"], numbers["lines"]
        panel = _labelled(across, beside, 0)
        width = 250 / len(across) / len(lines)
        for number, (colour, values) in enumerate(zip(COLOURS, lines.values(), strict=False)):
            shift = (number - (len(lines) - 1) / 2) * width * 1.1 * len(across) / panel.width
            for position, value in enumerate(values):
                panel.bar(position + shift, value, width, colour)
        return svg(560, 205, [*panel.parts, *legend(405, 60, list(lines))], title)

    return draw


def points(title: str, beside: str) -> Callable[[Numbers], str]:
    """Draw a dot for each name at each label, where differences are small."""

    def draw(numbers: Numbers) -> str:
        lines = numbers["lines"]
        panel = _labelled(numbers["across"], beside, min(min(values) for values in lines.values()) - 3)
        for colour, values in zip(COLOURS, lines.values(), strict=False):
            panel.dots(list(enumerate(values)), colour, 5)
        return svg(560, 205, [*panel.parts, *legend(405, 60, list(lines))], title)

    return draw


def _labelled(across: Sequence[object], beside: str, lowest: float) -> Panel:
    panel = Panel(50, 30, 340, 150, (-0.5, len(across) - 0.5), (lowest, 100))
    panel.axes("", beside, lambda value: str(across[round(value)]), range(len(across)))
    return panel


def _pairs(names: Mapping[str, Any]) -> Numbers:
    """The numbers of `accuracy`, a dict by line and label."""
    table: Mapping[tuple[str, Any], float] = names["accuracy"]
    lines, across = dict.fromkeys(line for line, _ in table), list(dict.fromkeys(label for _, label in table))
    return {"across": across, "lines": {line: [_short(table[line, label]) for label in across] for line in lines}}


def _turned(names: Mapping[str, Any]) -> Numbers:
    """The same by label and line."""
    return _pairs({"accuracy": {(line, label): value for (label, line), value in names["accuracy"].items()}})


def _means(names: Mapping[str, Any]) -> Numbers:
    """The mean of what each method knows after each task, from its matrix of accuracies."""
    matrices: Mapping[str, torch.Tensor] = names["accuracy"]
    tasks = len(next(iter(matrices.values())))
    lines = {name: [_short(100 * float(row.nanmean())) for row in matrix] for name, matrix in matrices.items()}
    return {"across": list(range(1, tasks + 1)), "lines": lines}


def _last(names: Mapping[str, Any]) -> Numbers:
    """What each method knows of each task in the end."""
    lines = {name: [_short(100 * value) for value in matrix[-1].tolist()] for name, matrix in names["accuracy"].items()}
    return {"across": list(range(1, len(next(iter(lines.values()))) + 1)), "lines": lines}


def _short(value: float) -> float:
    return round(value, 1)


SHARE = "right, %"
FIGURES = {
    "folder_stream": Figure(_means, curves("Accuracy over the stream", "tasks learned", "mean accuracy so far, %")),
    "new_method": Figure(_last, bars("Accuracy after the last task", f"each task in the order of learning, {SHARE}")),
    "your_model": Figure(
        _pairs, curves("Accuracy within bounds", "bound on the task's file, bytes", f"validation images {SHARE}", True)
    ),
    "tenants": Figure(_pairs, curves("Accuracy from few texts", "texts a class", f"test texts {SHARE}", True)),
    "vision": Figure(_turned, points("A head alone and a delta", f"test pictures {SHARE}")),
}
"""By tutorial."""


def drawn(figures: Mapping[str, Numbers]) -> dict[str, str]:
    """The drawings by the names of their files."""
    return {f"tutorial-{name.replace('_', '-')}.svg": FIGURES[name].draw(shown) for name, shown in figures.items()}
