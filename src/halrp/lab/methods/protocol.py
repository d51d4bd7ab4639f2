"""What a method is: anything that learns a stream, one task at a time, and predicts for any task it has seen.

A method is a class that derives from `Method`, takes a `Context` and its own settings as keyword arguments with
defaults, and has an entry in the registry. `check_method` (in `halrp.lab.methods.check`) tests an implementation.
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
    """Everything a method has learned: tensors by name, and values that JSON can hold."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What every method receives: how to build the backbone, how to train it, and the seed of the run."""

    build: Callable[[int, int], nn.Module]
    """`build(classes, seed)` makes an untrained network on the device of the run; its last layer is called `head`."""
    recipe: Recipe
    seed: int = 0
    tasks: int = 1
    """The number of tasks in the stream; for methods that learn them all at once."""
    order: str = "A"
    """The name of the stream's order; for methods whose random numbers depend on it."""
    progress: Notify | None = None
    work: Path | None = None
    """A folder for checkpoints of the task that is being learned; None: no checkpoints."""
    given: bool = False
    """Whether the backbone is pretrained, so that it is the base of all tasks as it is."""


class Method(ABC):
    """Learns a stream of tasks."""

    frozen: bool = False
    """A learned task's logits stay bit-identical, whatever is learned later."""
    joint: bool = False
    """All tasks are learned together, after the last one was given. Nothing can be predicted before."""
    first_decides: bool = False
    """A later task depends on the stream's first task and on its own data alone. Runs that start with each task in turn
    then give the results of all orders."""

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
        """Numbers and bytes that are needed to evaluate every task learned so far, buffers included."""

    @abstractmethod
    def state(self) -> State:
        """Everything that was learned, for `restore` of a method with the same context and settings."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a state; whatever this method has learned is replaced."""

    def identify(self, x: Tensor) -> Tensor | None:
        """The position of the task that each row belongs to, (rows,) int64; None if the method cannot tell."""
        return None

    def counted(self) -> int:
        """The paper's count: `stored().parameters` without what its authors leave out (see each method)."""
        return self.stored().parameters

    def details(self) -> dict[str, Any]:
        """What a record should also hold about the task just learned, such as its ranks; values that JSON can hold."""
        return {}
