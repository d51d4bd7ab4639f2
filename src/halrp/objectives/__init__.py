"""What a task's outputs mean: its loss, its score and the check of its targets, one file per kind of task.

An objective is a module or object with the calls of `Objective`. The training loop and evaluation take one;
`halrp.objectives.classification` is the default, and the one that `Learner` learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Objective(Protocol):
    """Loss and score of outputs (N, width) for targets (N, ...)."""

    def loss(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """The mean loss over the examples, (,), which training minimises."""

    def total_loss(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """The sum of the loss over the examples, (,), so that batches add up."""

    def score(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """The sum over the examples of a score between 0 and 1, (,): for classification, the correct ones."""
