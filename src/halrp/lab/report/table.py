"""What a table of a report is: columns, and rows of values. Writers in `texts` and the page know nothing of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = str | int | float | None
"""What a table holds; None is a value that is not there."""


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
