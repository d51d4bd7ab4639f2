"""Loss and score of a module over a task's data, without training."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor, nn

from halrp.training.batches import Data, Part
from halrp.training.distributed import Processes
from halrp.training.recipe import autocast


@torch.no_grad()
def evaluate(
    module: nn.Module,
    data: Data,
    batch: int = 512,
    dtype: torch.dtype | None = None,
    processes: Processes | None = None,
) -> tuple[float, float]:
    """Mean loss and mean score of a module in evaluation mode over a task's data, by the data's objective.

    For classification, these are cross-entropy and accuracy. Several `processes`, each with all data, take turns at the
    batches and get the same numbers.
    """
    objective, part = data.objective, Part() if processes is None else processes.part
    loss: Tensor | float = 0.0
    score: Tensor | float = 0.0
    weight: Tensor | float = 0
    for x, y in islice(data.batches(batch, None), part.rank, None, part.size):
        with autocast(dtype, y.device):
            outputs = data.call(module, x)
        outputs = outputs if outputs.dtype == torch.float64 else outputs.float()
        loss = loss + objective.total_loss(outputs, y)
        score = score + objective.total_score(outputs, y)
        weight = weight + objective.weight(y)
    if processes is not None:
        sums = torch.stack(
            [torch.as_tensor(s, dtype=torch.float64, device=processes.device) for s in (loss, score, weight)]
        )
        processes.add_flat(sums)
        loss, score, weight = sums.tolist()
    total = float(weight) or 1.0  # nothing counts if every target is to be ignored
    return float(loss) / total, float(score) / total
