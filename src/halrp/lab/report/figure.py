"""What a figure of a report is: plots as plain values, which know nothing of records nor of how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from halrp.lab.report.table import Value


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    title: str
    log: bool = False
    zero: bool = False
    """Whether the axis begins at zero."""


@dataclass(frozen=True)
class Series:
    """Values of one thing, drawn in one colour. `x`, `y` and, where they are given, `error` and `notes` are as long."""

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
    """For what is held beside our runs: the paper's values, a noise floor, a bound."""


@dataclass(frozen=True)
class Chart:
    """Series over a common x axis."""

    kind: Literal["lines", "bars", "points"]
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True)
class HeatMap:
    """A heat map: `values[row][column]`, None where there is none."""

    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str = ""
    """What the numbers are, beside the scale of colours."""


Plot: TypeAlias = Chart | HeatMap


@dataclass(frozen=True)
class Figure:
    """One or more plots of the same kind, of which the reader chooses one by its label."""

    key: str
    """A name for files and links: letters, digits and hyphens."""
    title: str
    about: str
    """What is shown and how to read it, in a sentence or two."""
    plots: Mapping[str, Plot]
