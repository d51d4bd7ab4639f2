"""`tinyimagenet-20` and `-40`: protocol, the swapped roles, augmentation, and sizes on the real images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from halrp.lab.streams import load
from halrp.lab.streams.augment import CropFlip
from halrp.lab.streams.pixels import IMAGENET
from halrp.lab.streams.protocol import mixed
from tests.lab.streams.made import loaded, normal, rows, sizes, splits

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(("name", "size"), [("tinyimagenet-20", 10), ("tinyimagenet-40", 5)])
@pytest.mark.parametrize("swapped", [False, True])
def test_tasks_follow_the_protocol_step_by_step(made: None, name: str, size: int, swapped: bool) -> None:
    train, official = (loaded("tinyimagenet").parts[part] for part in ("train", "val"))
    random = np.random.RandomState(7690)
    by_class = [random.permutation(np.flatnonzero(train.labels == item)) for item in range(200)]
    stream = load(f"{name}@swapped" if swapped else name)
    assert len(stream) == 200 // size
    task = stream[2]
    mine = range(size * task.identity, size * task.identity + size)
    held, learned = (
        mixed(np.concatenate([by_class[item][part] for item in mine])) for part in (slice(2), slice(2, 20))
    )
    apart = mixed(np.concatenate([np.flatnonzero(official.labels == item) for item in mine]))
    expected = [(train, learned), (train, held), (official, apart)]
    for split, (source, chosen) in zip(
        splits(task), expected if not swapped else expected[::2] + expected[1:2], strict=True
    ):
        # float32 against float64: values up to 2.7, a few roundings of 6e-8 each.
        np.testing.assert_allclose(split.x.numpy(), normal(source.images[chosen], MEAN, DEVIATION), atol=2e-6)
        assert split.y.tolist() == (source.labels[chosen] - mine[0]).tolist()
    assert task.name == f"classes-{mine[0]:03d}-{mine[-1]:03d}"
    assert task.class_names == tuple(f"tinyimagenet-{item}" for item in mine)


def test_swapped_test_images_do_not_shrink_with_the_fraction(made: None) -> None:
    whole, half = (load("tinyimagenet-20@swapped", fraction=fraction)[0] for fraction in (1.0, 0.5))
    assert sizes(whole) == [180, 20, 20]
    assert sizes(half) == [90, 20, 20]
    assert torch.equal(whole.test.x, half.test.x)
    assert rows(half.train.x) < rows(whole.train.x)
    plain = load("tinyimagenet-20", fraction=0.5)[0]
    assert sizes(plain) == [90, 10, 20]


def test_every_class_has_as_many_images_in_every_split(made: None) -> None:
    for split in splits(load("tinyimagenet-40", fraction=0.5)[0]):
        assert len(set(split.y.bincount().tolist())) == 1


def test_training_crops_and_mirrors_with_black_around_the_image(made: None) -> None:
    task = load("tinyimagenet-20")[0]
    assert task.augment == CropFlip.black(IMAGENET, 4)
    x = task.augment(task.train.x[:20], torch.Generator().manual_seed(0))
    assert x.shape == (20, 3, 64, 64)
    assert not torch.equal(x, task.train.x[:20])


def test_orders_are_the_published_ones(made: None) -> None:
    assert load("tinyimagenet-20", order="A").identities[:4] == (10, 18, 16, 14)
    assert load("tinyimagenet-40", order="E").identities[:4] == (28, 39, 4, 15)
    assert load("tinyimagenet-40@swapped", order="E").identities == load("tinyimagenet-40", order="E").identities


# --- The real data, when they are beside the repository ------------------------------------------------------

NEEDS = ("tiny-imagenet-200",)


@pytest.mark.slow
def test_real_tasks_have_the_sizes_of_the_images_at_hand(real: Path) -> None:
    stream = load("tinyimagenet-20", data=real)
    assert stream.name == "tinyimagenet-20@subset"  # 200 of 500 training images of each class
    task = stream[0]
    assert sizes(task) == [1800, 200, 500]
    train, val, test = (rows(split.x) for split in splits(task))
    assert not train & val
    assert not train & test
    assert not val & test
    swapped = load("tinyimagenet-20@swapped@subset", data=real)
    assert swapped.name == "tinyimagenet-20@swapped@subset"
    assert sizes(swapped[0]) == [1800, 500, 200]
    assert rows(swapped[0].test.x) == val
    assert sizes(load("tinyimagenet-40", fraction=0.25, data=real)[0]) == [225, 25, 250]
