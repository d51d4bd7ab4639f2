"""What a training reports while it runs: `Progress`, passed to a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a training, as reported to a progress callback."""

    task: str
    stage: str
    epoch: int
    """Finished epochs of this stage."""
    epochs: int
    step: int
    """Finished steps of the running epoch; 0 when an epoch has just ended."""
    steps: int
    loss: float | None
    """Mean loss of the epoch that has just ended; None inside an epoch."""
    seconds: float
    """Since the stage began."""
    validation_loss: float | None = None
    """Loss on the validation data after the epoch that has just ended, if it was measured."""
    validation_score: float | None = None
    """Score on the validation data after the epoch that has just ended, if it was measured."""


Notify = Callable[[Progress], None]
"""A progress callback. One with an attribute `validates` that is true has every epoch measured on the validation data;
otherwise that is done where the recipe needs it. One that raises `StopTraining` ends the training."""


class StopTraining(Exception):  # noqa: N818  (it is no error)
    """Raised by a progress callback: no more training of this task, which is finished as it is and committed."""


@dataclass
class Stop:
    """Whether somebody has stopped the training of a task."""

    requested: bool = False
