"""What every benchmark is made of: tasks, their splits, and the order in which they come.

A task has a name and an identity that do not depend on where in the stream it stands, because the metrics
compare the same task under several orders. A stream makes a task when it is asked for one: the images of a
benchmark take far more memory as normalised floats than as the bytes they are stored in, and most learners
look at one task at a time.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

from torch import Tensor

from halrp.errors import SettingError


class Split(NamedTuple):
    """Examples and their labels: `x` float32, (examples, channels, height, width); `y` int64 in 0 … classes−1."""

    x: Tensor
    y: Tensor


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

    def __repr__(self) -> str:
        sizes = "/".join(str(len(split.y)) for split in (self.train, self.val, self.test))
        return f"Task({self.name!r}, identity={self.identity}, classes={self.classes}, train/val/test={sizes})"


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """Tasks in an order: `stream[i]` is the task at position i, `stream.identities[i]` its identity.

    Nothing is kept: asking twice for a position makes the same task twice. A slice is a shorter stream.
    """

    name: str
    order: str
    seed: int
    fraction: float
    identities: tuple[int, ...]
    make: Callable[[int], Task]
    """Make the task of an identity; a pure function."""

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


def identities_of(stream: str, orders: Mapping[str, Sequence[int]], order: str) -> tuple[int, ...]:
    """Look up `order` of a benchmark: the identities of its tasks, by position."""
    if order not in orders:
        nearest = difflib.get_close_matches(str(order), orders, n=1, cutoff=0.0)[0]
        raise SettingError(
            f"stream {stream!r} has no order {order!r}; the nearest name is {nearest!r}, and all of them are "
            f"{', '.join(orders)}"
        )
    return tuple(orders[order])


def shares(stream: str, count: int, fraction: float, validation: float) -> tuple[int, int]:
    """Say how many of `count` images a fraction keeps, and how many of those validate.

    kept = ⌈fraction · count⌉ and held = ⌊validation · kept⌋; the other kept images train.
    """
    # Rounding first: 0.07 · 5000 is a little more than 350 in binary, and its ceiling would be 351.
    kept = math.ceil(round(fraction * count, 6))
    held = math.floor(round(validation * kept, 6))
    if held == 0:
        raise SettingError(
            f"fraction={fraction} of stream {stream!r} keeps {kept} of {count} images and leaves none of them for "
            f"validation; use at least {math.ceil(1 / validation) / count:.4f}"
        )
    return kept, held
