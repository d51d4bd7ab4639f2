"""What a table of a report is: columns, and rows of values. Writers in `table_writers` and the page know no records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = str | int | float | None
"""What a table holds; None is a missing value."""


class Markdown(str):
    """Text that is Markdown already, such as the code span of a name: a document shows it as it is."""

    __slots__ = ()


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
    others: tuple[str, ...] = ()
    """Keys of further values that are shown in the same cell."""
    separator: str = "/"
    """What separates them."""
    format: Callable[[Any], str] | None = None
    """How a value is shown where `digits` does not suffice."""


@dataclass(frozen=True)
class Table:
    """Rows of values by column; `marks` rates each row of ours as "better", "equal" or "worse" than the paper's."""

    key: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value], ...]
    marks: tuple[str, ...] = ()
    """As long as `rows`, or empty. A row that cannot be rated has an empty mark."""


def plain_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Value], ...]:
    """Rows of a frame as those of a table: NaN is a missing value."""
    return tuple({key: None if _missing(value) else value for key, value in row.items()} for row in rows)


def _missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
