"""Loss and score of a module over a task's data, without training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.objectives import Objective, classification
from halrp.training.batches import Data
from halrp.training.recipe import autocast


@torch.no_grad()
def evaluate(
    module: nn.Module,
    data: Data,
    batch: int = 512,
    dtype: torch.dtype | None = None,
    objective: Objective = classification,
) -> tuple[float, float]:
    """Mean loss and mean score (0 … 1) of a module in evaluation mode over a task's data.

    For classification, the default, these are cross-entropy and accuracy.
    """
    loss: Tensor | float = 0.0
    score: Tensor | float = 0.0
    examples = 0
    for x, y in data.batches(batch, None):
        with autocast(dtype, y.device):
            outputs = module(x).float()
        loss = loss + objective.total_loss(outputs, y)
        score = score + objective.score(outputs, y)
        examples += y.shape[0]
    return float(loss) / examples, float(score) / examples
