"""`five`: what is done to each data set, their splits, and sizes on the real images."""

from os import PathLike
from pathlib import Path

import numpy as np
import pytest
import torch

from halrp.lab.data import LoadedDataSet, read
from halrp.lab.streams import Normal, five, load
from halrp.lab.streams.pixels import normalised, padded, resized
from halrp.lab.streams.protocol import mixed
from tests.lab.streams.made import loaded, rows, sizes, splits

NAMES = ("cifar10", "mnist", "svhn", "fashion-mnist", "notmnist")
NORMALS = (
    Normal((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    Normal((0.1,), (0.2752,)),
    Normal((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    Normal((0.2190,), (0.3318,)),
    Normal((0.4254,), (0.4501,)),
)


def test_tasks_are_the_data_sets_by_identity(made: None) -> None:
    stream = load("five", order="B")
    assert stream.identities == (1, 0, 4, 2, 3)
    assert [task.name for task in stream] == [NAMES[identity] for identity in stream.identities]
    assert [task.normal for task in stream] == [NORMALS[identity] for identity in stream.identities]
    assert stream[1].class_names == tuple(f"cifar10-{item}" for item in range(10))


@pytest.mark.parametrize("identity", range(5))
def test_tasks_follow_the_protocol_step_by_step(made: None, identity: int) -> None:
    name, parts = NAMES[identity], loaded(NAMES[identity]).parts
    if name == "notmnist":
        train = test = parts["all"]
        drawn = np.random.RandomState(0).permutation(800)
        pool, tested = np.sort(drawn[80:]), drawn[:80]
    else:
        train, test = parts["train"], parts["test"]
        pool, tested = np.arange(len(train.labels)), mixed(np.arange(len(test.labels)))
    shuffled = np.random.RandomState(1304).permutation(pool)
    selected = len(pool) // 2
    held = int(0.2 * selected)
    chosen = (shuffled[held:selected], shuffled[:held], tested)
    stream = load("five", seed=1, fraction=0.5)
    task = stream[stream.identities.index(identity)]
    for split, mine, source in zip(splits(task), chosen, (train, train, test), strict=True):
        x = torch.from_numpy(source.images[mine]).permute(0, 3, 1, 2)
        if name in ("mnist", "fashion-mnist"):
            x = padded(x, 2)
        elif name == "notmnist":
            x = resized(x, 32)
        assert torch.equal(split.x, normalised(x.expand(-1, 3, -1, -1), NORMALS[identity]))
        assert split.y.tolist() == source.labels[mine].tolist()


def test_notmnist_is_tested_on_the_same_images_for_every_seed(made: None) -> None:
    first, second = (load("five", order="A", seed=seed)[4] for seed in (0, 1))
    assert first.name == "notmnist"
    assert torch.equal(first.test.x, second.test.x)
    assert len(first.test.y) == 80
    assert rows(first.train.x) | rows(first.val.x) == rows(second.train.x) | rows(second.val.x)


# --- The real data, when they are beside the repository ------------------------------------------------------

NEEDS = ("cifar10", "mnist", "svhn", "notmnist")


@pytest.fixture
def without_fashion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let made images stand in for Fashion-MNIST, which is not beside the repository."""

    def most(name: str, data: str | PathLike[str] | None = None) -> LoadedDataSet:
        return loaded(name) if name == "fashion-mnist" else read(name, data)

    monkeypatch.setattr(five, "read", most)


@pytest.mark.slow
def test_real_tasks_have_the_sizes_of_the_data_at_hand(real: Path, without_fashion: None) -> None:
    stream = load("five", fraction=0.05, data=real)
    assert stream.name == "five@subset"
    for task in stream:
        if task.name == "fashion-mnist":
            continue
        found_here = read(task.name, real).parts
        if task.name == "notmnist":
            pool, tested = 16851, 1873  # nine tenths, and one rounded up, of 18724
        else:
            pool, tested = (len(found_here[part].labels) for part in ("train", "test"))
        selected = -(-pool // 20)
        assert sizes(task) == [selected - selected // 5, selected // 5, tested]
        if task.name != "notmnist":  # it has some five hundred images twice
            train, val, test = (rows(split.x) for split in splits(task))
            assert not train & val
            assert not train & test
            assert not val & test
