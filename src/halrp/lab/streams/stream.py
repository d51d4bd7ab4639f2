"""A stream: tasks with their splits, in an order.

A task has a name and an identity that do not depend on its position in the stream, because metrics compare the same
task under several orders. A stream makes each task on demand: the images of a benchmark need far more memory as
normalised floats than as stored bytes, and most methods need one task at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

from torch import Generator, Tensor

from halrp.errors import TaskError
from halrp.objectives import Classification, Objective
from halrp.text import is_encodable


class Split(NamedTuple):
    """Examples and their labels: `y` int64 in 0 … classes−1.

    `x` are images, float32 (examples, channels, height, width), or texts, token ids int64 (examples, tokens).
    """

    x: Tensor
    y: Tensor


class Normal(NamedTuple):
    """x = (pixel − mean) / deviation, with pixels in 0 … 1 and values by channel, or one for all channels."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


Augment = Callable[[Tensor, Generator], Tensor]
"""`augment(x, generator)`: a batch of images (batch, channels, height, width) → a batch of the same shape. All random
numbers come from the generator, which is on the CPU."""


@dataclass(frozen=True, eq=False)
class Task:
    """A named learning problem: classification, unless it says what else."""

    name: str
    """The task's name, the same in every order."""
    identity: int
    """The task's number in its benchmark, the same in every order."""
    classes: int
    """The number of classes; labels are local, 0 … classes−1. Of another kind of task, the number of outputs."""
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...] = ()
    """The names of the classes, by local label; empty if they have none."""
    normal: Normal = Normal((0.0,), (1.0,))
    """The normalisation of the pixels."""
    augment: Augment | None = None
    """The augmentation of training batches; None if the benchmark has none."""
    kind: Objective | None = None
    """What outputs mean, fitted to the training targets; None is classification."""

    @property
    def objective(self) -> Objective:
        """What outputs mean."""
        return Classification(self.classes) if self.kind is None else self.kind

    def __post_init__(self) -> None:
        for name in (self.name, *self.class_names):
            if not is_encodable(name):
                raise TaskError(f"the name {name!r} cannot be written to a file: it has half of a surrogate pair")

    def __repr__(self) -> str:
        sizes = "/".join(str(len(split.y)) for split in (self.train, self.val, self.test))
        return f"Task({self.name!r}, identity={self.identity}, classes={self.classes}, train/val/test={sizes})"


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Tasks in an order: `stream[i]` is the task at position i, `stream.identities[i]` its identity.

    Tasks are not cached: indexing twice makes the same task twice. A slice is a shorter stream.
    """

    name: str
    """The benchmark, its variant after "@" if it has one, and "@subset" if a data set is incomplete."""
    order: str
    seed: int
    fraction: float
    identities: tuple[int, ...]
    make: Callable[[int], Task]
    """Make the task of an identity; a pure function."""
    shape: tuple[int, ...]
    """The shape of an example: channels, height and width of an image, or the tokens of a text."""
    same_classes: bool = False
    """Whether all tasks have the same classes, in other domains."""

    def __len__(self) -> int:
        return len(self.identities)

    @overload
    def __getitem__(self, position: int) -> Task: ...

    @overload
    def __getitem__(self, position: slice) -> "Stream": ...

    def __getitem__(self, position: int | slice) -> "Task | Stream":
        if isinstance(position, slice):
            return replace(self, identities=self.identities[position])
        return self.make(self.identities[position])

    def __repr__(self) -> str:
        return (
            f"Stream({self.name!r}, order={self.order!r}, seed={self.seed}, fraction={self.fraction}, "
            f"tasks={len(self)})"
        )
