"""The training that methods other than halrp share: Adam, a rate that rises and falls, one order of the examples."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.pretrained.domain import Task
from halrp import seeding
from halrp.model.batch import Batch, rows, split, take

EPOCHS = 8
RISE = 0.1
"""The share of the steps in which the rate rises; then it falls along half a cosine to zero."""


def train(model: nn.Module, task: Task, *, lr: float, batch: int, frozen_norms: bool) -> None:
    """Train the parameters that require gradients, and leave the model in evaluation mode.

    The last epoch counts: with a rate that ends at zero, it is the best one nearly always. Batch norms that are frozen
    normalise with their own statistics and do not change them.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr)
    count = len(task.train.y)
    steps = EPOCHS * math.ceil(count / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: factor(step, steps))
    set_training(model, frozen_norms)
    for epoch in range(EPOCHS):
        order = torch.randperm(count, generator=seeding.generator("order", task.seed, task.name, epoch))
        for chosen in order.split(batch):
            loss = nn.functional.cross_entropy(model(take(task.train.x, chosen)), task.train.y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()


def factor(step: int, steps: int) -> float:
    """The rate of a step, as a share of the highest one."""
    rising = max(1, round(RISE * steps))
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def set_training(model: nn.Module, frozen_norms: bool) -> None:
    """Training mode, except for batch norms that are frozen."""
    model.train()
    for module in model.modules():
        if frozen_norms and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def predict(model: Callable[[Batch], Tensor], x: Batch, size: int = 100) -> Tensor:
    """Outputs of a model in evaluation mode, in batches of `size` rows."""
    with torch.no_grad():
        return torch.cat([model(part) for part in split(x, min(size, rows(x)))])
