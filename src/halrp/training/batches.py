"""A task's data in any form that users pass, checked and made uniform before anything is trained.

`(x, y)` tensors (or a `TensorDataset`) are held in memory on the model's device and batches are index lookups. A
`Dataset` is read through a `DataLoader` with the recipe's batch size; a `DataLoader` is used as it is. A task that
cannot be learned raises a typed error and leaves everything unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from halrp import seeding
from halrp.errors import BatchOfOneError, DataError, SettingError
from halrp.model.inference import batch_sizes
from halrp.objectives import classification
from halrp.training.loader_scan import foreseen_sizes, is_repeatable, scan
from halrp.training.sampling import balanced_order

Source: TypeAlias = "tuple[Tensor, Tensor] | Dataset[Any] | DataLoader[Any]"
Augment: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""`augment(x, generator)` changes a batch of inputs into another of the same shape, type and device. Draws from the
generator, which lies on the CPU, are the same whenever the epoch is trained."""


class Data(Protocol):
    """Examples of one task, as batches."""

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""

    def identity(self) -> str:
        """A text that is different for other examples, as far as that can be known without training on them."""

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `(x, y)` on the model's device, shuffled by the generator or in the stored order."""


class TaskData(NamedTuple):
    """Everything that a task is learned from."""

    train: Data
    val: Data | None
    classes: int
    class_names: tuple[str, ...] | None = None
    augment: Augment | None = None


@dataclass(frozen=True)
class InMemory:
    """A task as two tensors. Batches are index lookups on the device.

    `x` is kept with its channels last when `channels_last` is set: row lookups then copy whole pictures, and the
    batch is in the format that convolutions want.
    """

    x: Tensor
    y: Tensor
    channels_last: bool = False
    drop_last: bool = False
    """Leave out what does not fill a last batch."""
    by_class: bool = False
    """Draw examples with replacement, every class equally likely."""

    @property
    def examples(self) -> int:
        """The number of examples in one pass."""
        return self.y.shape[0]

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""
        return len(self._sizes(batch))

    def identity(self) -> str:
        """A hash of all examples."""
        return seeding.fingerprint({"x": self.x, "y": self.y})

    def _sizes(self, batch: int) -> list[int]:
        return [batch] * (self.examples // batch) if self.drop_last else batch_sizes(self.examples, batch)

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `(x, y)` batches by index lookup, or by slicing when the order is the stored one."""
        sizes = self._sizes(batch)
        used = sum(sizes)
        if shuffle is None:
            for x, y in zip(self.x[:used].split(sizes), self.y[:used].split(sizes), strict=True):
                yield x.clone(), y  # a model may write to its input, and these rows may be the user's own
            return
        drawn = balanced_order(self.y, shuffle) if self.by_class else torch.randperm(self.examples, generator=shuffle)
        order = drawn[:used].to(self.y.device)
        rows = self.x.movedim(1, -1) if self.channels_last else self.x
        for index in order.split(sizes):
            x = rows.index_select(0, index)
            yield (x.movedim(-1, 1) if self.channels_last else x), self.y.index_select(0, index)


@dataclass(frozen=True)
class Loaded:
    """A task read through a `DataLoader`, batch by batch."""

    loader: DataLoader[Any]
    device: torch.device
    classes: int
    sizes: tuple[int, ...]
    """Examples in each batch."""
    channels_last: bool = False
    content: str = ""
    """A hash of the examples, if they were read before."""

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

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the loader's own batches, checked where they lie and then moved to the device."""
        number = -1
        for number, item in enumerate(self.loader):
            x, y = _pair(item, f"batch {number}")
            if y.shape[0] == 0:
                continue
            if not x.is_cuda:  # a check on the device would wait for it at every step
                _check_inputs(x, f"batch {number}")
                classification.check_labels(y, self.classes, f"batch {number}")
            x = x.to(self.device, non_blocking=True)
            if self.channels_last and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            yield x, y.to(self.device, dtype=torch.long, non_blocking=True)
        if number < 0:
            raise DataError("the loader yields nothing when it is read again; its data must allow several passes")


def prepare(
    source: Source,
    *,
    name: str,
    device: torch.device,
    batch: int,
    classes: int | None = None,
    shuffle: bool = True,
    channels_last: bool = False,
    drop_last: bool = False,
    identify: bool = False,
) -> tuple[Data, int]:
    """Check a task's data and return it in uniform shape with its number of classes.

    `name` names the data in errors (for example `"birds: train"`). Without `classes` the labels must be 0 … n−1 and
    occur all. `drop_last` leaves out the incomplete last batch of a `Dataset`. A loader is read once before training if
    that shows something: its labels without `classes`, its content with `identify`, or sizes that nothing else tells.
    """
    if classes is not None:
        classes = classification.given_classes(classes, name)
    if type(source) is TensorDataset and len(source.tensors) == 2:  # a subclass may transform what it yields
        source = (source.tensors[0], source.tensors[1])
    if isinstance(source, list) and all(isinstance(part, Tensor) for part in source):
        source = tuple(source)
    if isinstance(source, tuple):
        return _in_memory(source, name=name, device=device, classes=classes, channels_last=channels_last)
    if isinstance(source, DataLoader):
        loader = source
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if len(source) == 0:
            raise DataError(f"{name}: the data set is empty; a task needs at least one example")
        if drop_last:
            refuse_no_batch(len(source), batch, name)
        loader = DataLoader(source, batch_size=batch, shuffle=shuffle, drop_last=drop_last)
    else:
        raise DataError(
            f"{name}: cannot read data of type {type(source).__name__}; "
            "pass (x, y) tensors, a Dataset with a length, or a DataLoader"
        )
    sizes, content = foreseen_sizes(loader), ""
    if sizes is None or classes is None or identify:
        sizes, labels, content = scan(_checked(loader, name), is_repeatable(loader))
        if not sizes:
            raise DataError(f"{name}: the loader yields no example; a task needs at least one")
        classes = classification.class_count(labels, classes, name)
    elif not sizes:
        raise DataError(f"{name}: the loader yields no batch; a task needs at least one example")
    return Loaded(loader, device, classes, sizes, channels_last, content), classes


def _in_memory(
    source: tuple[Tensor, ...], *, name: str, device: torch.device, classes: int | None, channels_last: bool
) -> tuple[Data, int]:
    x, y = _pair(source, name)
    if y.shape[0] == 0:
        raise DataError(f"{name}: the task is empty; a task needs at least one example")
    _check_inputs(x, name)
    classification.check_labels(y, None, name)
    classes = classification.class_count(y.long().unique(), classes, name)
    channels_last = channels_last and x.dim() == 4
    x = x.to(device)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return InMemory(x, y.to(device, dtype=torch.long), channels_last), classes


def _pair(item: object, name: str) -> tuple[Tensor, Tensor]:
    if not (isinstance(item, (tuple, list)) and len(item) == 2):
        raise DataError(f"{name}: expected a pair (x, y), got {type(item).__name__}")
    x, y = item
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise DataError(
            f"{name}: x and y must be tensors, got {type(x).__name__} and {type(y).__name__}; "
            "convert arrays with torch.as_tensor"
        )
    if x.is_meta or y.is_meta:
        raise DataError(f"{name}: x or y is on the meta device and has no values; pass data that does")
    if x.dim() == 0 or y.dim() == 0:
        raise DataError(f"{name}: x and y need a first dimension of examples, got a single number")
    if x.shape[0] != y.shape[0]:
        raise DataError(f"{name}: {x.shape[0]} inputs but {y.shape[0]} labels; they must be paired")
    return x, y


def _check_inputs(x: Tensor, name: str) -> None:
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x.reshape(x.shape[0], -1))).any(dim=1).sum())
        raise DataError(f"{name}: {bad} of {x.shape[0]} inputs hold NaN or infinity; clean or drop them")


def _checked(loader: DataLoader[Any], name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a loader that have examples, checked."""
    for item in loader:
        x, y = _pair(item, name)
        if y.shape[0]:
            _check_inputs(x, name)
            classification.check_labels(y, None, name)
            yield x, y


def refuse_no_batch(examples: int, batch: int, name: str) -> None:
    """Raise if leaving out the incomplete last batch leaves nothing."""
    if examples < batch:
        raise SettingError(
            f"{name}: Recipe(batch={batch}, drop_last=True) leaves no batch of {examples} examples; "
            f"give batch={examples} or less, or drop_last=False"
        )


def refuse_batch_of_one(data: Data, batch: int, name: str) -> None:
    """Raise if a pass over `data` holds a batch of one example, which has no statistics to normalise by."""
    if isinstance(data, InMemory):
        alone = data.examples == 1 or batch == 1
    else:
        alone = isinstance(data, Loaded) and 1 in data.sizes
    if alone:
        raise BatchOfOneError(
            f"{name}: batch normalisation cannot train on a batch of one example "
            f"({data.examples} examples, batch size {batch}); use batches of two or more, or drop_last=True"
        )
