"""What holds for every benchmark: names, variants, errors, and the contract of its tasks, on made data sets."""

import numpy as np
import pytest
import torch

from halrp.errors import SettingError
from halrp.lab.registry import stream_names
from halrp.lab.streams import Task, load
from tests.lab.streams.made import read_made, rows, splits

SAME_IMAGES = tuple(name for name in stream_names() if name.startswith("omniglot-rotation"))
"""Their validation images are the training images."""
TEXTS = ("corpora", "tenants")
"""Their examples are token ids."""


def same(item: Task, other: Task) -> bool:
    return all(
        torch.equal(a, b)
        for left, right in zip(splits(item), splits(other), strict=True)
        for a, b in zip(left, right, strict=True)
    )


def train_set(task: Task) -> set[bytes]:
    return rows(task.train.x) | rows(task.val.x) if task.val is not task.train else rows(task.train.x)


@pytest.mark.parametrize("name", stream_names())
def test_tasks_keep_the_contract(made: None, name: str) -> None:
    stream = load(name)
    assert stream.name == name
    assert (stream.order, stream.seed, stream.fraction) == ("A", 0, 1.0)
    for task in (stream[0], stream[-1]):
        assert task.identity in (stream.identities[0], stream.identities[-1])
        assert len(task.class_names) == len(set(task.class_names)) == task.classes
        for x, y in splits(task):
            assert x.dtype == (torch.int64 if name in TEXTS else torch.float32)
            assert x.shape == (len(y), *stream.shape)
            assert x.is_contiguous()
            assert y.dtype == torch.int64
            assert 0 <= int(y.min()) <= int(y.max()) < task.classes
        assert task.test.y.unique().tolist() == list(range(task.classes))
        assert len(task.normal.mean) == len(task.normal.deviation)
        assert (task.augment is not None) == name.startswith("tinyimagenet")


@pytest.mark.parametrize("name", stream_names())
def test_every_order_is_a_permutation_of_the_same_tasks(made: None, name: str) -> None:
    orders = [load(name, order=order).identities for order in "ABCDE"]
    assert all(sorted(order) == list(range(len(order))) for order in orders)
    assert len(set(orders)) == 5
    with pytest.raises(SettingError, match=rf"{name}.*'b'.*A, B, C, D, E"):
        load(name, order="b")


@pytest.mark.parametrize("name", stream_names())
def test_names_are_distinct_and_of_use_in_file_names(made: None, name: str) -> None:
    stream = load(name, fraction=0.5)
    names = [task.name for task in (stream if len(stream) <= 20 else stream[::9])]
    assert len(set(names)) == len(names)
    assert all(part.isascii() and set(part) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for part in names)


@pytest.mark.parametrize("name", stream_names())
def test_a_task_is_a_function_of_seed_and_fraction_and_not_of_the_order(made: None, name: str) -> None:
    first = load(name, order="A", seed=3, fraction=0.5)
    other = load(name, order="E", seed=3, fraction=0.5)
    task, again = first[1], other[other.identities.index(first.identities[1])]
    assert task.name == again.name
    assert task.identity == again.identity
    assert task.class_names == again.class_names
    assert same(task, again)
    assert same(task, first[1])
    assert train_set(task) != train_set(load(name, seed=4, fraction=0.5)[1])


@pytest.mark.parametrize("name", stream_names())
def test_splits_share_no_image_and_small_fractions_are_part_of_large_ones(made: None, name: str) -> None:
    whole, half = load(name, seed=1)[2], load(name, seed=1, fraction=0.5)[2]
    for task in (whole, half):
        train, val, test = (rows(split.x) for split in splits(task))
        assert not train & test
        assert len(train) == len(task.train.y)
        assert len(test) == len(task.test.y)
        if name in SAME_IMAGES:
            assert train == val
        else:
            assert not train & val
            assert not val & test
    assert train_set(half) < train_set(whole)
    assert rows(half.test.x) == rows(whole.test.x)
    assert torch.equal(half.test.x, whole.test.x)
    assert len(half.train.y) == pytest.approx(len(whole.train.y) / 2, rel=0.12)  # a few images, rounded


@pytest.mark.parametrize("name", stream_names())
def test_test_images_come_in_an_order_that_mixes_the_classes(made: None, name: str) -> None:
    for seed in (0, 1) if name != "digits" and not name.endswith("@swapped") else (0,):
        y = load(name, seed=seed)[0].test.y
        assert len(y[: len(y) // 2].unique()) > 0.6 * len(y.unique())
        random = 1 - (y.bincount() / len(y)).square().sum()  # the share of neighbours of two classes in a random order
        assert (y[1:] != y[:-1]).double().mean() > 0.6 * random


@pytest.mark.parametrize("name", stream_names())
def test_loading_leaves_the_global_generators_as_they_were(made: None, name: str) -> None:
    before, before_numpy = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002  (read, not used)
    _ = load(name)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(np.random.get_state()) == before_numpy  # noqa: NPY002


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("digit", "digits"),
        ("CIFAR100-split", "cifar100-split"),
        ("tinyimagenet-20@swap", "tinyimagenet-20@swapped"),
        ("omniglot-rotation@drawing", "omniglot-rotation@drawings"),
        ("tinyimagenet-20@subset@swapped", "tinyimagenet-20@swapped"),
        ("pmnist@subsets", "pmnist"),
    ],
)
def test_an_unknown_name_or_variant_is_answered_with_the_nearest_name(made: None, name: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"'{name}'.*nearest name is '{nearest}'"):
        load(name)


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(SettingError, match="fraction"):
        load("digits", fraction=fraction)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "0"])
@pytest.mark.parametrize("name", ["digits", "pmnist"])
def test_a_seed_outside_its_range_is_refused(made: None, name: str, seed: object) -> None:
    with pytest.raises(SettingError, match=r"seed=.*0 to 2³²−1"):
        load(name, seed=seed)  # type: ignore[arg-type]


PARTIAL = [
    ("cifar100-split", "cifar100"),
    ("cifar100-superclass", "cifar100"),
    ("cifar100-20", "cifar100"),
    ("pmnist", "mnist"),
    ("pmnist-20", "mnist"),
    ("five", "svhn"),
    ("five", "notmnist"),
    ("omniglot-rotation", "omniglot"),
    ("omniglot-rotation@drawings", "omniglot"),
    ("tinyimagenet-20", "tinyimagenet"),
    ("tinyimagenet-20@swapped", "tinyimagenet"),
    ("tinyimagenet-40", "tinyimagenet"),
    ("cifar100-split@pretrained", "cifar100"),
    ("sites", "notmnist"),
    ("digit-sites", "svhn"),
    ("ctrl", "tinyimagenet"),
    ("ctrl@minus", "cifar10"),
]


@pytest.mark.parametrize(("name", "partial"), PARTIAL)
def test_a_stream_of_partial_data_is_called_a_subset_whichever_name_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str, partial: str
) -> None:
    read_made(monkeypatch, partial=[partial])
    assert load(name).name == f"{name}@subset"
    assert load(f"{name}@subset").name == f"{name}@subset"
    assert load(f"{name}@subset")[1:3].name == f"{name}@subset"


@pytest.mark.parametrize("name", stream_names())
def test_a_subset_of_whole_data_is_refused_with_the_name_to_use(made: None, name: str) -> None:
    with pytest.raises(SettingError, match=f"complete. Use the name '{name}'"):
        load(f"{name}@subset")
