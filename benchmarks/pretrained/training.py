"""The training that methods other than halrp share: the laboratory's short one, for eight epochs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.pretrained.domain import Task
from halrp.lab.methods import short_training
from halrp.lab.methods.short_training import factor
from halrp.model.batch import Batch, rows, split

__all__ = ["EPOCHS", "factor", "predict", "train"]

EPOCHS = 8


def train(model: nn.Module, task: Task, *, lr: float, batch: int, frozen_norms: bool) -> None:
    """Train the parameters that require gradients, and leave the model in evaluation mode."""
    order = ("order", task.seed, task.name)
    x, y = task.train
    short_training.train(model, x, y, lr=lr, epochs=EPOCHS, batch=batch, frozen_norms=frozen_norms, order=order)


def predict(model: Callable[[Batch], Tensor], x: Batch, size: int = 100) -> Tensor:
    """Outputs of a model in evaluation mode, in batches of `size` rows."""
    with torch.no_grad():
        return torch.cat([model(part) for part in split(x, min(size, rows(x)))])
