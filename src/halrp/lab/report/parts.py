"""What a report is made of, as plain values: tables, and figures of lines, bars, points or fields.

Builders compute parts from records and know nothing of how they are drawn. Drawers know nothing of records: the page
draws parts with one library, files for a paper with another, and both show the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Value: TypeAlias = str | int | float | None
"""What a table holds; None is a value that is not there."""


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
class Field:
    """A heat map: `values[row][column]`, None where there is none."""

    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str = ""
    """What the numbers are, beside the scale of colours."""


Drawing: TypeAlias = Chart | Field


@dataclass(frozen=True)
class Figure:
    """One or more drawings of the same kind, of which the reader chooses one by its label."""

    key: str
    """A name for files and links: letters, digits and hyphens."""
    title: str
    about: str
    """What is shown and how to read it, in a sentence or two."""
    drawings: Mapping[str, Drawing]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str
    title: str
    digits: int | None = None
    """Digits after the point, for numbers; None for text and whole numbers."""
    signed: bool = False
    about: str = ""
    """What the column means, shown with the pointer."""
    filters: bool = False
    """Whether the reader may choose among its values."""


@dataclass(frozen=True)
class Table:
    """Rows of values by column; `marks` says of a row whether ours is "better", "equal" or "worse"."""

    key: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]
    marks: tuple[str, ...] = ()
    """As long as `rows`, or empty. A row that cannot be judged has an empty mark."""


@dataclass(frozen=True)
class Section:
    """A chapter of the page."""

    key: str
    title: str
    about: str = ""
    parts: tuple[Table | Figure, ...] = field(default=())
