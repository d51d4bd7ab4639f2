"""What a task gained over its start and over a guess, on validation data, as its file reports it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from torch import nn

from halrp.errors import NotLearnedWarning
from halrp.model.description import Description
from halrp.training.run import TaskRun
from halrp.training.stopping import Validation

Described = TypeVar("Described", bound=Description)
KEY = "outcome"
"""Where a task's provenance has it."""
UNKNOWN = 9e98
"""Stands for a number that is not known or not finite."""


class Outcome(NamedTuple):
    """Loss and score on the validation data of what was committed, and what they are compared with."""

    start: Validation | None
    """Those at the start, where that is a solution of its own: at the probe."""
    end: Validation
    epoch: int = 0
    """The epoch that was committed, if there is a start; 0 is the start."""
    guess: float | None = None
    """The score of the best constant answer; None if it is not known."""

    @property
    def is_guess(self) -> bool:
        """Whether the task has learned nothing that a constant answer does not have."""
        return self.guess is not None and not self.end.score > self.guess

    def text(self) -> str:
        """The outcome in a file. All texts of a kind are equally long, so that a file's size is known before."""
        guess = UNKNOWN if self.guess is None else self.guess
        if self.start is None:
            return " ".join(map(_fixed, (*self.end, guess)))
        return " ".join((*map(_fixed, (*self.start, *self.end, guess)), f"{min(self.epoch, 99_999):05d}"))

    def __str__(self) -> str:
        """In words."""
        guessing = ""
        if self.guess is not None and self.is_guess:
            guessing = f", no better than guessing ({100 * self.guess:.1f})"
        end = 100 * self.end.score
        if self.start is None:
            return f"{end:.1f} on validation{guessing}"
        start = 100 * self.start.score
        if not self.epoch:
            return f"probe {start:.1f} on validation, and no epoch was better{guessing}"
        return f"probe {start:.1f} → delta {end:.1f} on validation, best epoch {self.epoch}{guessing}"


def outcome_of(provenance: Mapping[str, Any]) -> Outcome | None:
    """The outcome that a task's provenance reports, or None if it reports none that can be read."""
    try:
        words = str(provenance[KEY]).split(" ")
        if len(words) == 3:
            *numbers, guess = map(float, words)
            return Outcome(None, Validation(*numbers), guess=_known(guess))
        *words, epoch = words
        numbers = list(map(float, words))
        first, second, third, fourth, guess = numbers if len(numbers) == 5 else (*numbers, UNKNOWN)
        return Outcome(Validation(first, second), Validation(third, fourth), int(epoch), _known(guess))
    except (KeyError, ValueError):
        return None


def measured(run: TaskRun, net: nn.Module) -> Outcome | None:
    """The outcome of a network that has no start of use, if the task has validation data."""
    validation = run.validation(net)
    return None if validation is None else Outcome(None, validation, guess=run.guess(net))


def reporting(part: Described, outcome: Outcome | None) -> Described:
    """A description, or a delta, whose provenance has an outcome if there is one."""
    return part if outcome is None else replace(part, provenance={**part.provenance, KEY: outcome.text()})


def warn_of_a_guess(run: TaskRun, outcome: Outcome | None) -> None:
    """Warn before a task is committed that scores no more than a constant answer does."""
    if outcome is not None and outcome.is_guess:
        warnings.warn(
            f"{run.task}: its score on the validation data, {outcome.end.score:.4g}, is no better than that of "
            f"guessing without inputs, {outcome.guess:.4g}, so it has learned nothing of use; lower Recipe(lr="
            f"{run.recipe.lr:g}), give more epochs, or check that inputs and targets belong together",
            NotLearnedWarning,
            stacklevel=2,
        )


def _known(number: float) -> float | None:
    return number if abs(number) < UNKNOWN else None


def _fixed(number: float) -> str:
    """A number as eleven characters."""
    bounded = min(max(number, -UNKNOWN), UNKNOWN) if math.isfinite(number) else UNKNOWN
    return f"{0.0 if abs(bounded) < 1e-98 else bounded:+.4e}"


_NOTHING = Validation(0.0, 0.0)
BLANK = Outcome(_NOTHING, _NOTHING).text()
"""The text before the outcome of a task that starts at a solution is known."""
BLANK_END = Outcome(None, _NOTHING).text()
"""The text before that of another task is known."""
