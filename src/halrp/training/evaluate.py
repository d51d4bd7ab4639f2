"""Loss and score of a module over a task's data, without training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.objectives import classification
from halrp.training.batches import Data
from halrp.training.recipe import autocast


@torch.no_grad()
def evaluate(module: nn.Module, data: Data, batch: int = 512, dtype: torch.dtype | None = None) -> tuple[float, float]:
    """Mean cross-entropy and accuracy (0 … 1) of a module in evaluation mode over a task's data."""
    loss: Tensor | float = 0.0
    hits: Tensor | float = 0.0
    seen = 0
    for x, y in data.batches(batch, None):
        with autocast(dtype, y.device):
            logits = module(x).float()
        loss = loss + classification.total_loss(logits, y)
        hits = hits + classification.correct(logits, y)
        seen += y.shape[0]
    return float(loss) / seen, float(hits) / seen
