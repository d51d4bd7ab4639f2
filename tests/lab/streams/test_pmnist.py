"""`pmnist` and `pmnist-20`: permutations, validation images, and sizes on the real images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from halrp.lab.streams import load, pmnist, pmnist_20
from halrp.lab.streams.pixels import MNIST, normalised, resized
from halrp.lab.streams.protocol import mixed
from tests.lab.streams.made import loaded, rows, sizes, splits


@pytest.mark.parametrize(("module", "tasks", "values"), [(pmnist, 10, 3072), (pmnist_20, 20, 784)])
def test_permutations_are_different_and_complete(module: object, tasks: int, values: int) -> None:
    drawn = [module.permutation(identity) for identity in range(tasks)]  # type: ignore[attr-defined]
    assert all(torch.equal(item.sort().values, torch.arange(values)) for item in drawn)
    assert len({item.numpy().tobytes() for item in drawn}) == tasks


def test_pmnist_permutations_are_seeded_by_identity_and_position_and_none_is_the_identity() -> None:
    positions = {2: 0, 8: 1, 4: 2, 9: 3, 1: 4, 6: 5, 7: 6, 3: 7, 0: 8, 5: 9}
    for identity, position in positions.items():
        values = np.arange(3072)
        np.random.RandomState(100 * identity + position).shuffle(values)
        assert pmnist.permutation(identity).tolist() == values.tolist()
        assert values.tolist() != list(range(3072))


def test_pmnist_permutations_are_those_of_scikit_learns_shuffle() -> None:
    utils = pytest.importorskip("sklearn.utils")
    values = torch.rand(3072, generator=torch.Generator().manual_seed(0)).numpy()
    assert np.array_equal(utils.shuffle(values, random_state=200), values[pmnist.permutation(2).numpy()])


def test_pmnist_20_shuffles_the_pixels_of_the_task_before() -> None:
    pixels = np.arange(784)
    assert pmnist_20.permutation(0).tolist() == pixels.tolist()
    for task in range(1, 20):
        np.random.RandomState(100 * task).shuffle(pixels)
        assert pmnist_20.permutation(task).tolist() == pixels.tolist()


@pytest.mark.parametrize("name", ["pmnist", "pmnist-20"])
def test_the_inverse_permutation_restores_the_images_of_every_split(made: None, name: str) -> None:
    train, test = (loaded("mnist").parts[part] for part in ("train", "test"))
    held = 60 if name == "pmnist" else 30  # of 300
    chosen = (np.arange(held, 300), np.arange(held), mixed(np.arange(60)))
    stream = load(name)
    for identity in (0, 3, 7):
        task = stream[stream.identities.index(identity)]
        permutation = (pmnist if name == "pmnist" else pmnist_20).permutation(identity)
        for split, mine, source in zip(splits(task), chosen, (train, train, test), strict=True):
            grey = torch.from_numpy(source.images[mine]).permute(0, 3, 1, 2)
            plain = resized(grey, 32).expand(-1, 3, -1, -1) if name == "pmnist" else grey
            back = split.x.flatten(1)[:, permutation.argsort()].view(plain.shape)
            assert torch.equal(back, normalised(plain, MNIST))
            assert split.y.tolist() == source.labels[mine].tolist()
        assert task.name == ("permutation-{}" if name == "pmnist" else "permutation-{:02d}").format(identity)


@pytest.mark.parametrize("name", ["pmnist", "pmnist-20"])
def test_all_tasks_see_the_same_images_and_a_fraction_keeps_them_in_file_order(made: None, name: str) -> None:
    stream = load(name, seed=1, fraction=0.5)
    permutation = (pmnist if name == "pmnist" else pmnist_20).permutation
    first, second = (
        stream[position].train.x.flatten(1)[:, permutation(stream.identities[position]).argsort()]
        for position in (0, 1)
    )
    assert torch.equal(first, second)
    assert sizes(stream[0]) == ([120, 30, 60] if name == "pmnist" else [135, 15, 60])
    whole = load(name)
    task = whole[whole.identities.index(stream.identities[0])]
    listed = [row.numpy().tobytes() for row in torch.cat([task.val.x, task.train.x])]
    selected = [listed.index(row.numpy().tobytes()) for row in torch.cat([stream[0].val.x, stream[0].train.x])]
    assert selected == sorted(selected)


def test_orders_are_the_published_ones(made: None) -> None:
    assert load("pmnist").identities == (6, 1, 9, 2, 7, 5, 8, 0, 3, 4)
    assert load("pmnist", order="E").identities == (3, 8, 4, 9, 2, 6, 0, 1, 5, 7)
    assert load("pmnist-20").identities == tuple(range(20))


# --- The real data, when they are beside the repository ------------------------------------------------------

NEEDS = ("mnist",)


@pytest.mark.parametrize(
    ("name", "fraction", "expected"),
    [
        ("pmnist", 0.05, [2400, 600, 10000]),
        ("pmnist-20", 1.0, [54000, 6000, 10000]),
        ("pmnist-20", 0.05, [2700, 300, 10000]),
    ],
)
def test_real_tasks_have_the_stated_sizes(real: Path, name: str, fraction: float, expected: list[int]) -> None:
    task = load(name, fraction=fraction, data=real)[0]
    assert sizes(task) == expected
    assert task.class_names == tuple("0123456789")


@pytest.mark.slow
def test_real_pmnist_has_the_published_sizes_and_is_normalised(real: Path) -> None:
    task = load("pmnist", data=real)[0]
    assert sizes(task) == [48000, 12000, 10000]
    assert abs(float(task.train.x.mean())) < 0.01  # the published constants are those of 28×28 pixels


def test_real_splits_share_no_image(real: Path) -> None:
    task = load("pmnist-20", fraction=0.1, data=real)[1]
    train, val, test = (rows(split.x) for split in splits(task))
    assert not train & val
    assert not train & test
    assert not val & test
