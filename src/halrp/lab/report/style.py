"""Colours, marks and line styles of plots, and the theme around them: the same on the page and in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from halrp.lab.registry import MARKS, PALETTE, colour_of, mark_of
from halrp.lab.report.figure import LABEL_LIMIT, Spec

REFERENCES: Final = ("#7b828b", "#8560d6", "#c69a12", "#0b7285")
"""For what belongs to no method and is a reference for our runs."""
SYMBOLS: Final = {
    "circle": "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z",
    "square": "M-.9,-.9H.9V.9H-.9Z",
    "diamond": "M0,-1.25L1.25,0L0,1.25L-1.25,0Z",
    "triangle-up": "M0,-1.15L1.2,.9H-1.2Z",
    "cross": "M-.4,-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
    "x": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "triangle-down": "M0,1.15L1.2,-.9H-1.2Z",
    "star": "M0,-1.25L.3,-.4L1.2,-.38L.48,.15L.75,1L0,.5L-.75,1L-.48,.15L-1.2,-.38L-.3,-.4Z",
}
"""The marks of methods as paths in a square from -1 to 1."""
DASHES: Final = {"solid": (1, 0), "dot": (2, 2), "dashdot": (6, 2, 2, 2), "longdashdot": (9, 2, 2, 2), "dash": (5, 3)}
REPEATED: Final = ("solid", "dot", "dashdot", "longdashdot")
"""Lines of a method that a chart has several times. References are drawn as "dash"."""

RISING: Final = ("#2d2353", "#3b4a8c", "#2f7396", "#2b9a93", "#5bbf79", "#b4d94e", "#f7e948")
"""From low to high, by lightness alone too."""
DIVERGING: Final = ("#2b5ea7", "#7fa8d6", "#eef0f2", "#eaa27b", "#b8442b")
"""From below zero to above it."""


@dataclass(frozen=True)
class SeriesStyle:
    """How one series is drawn."""

    colour: str
    symbol: str
    dash: str

    @property
    def fill(self) -> str:
        """What its marks are filled with: those of references are open."""
        return "transparent" if self.dash == "dash" else self.colour


def series_styles(series: Iterable[tuple[str, bool]]) -> list[SeriesStyle]:
    """The style of each series of a chart, given its method ("" for none) and whether it is a reference."""
    seen: dict[tuple[str, bool], int] = {}
    styles = []
    for method, reference in series:
        repeat = seen[method, reference] = seen.get((method, reference), -1) + 1
        dash = "dash" if reference else REPEATED[repeat % len(REPEATED)] if method else "solid"
        colours = (colour_of(method),) if method else REFERENCES if reference else PALETTE
        first = MARKS.index(mark_of(method)) if method else 0
        symbol = MARKS[(first + repeat) % len(MARKS)]
        styles.append(SeriesStyle(colours[repeat % len(colours)], symbol, dash))
    return styles


def theme(*, paper: str, ink: str, soft: str, line: str, faint: str, font: str) -> Spec:
    """What surrounds a plot, as Vega-Lite's `config`; colours may be variables of the page."""
    return {
        "font": font,
        "background": paper,
        "view": {"stroke": None},
        "axis": {
            "domainColor": line, "tickColor": line, "gridColor": faint, "labelColor": ink, "titleColor": ink,
            "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8,
            "labelLimit": LABEL_LIMIT,
        },
        "legend": {
            "labelColor": ink, "titleColor": soft, "labelFontSize": 11, "titleFontSize": 11,
            "titleFontWeight": "normal", "symbolSize": 60,
        },
        # One weight for all texts: a PDF of several fonts has them in a random order.
        "title": {
            "anchor": "start", "frame": "group", "fontSize": 13, "fontWeight": "normal", "color": ink, "offset": 12,
        },
        "rule": {"color": ink},
    }  # fmt: skip


LIGHT: Final = theme(
    paper="#ffffff", ink="#1b2027", soft="#59626e", line="#9aa2ac", faint="#e6e9ed", font="DejaVu Sans, sans-serif"
)
PAGE: Final = theme(
    paper="transparent",
    ink="var(--ink)",
    soft="var(--soft)",
    line="var(--line)",
    faint="var(--faint)",
    font="var(--sans)",
)
"""Colours of the page's style sheet: a plot follows when the page turns dark."""
