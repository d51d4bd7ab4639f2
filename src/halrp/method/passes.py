"""A pass over a part of a task's data, in two halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from halrp import seeding
from halrp.model.batch import Batch
from halrp.training.batches import Data

Batches = Iterator[tuple[Batch, Tensor]]


def halves(data: Data, batch: int, examples: int, key: Sequence[object], device: torch.device) -> Iterator[Batches]:
    """Two halves of batches with at most a number of examples together, spread evenly over one pass.

    Each must be read to its end before the next. If there is one batch only, it is both halves.
    """
    steps = data.steps(batch)
    wanted = max(1, min(steps, examples * steps // data.examples))
    with seeding.isolated(*key, device=device):  # a loader may draw its order
        if wanted == 1:
            first = next(iter(data.batches(batch, seeding.generator(*key))))
            yield iter([first])
            yield iter([first])
            return
        chosen = spread(data.batches(batch, seeding.generator(*key)), steps, wanted)
        yield islice(chosen, wanted // 2)
        yield chosen


def spread(batches: Batches, steps: int, wanted: int) -> Batches:
    """The wanted number of batches out of all steps, evenly."""
    for number, pair in enumerate(batches):
        if number * wanted // steps != (number + 1) * wanted // steps:
            yield pair
