"""Whether a value is of the kind that is expected. Needs no torch."""

from __future__ import annotations

import math

from halrp.errors import TaskError
from halrp.text import is_encodable


def is_whole(value: object, least: float = -math.inf, below: float = math.inf) -> bool:
    """Whether a value is a whole number, not a truth value, with least ≤ value < below."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def is_number(value: object, least: float = -math.inf) -> bool:
    """Whether a value is a finite number, not a truth value, of at least `least`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and math.isfinite(value) and value >= least  # type: ignore[arg-type, operator]


def check_task_name(name: object) -> None:
    """Refuse what cannot be the name of a task."""
    if not isinstance(name, str) or not name:
        raise TaskError(f"a task's name must be a non-empty string, got {name!r}")
    if not is_encodable(name):
        raise TaskError(f"the task's name {name!r} cannot be written to a file: it has half of a surrogate pair")
