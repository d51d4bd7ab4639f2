"""Drawings as figures of plotly: plain values for JSON, without the colours of the page around them.

Plotly reads a little HTML in texts and has templates in some of them. Whatever comes from a record is escaped, so that
it is shown as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from halrp.lab.report.figure import Axis, Chart, HeatMap, Plot, Series
from halrp.lab.report.looks import BESIDE, Look, colours_along, looks, names_along, scale, whole_steps
from halrp.lab.report.table import Value

WRITTEN = 12
"""Fields with at most so many columns have their numbers written into them."""
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "&#123;", "$": "&#36;"})


def plot(drawing: Plot) -> dict[str, Any]:
    """A drawing as plotly's `data` and `layout`."""
    return _field(drawing) if isinstance(drawing, HeatMap) else _chart(drawing)


def safe(text: str) -> str:
    """A text that plotly shows as it is."""
    return " ".join(text.split()).translate(ESCAPES)


def short(value: float | None) -> float | int | None:
    """A number with as many digits as can be seen; None if there is none."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


# ---- charts -------------------------------------------------------------------------------------------------------


def _chart(chart: Chart) -> dict[str, Any]:
    names = names_along(chart)
    along = colours_along(chart)
    x = _axis(chart.x, [value for series in chart.series for value in series.x])
    if names:
        x |= {"type": "category", "categoryorder": "array", "categoryarray": [safe(name) for name in names]}
        x |= {"showgrid": chart.kind != "bars"}
    elif whole_steps(chart):
        x |= {"dtick": 1}
    trace = {"lines": _line, "points": _points, "bars": _bars}[chart.kind]
    data = []
    for series, look in zip(chart.series, looks(chart), strict=True):
        one: dict[str, Any] = {"name": safe(series.name), "x": [_along(v, bool(names)) for v in series.x]}
        one |= {"y": [short(value) for value in series.y], "hovertemplate": _hover(chart, series)}
        if series.notes:
            one["text"] = [safe(note) for note in series.notes]
        if any(value is not None for value in series.error):
            # Plotly wants a number: a bar of length 0 is not drawn.
            lengths = [short(value) or 0 for value in series.error]
            one["error_y"] = {"type": "data", "array": lengths, "thickness": 1.2, "width": 3, "color": look.colour}
        one |= trace(look)
        if along:
            _paint(one, [along[str(name)] for name in series.x])
        data.append(one)
    y = _axis(chart.y, [value for series in chart.series for value in series.y])
    layout: dict[str, Any] = {"xaxis": x, "yaxis": y}
    if chart.kind == "bars":
        layout |= {"barmode": "group", "bargap": 0.25}
    return {"data": data, "layout": layout}


def _axis(axis: Axis, values: Sequence[Value] = ()) -> dict[str, Any]:
    made: dict[str, Any] = {"title": {"text": safe(axis.title)}}
    if axis.log:
        known = [value for value in values if isinstance(value, (int, float)) and 0 < value < math.inf]
        low, high = (min(known), max(known)) if known else (1.0, 1.0)
        made |= {"type": "log", "exponentformat": "SI" if low >= 1 else "none"}
        if high / low > 50:
            made |= {"dtick": 1}
    elif axis.zero:
        made |= {"rangemode": "tozero"}
    return made


def _along(value: Value, as_name: bool) -> str | float | int | None:
    if value is None or isinstance(value, str) or as_name:
        return None if value is None else safe(str(value))
    return short(value)


def _hover(chart: Chart, series: Series) -> str:
    y = "%{y:.4~g}" if chart.y.log else "%{y:.5~g}"
    text = f"<b>{safe(series.name)}</b><br>{safe(chart.x.title)}: %{{x}}<br>{safe(chart.y.title)}: {y}"
    if any(value is not None for value in series.error):
        text += " ± %{error_y.array:.3~g}"
    return text + ("<br>%{text}" if series.notes else "") + "<extra></extra>"


def _line(look: Look) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": look.colour, "width": 2, "dash": look.dash},
        "marker": {"color": look.colour, "symbol": _symbol(look), "size": 7},
    }


def _points(look: Look) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": look.colour, "symbol": _symbol(look), "size": 10, "line": {"width": 1}},
    }


def _bars(look: Look) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": look.colour}
    if look.dash != "solid":
        shape = {"dash": "/", "dot": ".", "dashdot": "\\"}.get(look.dash, "x")
        marker["pattern"] = {"shape": shape, "fillmode": "replace", "fgcolor": look.colour, "size": 6}
        marker["line"] = {"color": look.colour, "width": 1}
    return {"type": "bar", "textposition": "none", "marker": marker}


def _paint(trace: dict[str, Any], colours: list[str]) -> None:
    """Give each bar of a trace a colour of its own."""
    marker = trace["marker"] = {**trace["marker"], "color": colours}
    if "pattern" in marker:
        marker |= {"pattern": {**marker["pattern"], "fgcolor": colours}, "line": {"color": colours, "width": 1}}
    if "error_y" in trace:
        trace["error_y"]["color"] = BESIDE[0]


def _symbol(look: Look) -> str:
    return f"{look.symbol}-open" if look.beside else look.symbol


# ---- fields -------------------------------------------------------------------------------------------------------


def _field(field: HeatMap) -> dict[str, Any]:
    colours, limits = scale(field)
    stops = [[round(place / (len(colours) - 1), 4), colour] for place, colour in enumerate(colours)]
    rows, columns = _apart(field.rows), _apart(field.columns)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": [[short(value) for value in row] for row in field.values],
        "colorscale": stops,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": f"%{{y}} · %{{x}}<br>{safe(field.unit) or 'value'}: %{{z:.5~g}}<extra></extra>",
        "colorbar": {"title": {"text": safe(field.unit), "side": "right"}, "thickness": 12, "outlinewidth": 0},
    }
    if limits:
        trace |= {"zmin": short(limits[0]), "zmax": short(limits[1])}
    if len(field.columns) <= WRITTEN:
        trace["texttemplate"] = "%{z:.3~g}"
    kind = {"type": "category", "showgrid": False}
    layout = {"xaxis": _axis(field.x) | kind, "yaxis": _axis(field.y) | kind | {"autorange": "reversed"}}
    return {"data": [trace], "layout": layout}


def _apart(names: tuple[str, ...]) -> list[str]:
    """Names along an axis; plotly would draw equal ones on each other, so they get marks that cannot be seen."""
    seen: dict[str, int] = {}
    made = []
    for name in map(safe, names):
        made.append(name + "\u200b" * seen.get(name, 0))
        seen[name] = seen.get(name, 0) + 1
    return made
