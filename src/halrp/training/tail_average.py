"""The mean of parameters over the last steps of a training, which is often better than where the last one led.

Steps around a minimum scatter, and their mean lies nearer to it. With `first` the first step that counts, counted
from 0, step t makes it: mean ← mean + (parameter − mean) / (t − first + 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TailAverage:
    """The mean of some parameters over the last share of a number of steps."""

    def __init__(self, parameters: Sequence[Tensor], share: float, steps: int) -> None:
        """Begin before the first step; of `steps`, at least the last one counts."""
        self.first = steps - max(1, round(share * steps))
        self.averages = [parameter.detach().clone() for parameter in parameters]

    def has_begun(self, steps: int) -> bool:
        """Whether one of the finished steps counts."""
        return steps > self.first

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor], step: int) -> None:
        """Take the parameters after a step into account."""
        if step >= self.first:
            weight = 1 / (step - self.first + 1)
            torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in parameters], weight)
