"""Values of records as text in a table of Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from halrp.lab.records import aggregate
from halrp.lab.records.aggregate import Row, Undefined
from halrp.lab.report.lines import Line
from halrp.lab.report.paper import lookup


@cache
def loaded(folder: Path) -> tuple[aggregate.Record, ...]:
    """The good records under a folder."""
    return tuple(aggregate.load([folder]).records)


def summary(folder: Path) -> list[Row]:
    """One row for each method and its settings."""
    return aggregate.summary(loaded(folder))


class Paper(NamedTuple):
    """What the paper prints where a row of ours is, empty if it prints nothing."""

    accuracy: str = ""
    difference: str = ""
    disparity: str = ""


def paper_of(row: Row) -> Paper:
    """The paper's accuracy, ours less the paper's where they can be compared, and the paper's MOPD / AOPD."""
    place, method = (str(row["stream"]), str(row["backbone"]), value(row["fraction"])), str(row["method"])
    printed = lookup(*place, method)
    if printed is None:
        return Paper()
    gap = math.nan if Line(place, method, printed, row).obstacles else value(row["accuracy"]) - printed.accuracy
    disparity = f"{printed.mopd:.1f} / {printed.aopd:.1f}" if printed.mopd and printed.aopd else ""
    return Paper(f"{printed.accuracy:.2f}", "" if math.isnan(gap) else f"{gap:+.2f}", disparity)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with a head."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def value(of: Any) -> float:
    """A number; what is undefined is not one."""
    return math.nan if isinstance(of, Undefined) else float(of)


def number(of: Any, digits: int) -> str:
    """A number with so many digits after the point."""
    return "–" if isinstance(of, Undefined) else f"{of:.{digits}f}"


def whole(of: Any) -> str:
    """A large number without digits after the point."""
    return "–" if isinstance(of, Undefined) else f"{of:,.0f}"


def with_error(row: Row) -> str:
    """The accuracy of a row, and its standard error if it has one."""
    error = "" if isinstance(row["error_usual"], Undefined) else f" ± {number(row['error_usual'], 2)}"
    return f"{number(row['accuracy'], 2)}{error}"


def named(row: Row) -> str:
    """The method of a row with the settings that differ from its usual ones."""
    return f"`{row['method']}`" + (f" ({row['settings']})" if row["settings"] else "")
