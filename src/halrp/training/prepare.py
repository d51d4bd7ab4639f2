"""From data in any form that users pass to examples that can be trained on, checked before anything is trained.

`(x, y)` (or a `TensorDataset`, or a mapping with `labels`) is held in memory on the model's device. A `Dataset` is
read through a `DataLoader` with the recipe's batch size; a `DataLoader` is used as it is. A task that cannot be
learned raises a typed error and leaves everything unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from halrp.errors import DataError, SettingError
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.objectives import Classification, Objective
from halrp.training.batches import Data, InMemory, Loaded, on_device
from halrp.training.loader_scan import Scan, foreseen_sizes, is_repeatable
from halrp.training.pairs import checked_pair

Source: TypeAlias = "tuple[Batch, Tensor] | Mapping[str, Batch] | Dataset[Any] | DataLoader[Any]"


def prepare(
    source: Source,
    *,
    name: str,
    device: torch.device,
    batch: int,
    objective: Objective | None = None,
    call: Call | None = None,
    shuffle: bool = True,
    channels_last: bool = False,
    drop_last: bool = False,
    identify: bool = False,
) -> Data:
    """Check a task's data and return it in uniform shape, with its objective completed from the targets.

    `name` names the data in errors (for example `"birds: train"`). `drop_last` leaves out the incomplete last batch of
    a `Dataset`. A loader is read once before training if that shows something: what the objective leaves open, the
    content with `identify`, or sizes that nothing else tells.
    """
    objective, call = objective or Classification(), call or Call()
    if type(source) is TensorDataset and len(source.tensors) == 2:  # a subclass may transform what it yields
        source = (source.tensors[0], source.tensors[1])
    if isinstance(source, list) and len(source) == 2 and isinstance(source[1], Tensor):
        source = tuple(source)
    if isinstance(source, (tuple, Mapping)):
        return _in_memory(source, name, device, objective, call, channels_last)
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
    if sizes is None or not objective.is_fitted or identify:
        scan = Scan(is_repeatable(loader))
        targets = scan.targets(_checked(loader, objective, name))
        first = next(targets, None)
        if first is None:
            raise DataError(f"{name}: the loader yields no example; a task needs at least one")
        objective = objective.fitted(chain([first], targets), name)
        for _ in targets:  # whatever the objective did not read
            pass
        sizes, content = tuple(scan.sizes), scan.digest()
    elif not sizes:
        raise DataError(f"{name}: the loader yields no batch; a task needs at least one example")
    return Loaded(loader, device, objective, sizes, channels_last, content, call)


def _in_memory(
    source: object, name: str, device: torch.device, objective: Objective, call: Call, channels_last: bool
) -> Data:
    x, y = checked_pair(source, objective, name)
    if y.shape[0] == 0:
        raise DataError(f"{name}: the task is empty; a task needs at least one example")
    if y.is_cuda:
        y = objective.check(y, name)
    objective = objective.fitted([y], name)
    return InMemory(on_device(x, device, channels_last), y.to(device), channels_last, objective=objective, call=call)


def _checked(loader: DataLoader[Any], objective: Objective, name: str) -> Iterator[tuple[Batch, Tensor]]:
    """The batches of a loader that have examples, checked."""
    for item in loader:
        x, y = checked_pair(item, objective, name)
        if y.shape[0]:
            yield x, y


def refuse_no_batch(examples: int, batch: int, name: str) -> None:
    """Raise if leaving out the incomplete last batch leaves nothing."""
    if examples < batch:
        raise SettingError(
            f"{name}: Recipe(batch={batch}, drop_last=True) leaves no batch of {examples} examples; "
            f"give batch={examples} or less, or drop_last=False"
        )
