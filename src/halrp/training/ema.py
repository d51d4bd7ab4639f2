"""A moving average of parameters, which is often better than where the last steps happened to lead.

After step t, counted from 0: average ← d·average + (1 − d)·parameter, with d = min(decay, (1 + t) / (10 + t)).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class MovingAverage:
    """The average of some parameters, of the same shapes."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        """Begin at the parameters as they are."""
        self.decay = decay
        self.averages = [parameter.detach().clone() for parameter in parameters]

    def has_begun(self, steps: int) -> bool:
        """Whether there is an average after a number of steps: there always is one."""
        return True

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor], step: int) -> None:
        """Take the parameters after a step into account."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in parameters], 1 - decay)
