"""A learning rate that falls when the validation loss no longer does: the official schedule of `gpm` and `wsn`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from halrp.training.loop import Training


def train_until_plateau(
    training: Training,
    parameters: Sequence[nn.Parameter],
    validation_loss: Callable[[], float],
    factor: float,
    patience: int,
    floor: float,
) -> None:
    """Train epoch by epoch, and end with the parameters of the epoch with the lowest validation loss.

    After `patience` epochs without a lower loss the learning rate is divided by `factor`; training ends if it would
    be below `floor`.
    """
    lowest, best, waited = math.inf, [p.detach().clone() for p in parameters], 0
    while training.epoch < training.epochs:
        training.run(training.epoch + 1)
        loss = validation_loss()
        if loss < lowest:
            lowest, best, waited = loss, [p.detach().clone() for p in parameters], 0
            continue
        waited += 1
        if waited >= patience:
            rate, waited = training.recipe.lr / factor, 0
            if rate < floor:
                break
            training.set_rate(rate)
    with torch.no_grad():
        for parameter, value in zip(parameters, best, strict=True):
            parameter.copy_(value)
