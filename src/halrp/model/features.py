"""What the frozen base makes of inputs before a task's head: `Features`.

They are the input of the head, one row of numbers for each example. Where the head gets a sequence or a picture, that
is averaged over positions; where a model keeps its own outputs for every task, they are the outputs. The head itself
is not computed.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn

from halrp.model import batch as tree
from halrp.model import views
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.inference import inference_batches
from halrp.model.precision import forward_precision


class _ReachedError(Exception):
    """The head has been reached; `given` is what it got."""

    def __init__(self, given: object) -> None:
        self.given = given


class _End(nn.Module):
    """Stands in the place of a head."""

    def forward(self, *given: object, **named: object) -> NoReturn:
        """Give what came here to whoever began the pass."""
        raise _ReachedError(given[0] if given else next(iter(named.values()), None))


class Features:
    """Computes the features of a base, with the base's own tensors. Threads may use it at the same time."""

    def __init__(self, base: Base) -> None:
        """Prepare the part of a base that comes before the head."""
        self._base, head = base, base.plan.head
        self._width: int | None = None
        self._body = base.module
        if head:
            matrices = (p for p in base.module.get_submodule(head).parameters() if p.dim() > 1)
            self._width = next((p.shape[1] for p in matrices), None)
            self._body = views.shared_copy(base.module, changed={head}).eval()
            views.replace_module(self._body, head, _End())

    def __call__(self, x: Batch, batch: int) -> Tensor | None:
        """Features (N, width) in float32 on the CPU, about `batch` rows at a time.

        None if the head gets no tensor with a row for each example.
        """
        prepared = self._base.prepare_inputs(x)
        sizes = inference_batches(self._base.module, tree.rows(prepared), batch)
        parts = [self._of(part) for part in tree.split(prepared, sizes)]
        given = [part for part in parts if part is not None]
        return torch.cat(given) if len(given) == len(parts) else None

    def _of(self, x: Batch) -> Tensor | None:
        with torch.no_grad(), forward_precision(None, tree.device_of(x)):
            try:
                given: object = self._base.call(self._body, x)
            except _ReachedError as reached:
                given = reached.given
            except AttributeError:  # the model reads parameters of the head
                if self._base.plan.head:
                    return None
                raise
            else:
                if self._base.plan.head:
                    return None
        if not isinstance(given, Tensor) or given.dim() < 2 or given.shape[0] != tree.rows(x):
            return None
        return self._pooled(given).float().cpu()

    def _pooled(self, given: Tensor) -> Tensor:
        """The mean over positions: all dimensions but the first and the one that the head's matrix is as wide as."""
        if given.dim() == 2:
            return given
        channels_first = given.shape[1] == self._width != given.shape[-1]
        return given.flatten(2).mean(2) if channels_first else given.flatten(1, -2).mean(1)
