"""What each of several processes reads of a task's data.

Data in memory and data sets are given to every process as a whole, which reads its rows of each batch. A loader is the
process's own: together their batches make the batches of the task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from halrp.errors import DataError, SettingError
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.objectives import Objective
from halrp.training.batches import Data, InMemory, Loaded, Part, sizes_of
from halrp.training.distributed import Processes
from halrp.training.loader_scan import Content


@dataclass(frozen=True)
class SharedDataset:
    """A task read from a `Dataset`, of which this process reads its part of each batch."""

    whole: Loaded
    """The data set, read by one process."""
    part: Part

    @property
    def objective(self) -> Objective:
        """What outputs for the examples mean."""
        return self.whole.objective

    @property
    def call(self) -> Call:
        """How a batch reaches a model."""
        return self.whole.call

    @property
    def examples(self) -> int:
        """The number of examples in one pass of all processes."""
        return len(self._dataset)  # type: ignore[arg-type]

    @property
    def _dataset(self) -> Dataset[Any]:
        return self.whole.loader.dataset

    def steps(self, batch: int) -> int:
        """The number of batches in one pass."""
        return len(self.sizes_in(batch))

    def sizes_in(self, batch: int) -> list[int]:
        """Examples in each batch of all processes."""
        return sizes_of(self.examples, batch, self.whole.loader.drop_last, self.part)

    def identity(self) -> str:
        """That of the data set."""
        return self.whole.identity()

    def batches(self, batch: int, shuffle: torch.Generator | None) -> Iterator[tuple[Batch, Tensor]]:
        """Yield this process's rows of each batch."""
        sizes = self.sizes_in(batch)
        order = torch.arange(self.examples) if shuffle is None else torch.randperm(self.examples, generator=shuffle)
        rows = [index[self.part.rows].tolist() for index in order[: sum(sizes)].split(sizes)]
        loader: DataLoader[Any] = DataLoader(self._dataset, batch_sampler=rows)
        return replace(self.whole, loader=loader).batches(batch, shuffle)


def part_of(data: Data, is_loader: bool, processes: Processes, batch: int, name: str) -> Data:
    """The part of training data that a process reads; a loader of the user is one already. Exchanges nothing."""
    if is_loader:
        return data
    if batch < processes.size:
        raise SettingError(
            f"{name}: Recipe(batch={batch}) has less than one example for each of {processes.size} processes; a batch "
            f"is divided among all of them, so give {processes.size} or more"
        )
    if data.examples < processes.size:
        raise DataError(
            f"{name}: {data.examples} examples for {processes.size} processes; use fewer processes, or more examples"
        )
    if isinstance(data, InMemory):
        return replace(data, part=processes.part)
    assert isinstance(data, Loaded)
    return SharedDataset(data, processes.part)


def whole(data: Data) -> Data:
    """All that this process could read of training data: everything, or what its own loader has."""
    if isinstance(data, InMemory):
        return replace(data, part=Part())
    return data.whole if isinstance(data, SharedDataset) else data


def refuse_validation_part(data: Data, name: str) -> None:
    """Raise if a loader of validation data has a part of them: they are divided among processes here."""
    if isinstance(data, Loaded) and isinstance(data.loader.sampler, DistributedSampler):
        raise DataError(
            f"{name}: the loader has a DistributedSampler; give every process all validation data in the same order, "
            "each then evaluates its share of the batches"
        )


def joined(data: Data, processes: Processes, name: str) -> Data:
    """Training data whose numbers of examples are those of all processes together.

    Raises in every process if loaders have different numbers of batches, or the same batches.
    """
    if not isinstance(data, Loaded):
        return data
    first = Content(ordered=True)
    with processes.agreed(name):
        first.add(*next(data.batches(1, None)))
    sizes = [tuple(map(int, text.split())) for text in processes.texts(" ".join(map(str, data.sizes)))]
    digests = processes.texts(first.digest())
    counts = [len(theirs) for theirs in sizes]
    if len(set(counts)) > 1:
        raise DataError(
            f"{name}: the loaders of the processes have {', '.join(map(str, counts))} batches; all must take the same "
            "number of steps, so give torch.utils.data.DistributedSampler, which makes parts equal, or drop_last=True"
        )
    if len(set(digests)) < len(digests):
        raise DataError(
            f"{name}: processes read the same first batch; give each loader its own part of the data, as "
            "torch.utils.data.DistributedSampler does, or pass the Dataset or (x, y) itself, which is divided here"
        )
    contents = "\n".join(processes.texts(data.content))
    content = hashlib.sha256(contents.encode()).hexdigest() if contents.strip() else ""
    return replace(data, sizes=tuple(map(sum, zip(*sizes, strict=True))), content=content)


def exactly(batches: Iterator[tuple[Batch, Tensor]], count: int, task: str) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches, and raise where a pass has other than `count` of them: the other processes would wait for ever."""
    number = 0
    for number, batch in enumerate(batches, 1):
        if number > count:
            break
        yield batch
    if number != count:
        batches_now = f"more than {count}" if number > count else str(number)
        raise DataError(
            f"{task}: the loader has {batches_now} batches in this pass, and had {count} before; processes that learn "
            "together need the same number in every pass"
        )
