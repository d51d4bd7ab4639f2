"""What every benchmark is made of: tasks, their splits, and the order in which they come.

A task has a name and an identity that do not depend on where in the stream it stands, because the metrics
compare the same task under several orders. A stream makes a task when it is asked for one: the images of a
benchmark take far more memory as normalised floats than as the bytes they are stored in, and most learners
look at one task at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

from torch import Generator, Tensor


class Split(NamedTuple):
    """Examples and their labels: `x` float32, (examples, channels, height, width); `y` int64 in 0 … classes−1."""

    x: Tensor
    y: Tensor


class Normal(NamedTuple):
    """x = (pixel − mean) / deviation, with pixels in 0 … 1 and values by channel, or one for all channels."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


Augment = Callable[[Tensor, Generator], Tensor]
"""`augment(x, generator)`: a batch of images (batch, channels, height, width) → as many of the same shape. Every draw
comes from the generator, which lies on the CPU."""


@dataclass(frozen=True, eq=False)
class Task:
    """A named classification problem."""

    name: str
    """What the task is called, the same in every order."""
    identity: int
    """The task's number in its benchmark, the same in every order."""
    classes: int
    """How many classes it has; labels are local, 0 … classes−1."""
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...] = ()
    """What the classes are called, by local label; empty when they have no names."""
    normal: Normal = Normal((0.0,), (1.0,))
    """How the pixels were normalised."""
    augment: Augment | None = None
    """What training does to its images, batch by batch; None where the protocol has nothing."""

    def __repr__(self) -> str:
        sizes = "/".join(str(len(split.y)) for split in (self.train, self.val, self.test))
        return f"Task({self.name!r}, identity={self.identity}, classes={self.classes}, train/val/test={sizes})"


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Tasks in an order: `stream[i]` is the task at position i, `stream.identities[i]` its identity.

    Nothing is kept: asking twice for a position makes the same task twice. A slice is a shorter stream.
    """

    name: str
    """The benchmark, its variant after "@" if it has any, and "@subset" where a data set is not whole."""
    order: str
    seed: int
    fraction: float
    identities: tuple[int, ...]
    make: Callable[[int], Task]
    """Make the task of an identity; a pure function."""
    shape: tuple[int, int, int]
    """Of one image: channels, height, width."""

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
