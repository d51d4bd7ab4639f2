"""Whether a value from a file is a number of the kind that is expected. Needs no torch."""

from __future__ import annotations

import math


def is_whole(value: object, least: float = -math.inf, below: float = math.inf) -> bool:
    """Whether a value is a whole number, not a truth value, with least ≤ value < below."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def is_number(value: object, least: float = -math.inf) -> bool:
    """Whether a value is a finite number, not a truth value, of at least `least`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and math.isfinite(value) and value >= least  # type: ignore[arg-type, operator]
