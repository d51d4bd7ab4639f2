"""Colours, marks and line styles of what is drawn, the same on the page and in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from halrp.lab import registry
from halrp.lab.registry import colour_of, mark_of
from halrp.lab.report.figure import Chart, HeatMap
from halrp.lab.report.table import Value

COLOURS: Final = {name: entry.colour for name, entry in registry.METHODS.items()}
OTHERS: Final = registry.PALETTE
"""For series that belong to no method, and for methods that are not registered."""
BESIDE: Final = ("#7b828b", "#8560d6", "#c69a12", "#0b7285")
"""For what belongs to no method and is held beside our runs."""
SYMBOLS: Final = registry.MARKS
DASHES: Final = ("solid", "dot", "dashdot", "longdashdot")
"""Lines of a method that a chart has several times. What is held beside our runs is drawn as "dash"."""

RISING: Final = ("#2d2353", "#3b4a8c", "#2f7396", "#2b9a93", "#5bbf79", "#b4d94e", "#f7e948")
"""From low to high, by lightness alone too."""
AROUND: Final = ("#2b5ea7", "#7fa8d6", "#eef0f2", "#eaa27b", "#b8442b")
"""From below zero to above it."""


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    symbol: str
    dash: str

    @property
    def beside(self) -> bool:
        """Whether it is held beside our runs, and drawn with open marks and a dashed line."""
        return self.dash == "dash"


def looks(chart: Chart) -> tuple[Look, ...]:
    """The look of each series of a chart."""
    seen: dict[tuple[str, bool], int] = {}
    found = []
    for series in chart.series:
        kind = series.method, series.dashed
        place = seen[kind] = seen.get(kind, -1) + 1
        dash = "dash" if series.dashed else DASHES[place % len(DASHES)] if series.method else "solid"
        if series.method:
            shift = SYMBOLS.index(mark_of(series.method)) + place
            found.append(Look(colour_of(series.method), SYMBOLS[shift % len(SYMBOLS)], dash))
        else:
            colours = BESIDE if series.dashed else OTHERS
            found.append(Look(colours[place % len(colours)], SYMBOLS[place % len(SYMBOLS)], dash))
    return tuple(found)


def colours_along(chart: Chart) -> dict[str, str]:
    """The colours of bars that stand above names of methods, by name; empty if series are told apart by colour."""
    told = [series for series in chart.series if not series.dashed]
    if chart.kind != "bars" or len(told) != 1 or any(series.method for series in chart.series):
        return {}
    methods = {name: name.partition(" (")[0] for name in names_along(chart)}
    known = {name: colour_of(method) for name, method in methods.items() if method in COLOURS}
    return known if len(known) == len(methods) else {}


def scale(field: HeatMap) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """The colours of a field from low to high, and its limits where zero has to lie in their middle."""
    values = [value for row in field.values for value in row if value is not None]
    if values and min(values) < 0:
        limit = max(map(abs, values))
        return AROUND, (-limit, limit)
    return RISING, None


def named(values: Iterable[Value]) -> bool:
    """Whether values along an axis are names rather than numbers."""
    return any(isinstance(value, str) for value in values)


def names_along(chart: Chart) -> tuple[str, ...]:
    """The names along the x axis, as they come, if it has names."""
    values = [value for series in chart.series for value in series.x if value is not None]
    return tuple(dict.fromkeys(map(str, values))) if named(values) else ()


def whole_steps(chart: Chart) -> bool:
    """Whether the x axis counts something, with so few steps that each can be named."""
    values: Sequence[Value] = [value for series in chart.series for value in series.x if value is not None]
    numbers = [value for value in values if isinstance(value, (int, float))]
    if not numbers or len(numbers) < len(values) or chart.x.log:
        return False
    return all(value == int(value) for value in numbers) and max(numbers) - min(numbers) <= 20
