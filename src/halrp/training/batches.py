"""A task's examples as batches on the model's device: in memory, or read from a loader.

Both know what outputs for them mean (`objective`) and how a batch reaches a model (`call`), so whoever has data can
compute their loss. `halrp.training.prepare` makes them of what users pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from halrp import seeding
from halrp.errors import BatchOfOneError, DataError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.inference import batch_sizes
from halrp.objectives import Classification, Objective
from halrp.training.pairs import checked_pair
from halrp.training.sampling import balanced_order

Augment: TypeAlias = Callable[[Batch, torch.Generator], Batch]
"""`augment(x, generator)` changes a batch of inputs into another of the same shape, type and device. Draws from the
generator, which lies on the CPU, are the same whenever the epoch is trained."""


class Data(Protocol):
    """Examples of one task, as batches."""

    @property
    def objective(self) -> Objective:
        """What outputs for the examples mean."""

    @property
    def call(self) -> Call:
        """How a batch reaches a model."""

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""

    def identity(self) -> str:
        """A text that is different for other examples, as far as that can be known without training on them."""

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Batch, Tensor]]:
        """Yield `(x, y)` on the model's device, shuffled by the generator or in the stored order."""


def loss_of(data: Data, module: nn.Module, x: Batch, y: Tensor) -> Tensor:
    """The mean loss of a module on a batch of data, (,)."""
    return data.objective.loss(data.call(module, x), y)


class Part(NamedTuple):
    """Which rows of every batch a process has, if several learn together: every `size`-th, beginning with `rank`."""

    rank: int = 0
    size: int = 1

    @property
    def rows(self) -> slice:
        """The rows of a batch."""
        return slice(self.rank, None, self.size)


def sizes_of(examples: int, batch: int, drop_last: bool, part: Part) -> list[int]:
    """Examples in each batch of a pass. A last batch with less than two for each process joins the one before it."""
    return [batch] * (examples // batch) if drop_last else batch_sizes(examples, batch, 2 * part.size)


class TaskData(NamedTuple):
    """Everything that a task is learned from."""

    train: Data
    val: Data | None
    width: int
    """The width of the task's head."""
    class_names: tuple[str, ...] | None = None
    augment: Augment | None = None

    @property
    def objective(self) -> Objective:
        """What the task's outputs mean."""
        return self.train.objective


@dataclass(frozen=True)
class InMemory:
    """A task as tensors with rows first. Batches are index lookups on the device, one for each tensor.

    Pictures are kept with their channels last when `channels_last` is set: row lookups then copy whole pictures, and
    the batch is in the format that convolutions want.
    """

    x: Batch
    y: Tensor
    channels_last: bool = False
    drop_last: bool = False
    """Leave out what does not fill a last batch."""
    by_class: bool = False
    """Draw examples with replacement, every class equally likely."""
    objective: Objective = field(default_factory=Classification)
    call: Call = field(default_factory=Call)
    part: Part = Part()
    """The rows of each batch that `batches` yields; sizes, steps and examples are those of all processes."""

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""
        return self.y.shape[0]

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""
        return len(self.sizes_in(batch))

    def identity(self) -> str:
        """A hash of all examples."""
        return seeding.fingerprint({**{f"x{path}": t for path, t in tree.named_leaves(self.x)}, "y": self.y})

    def sizes_in(self, batch: int) -> list[int]:
        """Examples in each batch."""
        return sizes_of(self.examples, batch, self.drop_last, self.part)

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Batch, Tensor]]:
        """Yield `(x, y)` batches by index lookup, or by slicing when the order is the stored one."""
        sizes = self.sizes_in(batch)
        used = sum(sizes)
        if shuffle is None:
            rows = tree.split(tree.take(self.x, slice(used)), sizes)
            for x, y in zip(rows, self.y[:used].split(sizes), strict=True):
                # A model may write to its input, and these rows may be the user's own.
                yield tree.tree_map(torch.clone, tree.take(x, self.part.rows)), y[self.part.rows]
            return
        drawn = balanced_order(self.y, shuffle) if self.by_class else torch.randperm(self.examples, generator=shuffle)
        order = drawn[:used].to(self.y.device)
        for index in (rows[self.part.rows] for rows in order.split(sizes)):
            yield tree.tree_map(partial(self._rows, index), self.x), self.y.index_select(0, index)

    def _rows(self, index: Tensor, tensor: Tensor) -> Tensor:
        if not (self.channels_last and tensor.dim() == 4):
            return tensor.index_select(0, index)
        return tensor.movedim(1, -1).index_select(0, index).movedim(-1, 1)


@dataclass(frozen=True)
class Loaded:
    """A task read through a `DataLoader`, batch by batch."""

    loader: DataLoader[Any]
    device: torch.device
    objective: Objective
    sizes: tuple[int, ...]
    """Examples in each batch."""
    channels_last: bool = False
    content: str = ""
    """A hash of the examples, if they were read before."""
    call: Call = field(default_factory=Call)

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""
        return sum(self.sizes)

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""
        return len(self.sizes)

    def identity(self) -> str:
        """The sizes of the batches, and a hash of what was in them when they were first read."""
        return f"{self.sizes} {self.content}"

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the loader's own batches, checked where they lie and then moved to the device."""
        if isinstance(self.loader.sampler, DistributedSampler):  # it draws from its own seed and number of the epoch
            self.loader.sampler.set_epoch(0 if shuffle is None else shuffle.initial_seed() % 2**31)
        number = -1
        for number, item in enumerate(self.loader):
            x, y = checked_pair(item, self.objective, f"batch {number}")
            if y.shape[0]:
                yield on_device(x, self.device, self.channels_last), y.to(self.device, non_blocking=True)
        if number < 0:
            raise DataError("the loader yields nothing when it is read again; its data must allow several passes")


def on_device(batch: Batch, device: torch.device, channels_last: bool) -> Batch:
    """A batch on a device, its pictures with their channels last in memory if that is wanted."""

    def move(tensor: Tensor) -> Tensor:
        moved = tensor.to(device, non_blocking=True)
        return moved.contiguous(memory_format=torch.channels_last) if channels_last and moved.dim() == 4 else moved

    return tree.tree_map(move, batch)


def refuse_batch_of_one(data: Data, batch: int, name: str) -> None:
    """Raise if a pass over `data` holds a batch of one example, which has no statistics to normalise by."""
    part: Part = getattr(data, "part", Part())
    if isinstance(data, Loaded):
        alone = 1 in data.sizes
    else:
        alone = hasattr(data, "sizes_in") and min(data.sizes_in(batch), default=0) // part.size == 1
    if alone:
        divided = f" in one of {part.size} processes" if part.size > 1 else ""
        raise BatchOfOneError(
            f"{name}: batch normalisation cannot train on a batch of one example{divided} "
            f"({data.examples} examples, batch size {batch}); use batches of two or more, or drop_last=True"
        )
