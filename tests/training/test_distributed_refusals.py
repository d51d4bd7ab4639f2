"""What processes cannot learn together is refused in each of them, before anything is trained; and loaders of parts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from halrp import Recipe
from halrp.errors import BatchOfOneError, DataError, ProcessError, SettingError
from halrp.store import task_file
from tests.helpers import CLASSES, Pairs, tiny_task
from tests.training.processes import Log, learner, together


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set that has one example less in every pass."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([(x, y) for x, y in zip(self.x, self.y, strict=True)][: len(self.y) + 3 - self.passes])


X, Y = tiny_task("mlp")


def loader(rank: int, rows: slice | None = None, batch: int = 4) -> DataLoader[Any]:
    rows = slice(rank, None, 2) if rows is None else rows
    return DataLoader(Pairs(X[rows], Y[rows]), batch_size=batch, shuffle=True)


def sampled(rank: int) -> DataLoader[Any]:
    data = Pairs(X, Y)
    return DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=1))


REFUSED: dict[str, tuple[Callable[[int], dict[str, Any]], dict[int, tuple[type[Exception], str]]]] = {
    "loaders of different lengths": (
        lambda rank: {"train": loader(rank, slice(0, 12) if rank else slice(12, 20))},
        dict.fromkeys((0, 1), (DataError, "have 2, 3 batches")),
    ),
    "loaders of the same data": (
        lambda rank: {"train": loader(rank, slice(None))},
        dict.fromkeys((0, 1), (DataError, "the same first batch")),
    ),
    "a part of the validation data": (
        lambda rank: {"train": (X, Y), "val": sampled(rank)},
        dict.fromkeys((0, 1), (DataError, "DistributedSampler")),
    ),
    "other examples": (
        lambda rank: {"train": (X + rank, Y)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the examples")),
    ),
    "labels of a part": (
        lambda rank: {"train": DataLoader(Pairs(X[rank::2], (Y % (2 + rank))[rank::2]), 4)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the (objective|width)")),
    ),
    "an error in one process": (
        lambda rank: {"train": (X if rank else X.log(), Y)},
        {0: (DataError, "NaN"), 1: (ProcessError, "process 0 failed.*DataError.*NaN")},
    ),
    "another task": (
        lambda rank: {"name": f"task {rank}", "train": (X, Y)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the task: task 0 and task 1")),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_refused_in_every_process_before_training(case: str, tmp_path: Path) -> None:
    arguments, expected = REFUSED[case]

    def work(rank: int) -> Any:
        log = Log()
        result = learner(progress=log)
        with pytest.raises(expected[rank][0], match=expected[rank][1]):
            result.learn(**{"name": "a"} | arguments(rank))
        return log.epochs, list(result.tasks)

    assert together(work, tmp_path) == [([], []), ([], [])]


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"recipe": Recipe(batch=1)}, SettingError, "less than one example for each of 2 processes"),
        ({"kind": "conv", "recipe": Recipe(batch=3)}, BatchOfOneError, "one example in one of 2 processes"),
        ({"seed": None}, ProcessError, "differ in settings"),
    ],
)
def test_settings_that_cannot_be_shared_are_refused(
    settings: dict[str, Any], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    def work(rank: int) -> Any:
        given = {"kind": "mlp"} | settings | ({"seed": rank} if "seed" in settings else {})
        with pytest.raises(error, match=reason):
            learner(**given).learn("a", tiny_task(given["kind"]))
        return True

    assert together(work, tmp_path) == [True, True]


def test_loaders_with_parts_of_the_data_learn_together(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        result = learner()
        sampler = sampled(rank)
        written = [task_file.write(result.learn("a", sampler, classes=CLASSES, val=DataLoader(Pairs(X, Y), 5)))]
        epochs = sampler.sampler.epoch  # type: ignore[attr-defined]
        return [*written, task_file.write(result.learn("b", loader(rank)))], epochs, result.predict(X, "a")

    first, second = together(work, tmp_path)
    assert first[0] == second[0]
    assert first[1] == second[1]
    assert torch.equal(first[2], second[2])


def test_a_loader_that_has_fewer_batches_later_ends_every_process(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        if rank:
            return learner().learn("a", DataLoader(Stream(X[1::2], Y[1::2]), 1), classes=CLASSES)
        return learner().learn("a", loader(rank, batch=1), classes=CLASSES)

    first, second = together(work, tmp_path)
    assert isinstance(second, DataError)
    assert "had 12 before" in str(second)
    assert isinstance(first, ProcessError)


def test_workers_and_processes_contradict_each_other(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        with ThreadPoolExecutor(1) as engine, pytest.raises(SettingError, match="leave one out"):
            learner().learn_many({"a": ((X, Y),)}, engine)
        return True

    assert together(work, tmp_path, size=1) == [True]
