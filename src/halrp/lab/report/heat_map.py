"""A heat map: numbers by row and column, as colours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from halrp.lab.report.figure import Axis, Spec, category_axis, short
from halrp.lab.report.style import DIVERGING, RISING

STEP = 24
"""Pixels of a row, less if there are many."""
HEIGHT = 800
"""Pixels of all rows at most."""
WRITTEN = 30
"""Pixels of a column in which its number is written."""


@dataclass(frozen=True)
class HeatMap:
    """`values[row][column]` as colours, None where there is none."""

    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str = ""
    """What the numbers are, beside the scale of colours."""

    def spec(self) -> Spec:
        """The heat map as Vega-Lite."""
        columns, rows = _distinct(self.columns), _distinct(self.rows)
        cells = [
            {"x": column, "y": row, "value": short(value)}
            for row, values in zip(rows, self.values, strict=True)
            for column, value in zip(columns, values, strict=True)
            if short(value) is not None
        ]
        x = category_axis(self.x.title, columns, margin=170)
        y: Spec = {"title": self.y.title, "field": "y", "type": "nominal", "sort": None, "axis": {"labelOverlap": True}}
        y["scale"] = {"domain": list(rows)}
        unit = self.unit or "value"
        tooltip = [
            {"field": "y", "title": self.y.title},
            {"field": "x", "title": self.x.title},
            {"field": "value", "type": "quantitative", "title": unit, "format": ".5~g"},
        ]
        cell = {"mark": {"type": "rect"}, "encoding": {"color": self._colour(), "tooltip": tooltip}}
        number = {
            "mark": {"type": "text", "fontSize": 10, "opacity": {"expr": f"bandwidth('x') < {WRITTEN} ? 0 : 1"}},
            "encoding": {
                "text": {"field": "value", "type": "quantitative", "format": ".3~g"},
                "color": {
                    "condition": {"test": "luminance(scale('color', datum.value)) > 0.3", "value": "#1b2027"},
                    "value": "#ffffff",
                },
                "tooltip": tooltip,
            },
        }
        return {
            "data": {"name": "rows", "values": cells},
            "height": min(HEIGHT, STEP * len(rows)),
            "encoding": {"x": x, "y": y},
            "layer": [cell, number],
            "usermeta": {"legend": [], "zoom": False},
        }

    def _colour(self) -> Spec:
        """From low to high; zero lies in the middle if there are values below it."""
        values = [value for row in self.values for value in row if short(value) is not None]
        scale: Spec = {"range": list(RISING), "zero": False, "nice": False, "interpolate": "rgb"}
        if values and min(v for v in values if v is not None) < 0:
            limit = short(max(abs(v) for v in values if v is not None))
            scale |= {"range": list(DIVERGING), "domain": [-(limit or 0), limit]}
        legend = {"title": self.unit or None, "gradientThickness": 12, "titleOrient": "right", "gradientLength": 120}
        return {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Names along an axis; equal ones would share a row, so they get marks that cannot be seen."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        made.append(name + "\u200b" * seen.get(name, 0))
        seen[name] = seen.get(name, 0) + 1
    return tuple(made)
