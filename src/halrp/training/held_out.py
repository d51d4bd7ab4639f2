"""A part of the training data that serves as validation data, where a task has none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from halrp import seeding
from halrp.model import batch as tree
from halrp.training.batches import InMemory, TaskData

LEAST = 10
"""Examples that a task must have for a part of them to be held out."""


def split(data: TaskData, share: float, *key: object) -> TaskData | None:
    """A task with a share of its training examples held out as validation data, or None if that cannot be done.

    That is for examples in memory, of which there are enough, in one process. The part is drawn by the key, with the
    same share of every class where targets are labels.
    """
    train = data.train
    if not isinstance(train, InMemory) or train.examples < LEAST or not share or train.part.size > 1:
        return None
    every = max(2, round(1 / share))
    order = torch.randperm(train.examples, generator=seeding.generator(*key, "held out")).to(train.y.device)
    if train.y.dim() == 1 and not train.y.is_floating_point():
        order = order[train.y[order].argsort(stable=True)]
    held_out = torch.zeros(train.examples, dtype=torch.bool, device=train.y.device)
    held_out[order[every // 2 :: every]] = True
    return data._replace(train=_rows(train, ~held_out), val=_rows(train, held_out))


def _rows(data: InMemory, chosen: Tensor) -> InMemory:
    rows = chosen.nonzero().flatten()
    return replace(data, x=tree.take(data.x, rows), y=data.y[rows])
