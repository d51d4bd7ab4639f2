"""What a method is: anything that learns a stream, one task at a time, and predicts for any task it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from halrp.lab.streams import Task
from halrp.train import Notify, Recipe


class Size(NamedTuple):
    """What is stored to evaluate every learned task."""

    parameters: int
    """Numbers: parameters, buffers, heads."""
    bytes: int


@dataclass(frozen=True)
class Context:
    """What every method is given: how to build the backbone, how to train, and the seed of the run."""

    build: Callable[[int, int], nn.Module]
    """`build(classes, seed)` makes a network with fresh weights."""
    recipe: Recipe
    seed: int = 0
    progress: Notify | None = None


class Method(Protocol):
    """Learns a stream of tasks."""

    def learn(self, task: Task) -> None:
        """Learn the next task of the stream."""

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits for the task at a position of the stream."""

    def stored(self) -> Size:
        """What must be kept to evaluate every task learned so far."""


def size_of(module: nn.Module) -> Size:
    """The size of a whole network, buffers included."""
    tensors = [*module.parameters(), *module.buffers()]
    return Size(sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors))
