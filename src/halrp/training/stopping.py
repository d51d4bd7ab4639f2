"""Early stopping: the best epoch by validation score, and when there is no hope for a better one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halrp.checks import is_number, is_whole
from halrp.training.saved_state import UnfitError, check_tensors

PREFIX = "best/"
"""What the names of the best epoch's tensors begin with in a checkpoint."""


class Validation(NamedTuple):
    """Loss and score of a module on validation data."""

    loss: float
    score: float


class Best(NamedTuple):
    """The best epoch so far, and the tensors that a module had then."""

    epoch: int
    validation: Validation
    tensors: dict[str, Tensor]


class EarlyStopping:
    """Remembers the best epoch; after `patience` epochs without a better one it is time to stop."""

    def __init__(self, patience: int) -> None:
        """Begin without an epoch."""
        self.patience = patience
        self.best: Best | None = None
        self.start: Validation | None = None
        """Loss and score before the first epoch, if that counts."""
        self.end: Validation | None = None
        """Loss and score of the epoch that was compared last."""

    def update(self, epoch: int, validation: Validation, tensors: Mapping[str, Tensor], *, is_end: bool = True) -> None:
        """Compare an epoch with the best: a higher score is better, and so is a lower loss on equal scores."""
        best = self.best
        self.start = validation if epoch == 0 else self.start
        self.end = validation if is_end else self.end
        if best is None or is_better(validation, best.validation):
            self.best = Best(epoch, validation, {name: tensor.detach().clone() for name, tensor in tensors.items()})

    @torch.no_grad()
    def go_halfway(self, tensors: Mapping[str, Tensor]) -> bool:
        """Set tensors to the middle between the start and what they are, if the start is best; whether that is so."""
        if self.best is None or self.best.epoch:
            return False
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensor.lerp_(self.best.tensors[name], 0.5)
        return True

    def is_over(self, epoch: int) -> bool:
        """Whether training has waited long enough for a better epoch."""
        return self.best is not None and epoch - self.best.epoch >= self.patience

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set tensors to what they were at the best epoch."""
        if self.best is not None:
            for name, tensor in tensors.items():
                tensor.copy_(self.best.tensors[name])

    def saved_tensors(self) -> dict[str, Tensor]:
        """The tensors of the best epoch, by their names in a checkpoint."""
        return {} if self.best is None else {f"{PREFIX}{name}": t for name, t in self.best.tensors.items()}

    def facts(self) -> dict[str, Any]:
        """The best epoch, as JSON values."""
        start = {} if self.start is None else {"start": [*self.start]}
        return {} if self.best is None else {"best": [self.best.epoch, *self.best.validation]} | start

    def resume(
        self, saved: Mapping[str, Tensor], facts: Mapping[str, Any], present: Mapping[str, Tensor], epoch: int
    ) -> None:
        """Take the saved best epoch out of `epoch`, or raise `UnfitError`; `saved` are its tensors in a checkpoint."""
        self.best = fitting(saved, facts, present, epoch)
        start: Any = facts.get("start")
        if start is not None:
            if not (isinstance(start, list) and len(start) == 2 and all(map(is_number, start))):
                raise UnfitError(f"its start is {start!r}")
            self.start = Validation(*start)


def fitting(
    saved: Mapping[str, Tensor], facts: Mapping[str, Any], present: Mapping[str, Tensor], epoch: int
) -> Best | None:
    """The saved best epoch out of `epoch`, or `UnfitError`; `saved` are its tensors by their names in a checkpoint."""
    best: Any = facts.get("best")
    if best is None and not saved and not epoch:
        return None
    numbers = isinstance(best, list) and len(best) == 3 and all(map(is_number, best))
    if not numbers or not is_whole(best[0], 0, epoch + 1):
        raise UnfitError(f"its best epoch is {best!r}")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in saved.items()}
    check_tensors(tensors, present)
    return Best(best[0], Validation(*best[1:]), {n: t.to(present[n].device) for n, t in tensors.items()})


def is_better(validation: Validation, other: Validation) -> bool:
    """Whether a score is higher, or equal with a lower loss."""
    return _order(validation) > _order(other)


def _order(validation: Validation) -> tuple[float, float]:
    return validation.score, -validation.loss
