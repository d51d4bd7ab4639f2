"""A stage of a task's learning, and what a caller may change in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from halrp.model.batch import Batch
from halrp.objectives import classification
from halrp.training.batches import Augment


@dataclass(frozen=True)
class Stage:
    """A stage of a task's learning: the base, warm-up or fine-tuning."""

    epochs: int
    seed_key: tuple[object, ...]
    """What every random draw is a function of, together with the number of the epoch."""
    task: str = ""
    """The task's name in progress reports and errors."""
    name: str = ""
    """The stage's name in progress reports, errors and checkpoints."""


Loss = Callable[[nn.Module, Batch, Tensor], Tensor]


def supervised_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of a module's outputs."""
    return classification.loss(module(x), y)


@dataclass(frozen=True)
class Hooks:
    """What a caller may change in a training. A hook that has a state must restore it itself after an interruption."""

    loss: Loss | None = None
    """`loss(module, x, y)`, a scalar tensor to minimise, a mean over examples; by default that of the objective."""
    augment: Augment | None = None
    """Changes the inputs of every batch."""
    after_backward: Callable[[], None] | None = None
    """May change the gradients before a step; they include the l1 penalty, and not yet the optimiser's l2."""
    after_step: Callable[[], None] | None = None
    """May change the parameters in place after a step."""
    settle: Callable[[], None] | None = None
    """Fits what is not trained to the module as it is, before it is measured, and when training is over."""
