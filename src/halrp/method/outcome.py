"""What a task gained over its start, on validation data, as its file reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from halrp.training.stopping import Validation

KEY = "outcome"
"""Where a task's provenance has it."""


class Outcome(NamedTuple):
    """Loss and score on the validation data at the start, which is the probe, and of what was committed."""

    start: Validation
    end: Validation
    epoch: int
    """The epoch that was committed; 0 is the start."""

    def text(self) -> str:
        """The outcome in a file. All texts are equally long, so that a file's size is known before it is learned."""
        numbers = " ".join(_fixed(number) for number in (*self.start, *self.end))
        return f"{numbers} {min(self.epoch, 99_999):05d}"

    def __str__(self) -> str:
        """In words."""
        start, end = 100 * self.start.score, 100 * self.end.score
        if not self.epoch:
            return f"probe {start:.1f} on validation, and no epoch was better"
        return f"probe {start:.1f} → delta {end:.1f} on validation, best epoch {self.epoch}"


def outcome_of(provenance: Mapping[str, Any]) -> Outcome | None:
    """The outcome that a task's provenance reports, or None if it reports none that can be read."""
    try:
        *numbers, epoch = str(provenance[KEY]).split(" ")
        first, second, third, fourth = map(float, numbers)
        return Outcome(Validation(first, second), Validation(third, fourth), int(epoch))
    except (KeyError, ValueError):
        return None


def _fixed(number: float) -> str:
    """A number as eleven characters."""
    bounded = min(max(number, -9e98), 9e98) if math.isfinite(number) else 9e98
    return f"{0.0 if abs(bounded) < 1e-98 else bounded:+.4e}"


BLANK = Outcome(Validation(0.0, 0.0), Validation(0.0, 0.0), 0).text()
"""The text before the outcome is known."""
