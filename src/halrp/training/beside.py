"""Tensors that go beside a model's inputs, row by row: `Beside` says which the model is computing with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.training.augmented import refuse_unlike
from halrp.training.batches import Augment, InMemory


class Beside:
    """What lies beside the rows that a network is computing; None where it computes rows with nothing beside them."""

    rows: Tensor | None = None


@dataclass(frozen=True)
class CallBeside(Call):
    """A call with a batch (x, beside), of which a model gets x as another call gives it."""

    inner: Call = field(default_factory=Call)
    beside: Beside = field(default_factory=Beside)

    def given(self, module: nn.Module, batch: Batch) -> object:
        """All that a module gives for x."""
        x, self.beside.rows = batch
        try:
            return self.inner.given(module, x)
        finally:
            self.beside.rows = None


def laid_beside(data: InMemory, rows: Tensor, call: CallBeside) -> InMemory:
    """Data whose examples (N, …) have a row of a tensor (N, …) beside them."""
    return replace(data, x=(data.x, rows.to(data.y.device)), call=call)


def beside(data: InMemory, rows: Tensor, held: Beside) -> InMemory:
    """The same, where `held` has the rows while a model computes with the examples beside them."""
    return laid_beside(data, rows, CallBeside(data.call.output, data.call.transform, data.call, held))


def of_inputs(augment: Augment, task: str) -> Augment:
    """An augmentation of inputs for batches (x, beside)."""

    def augmented(batch: Batch, generator: torch.Generator) -> Batch:
        x, rows = batch
        other = augment(x, generator)
        refuse_unlike(other, x, task)
        return other, rows

    return augmented
