"""Lines, bars and points: series of values over a common x axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from halrp.lab.registry import METHODS, colour_of
from halrp.lab.report.figure import Axis, Spec, category_axis, short
from halrp.lab.report.style import DASHES, REFERENCES, SYMBOLS, SeriesStyle, series_styles
from halrp.lab.report.table import Value

STEPS = 20
"""Whole numbers along the x axis are all named if there are no more."""
TINT = "22"
"""The opacity of bars of references."""
LETTERS = 88
"""Letters that fit into a line of the legend of a file."""


@dataclass(frozen=True)
class Series:
    """Values with one name and one style. `x`, `y` and, if given, `error` and `notes` have the same length."""

    name: str
    x: tuple[Value, ...]
    y: tuple[float | None, ...]
    error: tuple[float | None, ...] = ()
    """Half the length of an error bar."""
    notes: tuple[str, ...] = ()
    """What the pointer shows beside each value."""
    method: str = ""
    """The method it belongs to: series of one method have one colour on the whole page. Empty for none."""
    dashed: bool = False
    """For references: the paper's values, a noise floor, a bound."""


@dataclass(frozen=True)
class Chart:
    """Series over a common x axis."""

    kind: Literal["lines", "bars", "points"]
    x: Axis
    y: Axis
    series: tuple[Series, ...]

    def spec(self) -> Spec:
        """The chart as Vega-Lite; `usermeta` has what the legend of the page needs."""
        layers = {"lines": self._lines, "points": self._points, "bars": self._bars}[self.kind]()
        return {
            "data": {"name": "rows", "values": self._rows()},
            "encoding": {"x": self._x()},
            "layer": layers,
            "usermeta": {"legend": self._legend(), "zoom": not self.categories},
        }

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The names along the x axis in their order; none if it has numbers."""
        values = [value for series in self.series for value in series.x if value is not None]
        named = any(isinstance(value, str) for value in values)
        return tuple(dict.fromkeys(map(str, values))) if named else ()

    @cached_property
    def styles(self) -> list[SeriesStyle]:
        """The style of each series."""
        return series_styles((series.method, series.dashed) for series in self.series)

    @cached_property
    def method_colours(self) -> dict[str, str]:
        """The colours of bars above names of methods, by name; none if series are distinguished by colour."""
        ours = [series for series in self.series if not series.dashed]
        if self.kind != "bars" or len(ours) != 1 or any(series.method for series in self.series):
            return {}
        methods = {name: name.partition(" (")[0] for name in self.categories}
        known = {name: colour_of(method) for name, method in methods.items() if method in METHODS}
        return known if len(known) == len(methods) else {}

    # ---- data -----------------------------------------------------------------------------------------------------

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for series, style in zip(self.series, self.styles, strict=True):
            blank = (None,) * len(series.x)
            columns = zip(series.x, series.y, series.error or blank, series.notes or blank, strict=True)
            for x, y, error, note in columns:
                row: dict[str, Any] = {"series": series.name, "x": self._along(x), "y": short(y)}
                row |= self._value(row["y"], short(error))
                if note is not None:
                    row["note"] = note
                if self.kind == "bars":
                    colour = self.method_colours.get(str(x), style.colour)
                    row |= {"colour": colour, "fill": colour + TINT * series.dashed}
                rows.append(row)
        return rows

    def _along(self, value: Value) -> str | float | None:
        return str(value) if self.categories or isinstance(value, str) else short(value)

    def _value(self, y: float | None, error: float | None) -> dict[str, Any]:
        """The value as the pointer shows it, and the ends of its error bar."""
        if y is None:
            return {}
        if not error or (self.y.log and y <= error):
            return {"value": f"{y:.5g}"}
        return {"value": f"{y:.5g} ± {error:.3g}", "low": short(y - error), "high": short(y + error)}

    # ---- axes and legend ------------------------------------------------------------------------------------------

    def _x(self) -> Spec:
        if self.categories:
            return category_axis(self.x.title, self.categories)
        values = [value for series in self.series for value in series.x if isinstance(value, (int, float))]
        whole = bool(values) and all(float(value).is_integer() for value in values) and not self.x.log
        axis = _number(self.x, "x", values, {"zero": False, "nice": False, "padding": 12})
        if whole and max(values) - min(values) <= STEPS:
            axis["axis"] = {"values": list(range(int(min(values)), int(max(values)) + 1)), "format": "d"}
        return axis

    def _y(self, field: str = "y") -> Spec:
        values = [value for series in self.series for value in series.y if value is not None]
        zero = self.y.zero or self.kind == "bars"
        scale: Spec = {"zero": True} if zero else {"zero": False, "padding": 8}
        return _number(self.y, field, values, scale) | {"stack": None}

    @cached_property
    def _scales(self) -> Spec:
        """Colours, marks and lines of series, with one legend for all of them."""
        names = [series.name for series in self.series]
        longest = max(map(len, names), default=1)
        columns = max(1, min(4, len(names), LETTERS // (min(longest, 44) + 4)))
        legend = {"orient": "bottom", "columns": columns, "title": None, "labelLimit": 300} if names else None
        ranges: dict[str, list[Any]] = {
            "stroke": [style.colour for style in self.styles],
            "fill": [style.fill for style in self.styles],
            "shape": [SYMBOLS[style.symbol] for style in self.styles],
            "strokeDash": [list(DASHES[style.dash]) for style in self.styles],
        }
        if self.method_colours:
            ranges["stroke"] = [REFERENCES[0]] * len(names)
        if self.kind == "bars":
            ranges["shape"] = [SYMBOLS["square"]] * len(names)
            fills = zip(ranges["stroke"], self.series, strict=True)
            ranges["fill"] = [colour + TINT * series.dashed for colour, series in fills]
        return {
            channel: {"field": "series", "scale": {"domain": names, "range": values}, "legend": legend}
            for channel, values in ranges.items()
        }

    def _legend(self) -> list[dict[str, Any]]:
        """The entries of the page's legend."""
        ranges = {channel: scale["scale"]["range"] for channel, scale in self._scales.items()}
        return [
            {"name": series.name, "line": self.kind == "lines"} | {channel: ranges[channel][i] for channel in ranges}
            for i, series in enumerate(self.series)
        ]

    # ---- marks ----------------------------------------------------------------------------------------------------

    def _lines(self) -> list[Spec]:
        scales = {channel: self._scales[channel] for channel in ("stroke", "strokeDash")}
        line = {"mark": {"type": "line", "strokeWidth": 2, "clip": True}, "encoding": {"y": self._y(), **scales}}
        return [line, *self._points(size=32)]

    def _points(self, size: int = 60) -> list[Spec]:
        scales = {channel: self._scales[channel] for channel in ("stroke", "fill", "shape")}
        mark = {"type": "point", "size": size, "opacity": 1, "strokeWidth": 1.2, "clip": True}
        points = {"mark": mark, "encoding": {"y": self._y(), **scales, "tooltip": self._tooltip()}}
        return [*self._errors({"stroke": self._scales["stroke"]}), points]

    def _bars(self) -> list[Spec]:
        offset = {"xOffset": {"field": "series", "sort": None}}
        colours = {
            channel: {"field": field, "scale": None} for channel, field in (("stroke", "colour"), ("fill", "fill"))
        }
        bars = {
            "mark": {"type": "bar", "strokeWidth": 1},
            "encoding": {
                "y": self._y(),
                **offset,
                **colours,
                "strokeDash": self._scales["strokeDash"],
                "tooltip": self._tooltip(),
            },
        }
        # Bars may have the colours of methods: marks of no size are there to make the legend of series.
        legend = {"mark": {"type": "point", "size": 0}, "encoding": {"y": self._y(), **self._scales}}
        return [bars, *self._errors(offset), legend]

    def _errors(self, encoding: Spec) -> list[Spec]:
        if not any(series.error and any(series.error) for series in self.series):
            return []
        mark = {"type": "rule", "strokeWidth": 1.2, "clip": True}
        return [{"mark": mark, "encoding": {"y": self._y("low"), "y2": {"field": "high"}, **encoding}}]

    def _tooltip(self) -> list[Spec]:
        x = {"field": "x", "title": self.x.title, **({} if self.categories else {"format": ",.6~g"})}
        noted = any(series.notes for series in self.series)
        return [
            {"field": "series", "title": "title"},  # the heading of the box
            {"type": "nominal" if self.categories else "quantitative", **x},
            {"field": "value", "title": self.y.title},
            *([{"field": "note", "title": "note"}] if noted else []),
        ]


def _number(axis: Axis, field: str, values: list[Any], scale: Spec) -> Spec:
    """An axis of numbers."""
    made: Spec = {"field": field, "type": "quantitative", "title": axis.title, "scale": scale}
    if axis.log:
        known = [value for value in values if 0 < value < math.inf]
        low, high = (min(known), max(known)) if known else (1.0, 1.0)
        made["scale"] = {"type": "log", "nice": False, "padding": 12} if known else {"type": "log", "domain": [1, 10]}
        made["axis"] = {"format": "~s" if low >= 1 else "~g", "tickCount": 6 if high / low > 50 else 10}
    return made
