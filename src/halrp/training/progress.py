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


Notify = Callable[[Progress], None]
