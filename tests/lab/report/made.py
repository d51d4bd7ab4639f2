"""Records for figures, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.made_records import made


def steady(accuracy: float, tasks: int = 3, method: str = "halrp-budget", **more: Any) -> dict[str, Any]:
    """A record in which every task always has one accuracy."""
    return made([[accuracy] * (i + 1) for i in range(tasks)], method=method, **more)


def joint(final: Sequence[float], size: float = 1200.0, **more: Any) -> dict[str, Any]:
    """A record of a method that learns all tasks at once."""
    test: list[list[float | None]] = [[None] * (i + 1) for i in range(len(final) - 1)]
    seconds = [0.0] * (len(final) - 1) + [6.0]
    sizes = [None] * (len(final) - 1) + [size]
    return made([*test, list(final)], method="mtl", bytes=sizes, seconds=seconds, **more)


def with_facts(record: dict[str, Any], *facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record with more facts in its rows, from the first on."""
    rows = [row | dict(fact) for row, fact in zip(record["rows"], facts, strict=True)]
    return record | {"rows": rows}


def with_validation(record: dict[str, Any], share: float) -> dict[str, Any]:
    """The record with one accuracy on all validation data."""
    return record | {"rows": [row | {"val": [share] * len(row["val"])} for row in record["rows"]]}
