"""`digits`: sizes, disjoint splits, transformations, orders."""

import numpy as np
import pytest
import torch

from halrp.lab.streams import digits, load
from tests.lab.streams.made import rows, splits

ORDERS = "ABCDE"


@pytest.mark.parametrize("order", ORDERS)
def test_digits_orders_are_different_permutations_of_the_same_tasks(order: str) -> None:
    known = digits.orders()
    assert sorted(known[order]) == list(range(10))
    assert len({tuple(known[each]) for each in ORDERS}) == 5
    assert known["A"] == list(range(10))


def test_digits_tasks_have_float_images_and_all_local_labels() -> None:
    for task in load("digits"):
        assert task.classes == 5
        for x, y in (task.train, task.val, task.test):
            assert x.dtype == torch.float32
            assert x.shape == (len(y), 1, 8, 8)
            assert x.is_contiguous()
            assert y.dtype == torch.int64
            assert y.unique().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 1])
def test_digits_have_the_stated_number_of_images_of_every_class(seed: int) -> None:
    low, high = load("digits", seed=seed)[:2]
    for task in (low, high):
        assert task.train.y.bincount().tolist() == [88] * 5
        assert task.val.y.bincount().tolist() == [26] * 5
        assert min(task.test.y.bincount().tolist()) >= 60
    assert sum(len(split.y) for task in (low, high) for split in splits(task)) == 1797


def test_digits_train_val_and_test_hold_different_images() -> None:
    parts = digits.draw(np.arange(1797) % 10, seed=0, fraction=1.0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1797))


def test_digits_tasks_are_the_upright_images_transformed_the_same_way_in_every_split() -> None:
    stream = load("digits", seed=1)
    assert not torch.equal(stream[6].train.x, stream[8].train.x)  # the two permutations differ
    for identity in range(10):
        upright, task = stream[identity % 2], stream[identity]
        for source, image in zip(splits(upright), splits(task), strict=True):
            if "permuted" in task.name:
                pixels = np.random.RandomState(int(task.name[-1])).permutation(64)
                inverse = torch.from_numpy(np.argsort(pixels))
                back = image.x.flatten(1)[:, inverse].view(-1, 1, 8, 8)
            else:
                quarters = {"upright": 0, "quarter-turn": 1, "half-turn": 2}[task.name.split("-", 2)[2]]
                back = torch.rot90(image.x, -quarters, dims=(2, 3))
            assert torch.equal(back, source.x)
            assert torch.equal(image.y, source.y)


def test_digits_are_normalised() -> None:
    low, high = load("digits")[:2]
    x = torch.cat([split.x for task in (low, high) for split in splits(task)])
    # The constants have four digits.
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


def test_digits_are_a_function_of_the_seed_and_not_of_the_order() -> None:
    by_identity = load("digits", order="A", seed=2)
    for task in load("digits", order="B", seed=2):
        same = by_identity[task.identity]
        assert same.name == task.name
        for item, other in zip(splits(same), splits(task), strict=True):
            assert torch.equal(item.x, other.x)
            assert torch.equal(item.y, other.y)
    assert not torch.equal(load("digits", seed=3)[0].train.x, by_identity[0].train.x)


def test_a_fraction_of_digits_keeps_a_part_of_training_and_validation_and_all_of_the_test() -> None:
    whole, part = load("digits")[0], load("digits", fraction=0.25)[0]
    assert rows(part.train.x) | rows(part.val.x) < rows(whole.train.x) | rows(whole.val.x)
    assert (len(part.train.y), len(part.val.y)) == (5 * 23, 5 * 6)  # 29 of 114 images of a class, 26/114 of them
    assert torch.equal(part.test.x, whole.test.x)
