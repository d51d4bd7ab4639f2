"""What a figure of a report is: a title and plots, of which the reader chooses one.

A plot is plain values that know nothing of records. It describes itself once, as a Vega-Lite specification; the page
and the files for a paper are both rendered from that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Spec: TypeAlias = dict[str, Any]
"""A Vega-Lite specification, or a part of one, as values for JSON."""

LABEL_LIMIT = 170
"""Pixels of a name along an axis; longer ones are cut."""
LINE = 13
"""Pixels that a turned name needs."""
NARROW = 480
"""Pixels of a plot on a phone."""


@dataclass(frozen=True)
class Axis:
    """One axis of a plot."""

    title: str
    log: bool = False
    zero: bool = False
    """Whether the axis begins at zero."""


class Plot(Protocol):
    """Something that a figure shows."""

    def spec(self) -> Spec:
        """Its description without title and theme; `sized` adds its width.

        The values it shows are the data named "rows", and its `usermeta` has a list "legend" for the page.
        """
        ...


@dataclass(frozen=True)
class Figure:
    """One or more plots of the same kind, of which the reader chooses one by its label."""

    key: str
    """A name for files and links: letters, digits and hyphens."""
    title: str
    about: str
    """What is shown and how to read it, in a sentence or two."""
    plots: Mapping[str, Plot]


def category_axis(title: str, names: tuple[str, ...], margin: int = 90) -> Spec:
    """Names along the x axis in their order: turned where they would touch each other, and some left out if need be.

    `space` is a parameter of the whole plot, its width with margins, and `margin` what other things need of it.
    """
    width = min(6.3 * max(map(len, names), default=0), LABEL_LIMIT) + 10
    angle = f"space > {len(names) * width + margin:.0f} ? 0 : space < {NARROW} ? -90 : -40"
    axis = {
        "title": title,
        "labelAngle": {"expr": angle},
        "labelAlign": {"expr": f"({angle}) < 0 ? 'right' : 'center'"},
        "labelBaseline": {"expr": f"({angle}) == -90 ? 'middle' : 'top'"},
        "labelLimit": {"expr": f"space < {NARROW} ? {LABEL_LIMIT // 2} : {LABEL_LIMIT}"},
        "labelOverlap": {"expr": f"space > {LINE * len(names) + margin} ? false : 'greedy'"},
    }
    return {"field": "x", "type": "nominal", "sort": None, "scale": {"domain": list(names)}, "axis": axis}


def short(value: float | None) -> float | int | None:
    """A number with the digits that can be seen; None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
