"""An interrupted task resumes with the same data and functions, and starts again with others."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from halrp import FromProbe, Halrp, Learner, Progress, Store, WarmUp
from halrp.errors import CheckpointWarning, SettingError
from halrp.store import task_file
from tests.helpers import FAST, net, tiny_task

METHOD = replace(Halrp.budget(growth_per_task=0.9), view="mean", start=WarmUp())
RECIPE = replace(FAST, epochs=4)
X, Y = tiny_task("mlp", 1)


class Log:
    """Finished epochs; the first run stops after two."""

    def __init__(self, stop: bool) -> None:
        self.stop, self.epochs = stop, 0

    def __call__(self, at: Progress) -> None:
        if at.step == 0:
            self.epochs += 1
            if self.stop and self.epochs == 2:
                raise KeyboardInterrupt


def learner(folder: Path, log: Log) -> Learner:
    store = Store(folder, checkpoint_every=0)
    return Learner(net("mlp"), method=METHOD, recipe=RECIPE, base="given", store=store, progress=log)


def resumed_epochs(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> int:
    """Interrupt a task after two of its four epochs and learn it again; the epochs that it still takes."""
    with pytest.raises(KeyboardInterrupt):
        learner(folder, Log(True)).learn("a", **first)
    log = Log(False)
    learner(folder, log).learn("a", **second)
    return log.epochs


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """A data set of a user."""

    def __init__(self, x: Tensor = X, y: Tensor = Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Examples without a length."""

    def __init__(self, x: Tensor = X, y: Tensor = Y) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.x, self.y, strict=True))


def shuffling(x: Tensor = X, y: Tensor = Y, seed: int = 0) -> DataLoader[Any]:
    return DataLoader(Pairs(x, y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed))


FORMS: dict[str, Any] = {
    "tensors": lambda x, y: (x, y),
    "data set": Pairs,
    "loader": lambda x, y: DataLoader(Pairs(x, y), batch_size=8),
    "shuffling loader": lambda x, y: DataLoader(Pairs(x, y), batch_size=8, shuffle=True),
    "loader with a generator": shuffling,
    "stream": lambda x, y: DataLoader(Stream(x, y), batch_size=8),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_data_in_a_new_object_resume(form: str, tmp_path: Path) -> None:
    build = FORMS[form]
    first, second = ({"train": build(X.clone(), Y.clone()), "val": build(X + 1, Y)} for _ in range(2))
    assert resumed_epochs(tmp_path, first, second) == 2


@pytest.mark.parametrize("part", ["labels", "inputs", "validation labels"])
@pytest.mark.parametrize("form", FORMS)
def test_corrected_data_of_the_same_size_start_again(form: str, part: str, tmp_path: Path) -> None:
    build = FORMS[form]
    first = {"train": build(X, Y), "val": build(X + 1, Y)}
    corrected, clean = Y.clone(), X.clone()
    corrected[3] = (corrected[3] + 1) % 3
    clean[5, 2] += 1e-3
    changes = {
        "labels": {"train": build(X, corrected)},
        "inputs": {"train": build(clean, Y)},
        "validation labels": {"val": build(X + 1, corrected)},
    }
    assert resumed_epochs(tmp_path, first, first | changes[part]) == 4


@pytest.mark.parametrize("form", ["data set", "loader", "shuffling loader"])
def test_data_in_another_order_start_again_where_the_order_counts(form: str, tmp_path: Path) -> None:
    first = {"train": FORMS[form](X, Y)}
    assert resumed_epochs(tmp_path, first, {"train": FORMS[form](X.flip(0), Y.flip(0))}) == 4


def test_a_loader_whose_own_generator_is_elsewhere_is_recognised(tmp_path: Path) -> None:
    assert resumed_epochs(tmp_path, {"train": shuffling(seed=1)}, {"train": shuffling(seed=2)}) == 2


def test_a_key_stands_for_the_data(tmp_path: Path) -> None:
    first = {"train": Pairs(), "data_key": "v3", "classes": 3}
    same, other = first | {"train": Pairs(X + 1)}, first | {"data_key": "v4"}
    assert resumed_epochs(tmp_path / "same", first, same) == 2
    assert resumed_epochs(tmp_path / "other", first, other) == 4


@pytest.mark.parametrize("key", ["", 3, b"v3"])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    with pytest.raises(SettingError, match="data_key="):
        Learner(net("mlp"), base="given").learn("a", (X, Y), data_key=key)


class Counted(Pairs):
    """Counts how often an example is read."""

    reads = 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return super().__getitem__(index)


def reads(folder: Path | None, method: Halrp = METHOD, **arguments: Any) -> float:
    """Passes over the training data while a task is learned, besides the batch that shows that the model fits."""
    train = Counted()
    learning = Learner(net("mlp"), method=method, recipe=RECIPE, base="given", store=folder)
    learning.learn("a", train, val=(X, Y), **arguments)
    return (train.reads - RECIPE.batch) / len(train)


def test_data_are_read_no_more_often_than_needed(tmp_path: Path) -> None:
    at_probe = replace(METHOD, start=FromProbe())
    assert reads(None, at_probe, classes=3) == RECIPE.epochs + 2  # features, and gradients
    epochs = RECIPE.epochs
    assert reads(None, classes=3) == epochs
    assert reads(None, class_names=["a", "b", "c"]) == epochs
    assert reads(tmp_path / "a", classes=3, data_key="v1") == epochs
    assert reads(None) == epochs + 1  # the labels
    assert reads(tmp_path / "b", classes=3) == epochs + 1  # the content


def test_what_is_learned_does_not_depend_on_reading_before() -> None:
    sources: list[Any] = [Pairs(), DataLoader(Pairs(), batch_size=5, shuffle=True)]
    for train in sources:
        learners = [Learner(net("mlp"), method=METHOD, recipe=RECIPE, base="given") for _ in range(2)]
        files = [
            task_file.write(learners[0].learn("a", train)),
            task_file.write(learners[1].learn("a", train, classes=3)),
        ]
        assert files[0] == files[1]


def scaled(x: Tensor, generator: torch.Generator, by: float) -> Tensor:
    return x * by


class Scaled:
    """An augmentation with a state."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x * self.by


AUGMENTATIONS: dict[str, Any] = {
    "partial": lambda by: functools.partial(scaled, by=by),
    "closure": lambda by: lambda x, generator: x * by,
    "instance": Scaled,
    "bound method": lambda by: Scaled(by).__call__,
}


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_an_augmentation_is_the_same_only_with_the_same_state(kind: str, tmp_path: Path) -> None:
    build = AUGMENTATIONS[kind]
    first, same, other = ({"train": (X, Y), "augment": build(by)} for by in (0.5, 0.5, 0.6))
    assert resumed_epochs(tmp_path / "same", first, same) == 2
    assert resumed_epochs(tmp_path / "other", first, other) == 4


def test_an_augmentation_that_cannot_be_identified_starts_again_with_a_warning(tmp_path: Path) -> None:
    source = random.Random(0)
    arguments: dict[str, Any] = {"train": (X, Y), "augment": lambda x, generator: x * source.random()}
    with pytest.warns(CheckpointWarning, match=r"a: a value of type random\.Random cannot be compared"):
        assert resumed_epochs(tmp_path, arguments, arguments) == 4
    Learner(net("mlp"), method=METHOD, recipe=RECIPE, base="given").learn("a", **arguments)  # no store, no warning


def test_a_tensor_data_set_is_identified_as_its_tensors(tmp_path: Path) -> None:
    assert resumed_epochs(tmp_path, {"train": TensorDataset(X, Y)}, {"train": (X, Y)}) == 2
