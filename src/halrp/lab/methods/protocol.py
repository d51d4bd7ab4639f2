"""What a method is: anything that learns a stream, one task at a time, and predicts for any task it has seen.

A method is a class that derives from `Method`, takes a `Context` and its own settings as keyword arguments with
defaults, and has a line in the registry. `check_method` (in `halrp.lab.methods.check`) holds it to this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from halrp.lab.streams import Task
from halrp.model.size import Size
from halrp.training.progress import Notify
from halrp.training.recipe import Recipe

__all__ = ["Context", "Method", "Size", "State"]


class State(NamedTuple):
    """All that a method has learned: tensors by name, and values that JSON can hold."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What every method is given: how to build the backbone, how to train, and the seed of the run."""

    build: Callable[[int, int], nn.Module]
    """`build(classes, seed)` makes a network with fresh weights on the device of the run; its head is called `head`."""
    recipe: Recipe
    seed: int = 0
    tasks: int = 1
    """How many tasks the stream has; for methods that learn them all at once."""
    order: str = "A"
    """The name of the stream's order; for methods that draw anew in every order."""
    progress: Notify | None = None
    work: Path | None = None
    """A folder for checkpoints of the task that is being learned; None keeps none."""


class Method(ABC):
    """Learns a stream of tasks."""

    frozen: bool = False
    """The promise that a learned task's logits never change again, not by one bit."""
    joint: bool = False
    """Whether tasks are learned together, when the last one has come. Nothing can be predicted before."""
    first_decides: bool = False
    """Whether a task depends on the stream's first task and on itself alone. Then the result of every order is known
    once each task has come first."""

    def __init__(self, context: Context) -> None:
        """Take the run's context."""
        self.context = context

    @abstractmethod
    def learn(self, task: Task) -> None:
        """Learn the next task of the stream."""

    @abstractmethod
    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits, (rows, classes), of the task at a position of the stream, in evaluation mode and without gradient."""

    @abstractmethod
    def stored(self) -> Size:
        """Numbers and bytes that must be kept to evaluate every task learned so far, buffers included."""

    @abstractmethod
    def state(self) -> State:
        """All that was learned, so that a method of the same context and settings can go on from it."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go on from a state; what was learned before is replaced."""

    def counted(self) -> int:
        """The paper's count: like `stored().parameters`, without what its authors leave out (see each method)."""
        return self.stored().parameters

    def details(self) -> dict[str, Any]:
        """What else a record should say about the task just learned, such as its ranks; values that JSON can hold."""
        return {}
