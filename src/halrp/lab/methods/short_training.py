"""A short training on a pretrained base: Adam, a rate that rises and falls, and no choice of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.model.batch import Batch, take
from halrp.model.layers.norm import BATCH_NORMS

RISE = 0.1
"""The share of the steps in which the rate rises; then it falls along half a cosine to zero."""


def train(
    model: nn.Module,
    x: Batch,
    y: Tensor,
    *,
    lr: float,
    epochs: int,
    batch: int,
    frozen_norms: bool,
    order: tuple[object, ...],
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
    after_step: Callable[[int], None] = lambda step: None,
    after_epoch: Callable[[int, float], None] = lambda epoch, mean_loss: None,
) -> None:
    """Train the parameters that require gradients, and leave the model in evaluation mode.

    The last epoch counts: with a rate that ends at zero, it is the best one nearly always. Batch norms that are frozen
    normalise with their own statistics and do not change them. `order` is the seed key of the order of examples;
    `after_step` is called with the number of steps taken, before gradients are cleared; `after_epoch` with that
    of epochs and the mean loss of the last one.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr)
    total = steps(len(y), epochs, batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: factor(step, total))
    set_training(model, frozen_norms)
    taken = 0
    for epoch in range(epochs):
        losses = torch.zeros((), device=y.device)
        mixed = torch.randperm(len(y), generator=seeding.generator(*order, epoch))
        for chosen in mixed.split(batch):
            if len(chosen) == 1 and not frozen_norms and len(y) > 1:
                continue  # a batch norm needs rows
            optimiser.zero_grad()
            value = loss(model(take(x, chosen)), y[chosen])
            value.backward()
            losses += value.detach() * len(chosen)
            optimiser.step()
            schedule.step()
            taken += 1
            after_step(taken)
        after_epoch(epoch + 1, float(losses) / len(y))
    model.eval()


def steps(examples: int, epochs: int, batch: int) -> int:
    """The number of steps of a training."""
    return epochs * math.ceil(examples / batch)


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
        if frozen_norms and isinstance(module, BATCH_NORMS):
            module.eval()
