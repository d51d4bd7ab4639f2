"""Loss and score of a module over a task's data, without training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.training.batches import Data
from halrp.training.recipe import autocast


@torch.no_grad()
def evaluate(module: nn.Module, data: Data, batch: int = 512, dtype: torch.dtype | None = None) -> tuple[float, float]:
    """Mean loss and mean score of a module in evaluation mode over a task's data, by the data's objective.

    For classification, these are cross-entropy and accuracy.
    """
    objective = data.objective
    loss: Tensor | float = 0.0
    score: Tensor | float = 0.0
    weight: Tensor | float = 0
    for x, y in data.batches(batch, None):
        with autocast(dtype, y.device):
            outputs = data.call(module, x)
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        loss = loss + objective.total_loss(outputs, y)
        score = score + objective.total_score(outputs, y)
        weight = weight + objective.weight(y)
    total = float(weight) or 1.0  # nothing counts if every target is to be ignored
    return float(loss) / total, float(score) / total
