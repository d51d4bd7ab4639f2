"""Streams of sites: each task is another source of images, with 20 to 200 examples of a class.

`sites` has twelve tasks of ten classes: house numbers (SVHN), handwritten digits (MNIST), letters of fonts (notMNIST),
objects (CIFAR-10), and eight parts of TinyImageNet with the classes 0–9, 10–19, … 70–79. `digit-sites` has the same ten
digits from four sources: MNIST, MNIST in black on white, SVHN, and the 8×8 scans that come with scikit-learn.

Of each class 200 images are in use with a fraction of 1, a fifth of which validates: 160 and 40, or 20 and 5 with a
fraction of 0.125. Up to 100 images of a class test. Of equal images one is in use. All are 3×64×64, normalised as
networks for ImageNet expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch

from halrp.lab.data import Images, LoadedDataSet, read
from halrp.lab.streams.few import distinct, few
from halrp.lab.streams.pixels import IMAGENET, resized
from halrp.lab.streams.pixels import split as split_of
from halrp.lab.streams.protocol import class_names, drawn_orders, identities_of, name_of
from halrp.lab.streams.stream import Split, Stream, Task

SIDE = 64
MOST, TESTED = 200, 100
SCANS = "scans"


class Site(NamedTuple):
    """Where the images of a task come from."""

    task: str
    data_set: str
    classes: range = range(10)
    inverted: bool = False


SITES = (
    Site("svhn", "svhn"),
    Site("mnist", "mnist"),
    Site("notmnist", "notmnist"),
    Site("cifar10", "cifar10"),
    *(Site(f"tinyimagenet-{10 * i}-{10 * i + 9}", "tinyimagenet", range(10 * i, 10 * i + 10)) for i in range(8)),
)
DIGIT_SITES = (
    Site("mnist", "mnist"),
    Site("mnist-inverted", "mnist", inverted=True),
    Site("svhn", "svhn"),
    Site(SCANS, SCANS),
)


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `sites`."""
    return _load("sites", SITES, order, seed, fraction, data)


def load_digits(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `digit-sites`, whose tasks have the same classes."""
    return _load("digit-sites", DIGIT_SITES, order, seed, fraction, data, same_classes=True)


def _load(
    name: str,
    sites: tuple[Site, ...],
    order: str,
    seed: int,
    fraction: float,
    data: str | PathLike[str] | None,
    same_classes: bool = False,
) -> Stream:
    identities = identities_of(name, drawn_orders(len(sites)), order)
    sets = {site.data_set: read(site.data_set, data) for site in sites if site.data_set != SCANS}

    def make(identity: int) -> Task:
        site = sites[identity]
        data_set = sets.get(site.data_set)
        sources = (_scans(),) * 2 if data_set is None else parts_of(data_set)
        names = class_names(data_set, site.classes) if data_set is not None else tuple(map(str, site.classes))
        key = f"{name} {site.task}"
        train, val, test = splits(key, sources, site.classes, seed, fraction, MOST, SIDE, inverted=site.inverted)
        return Task(site.task, identity, len(site.classes), train, val, test, class_names=names, normal=IMAGENET)

    return Stream(name_of(name, *sets.values()), order, seed, fraction, identities, make, (3, SIDE, SIDE), same_classes)


def splits(
    name: str,
    sources: tuple[Images, Images],
    classes: Sequence[int],
    seed: int,
    fraction: float,
    most: int,
    side: int,
    *,
    inverted: bool,
) -> tuple[Split, Split, Split]:
    """Draw few images of `classes` for the task `name`, 3×side×side; `sources` are those that train, and that test."""
    images, apart = sources
    labels = None if images is apart else apart.labels
    drawn = few(name, images.labels, classes, seed, fraction, most=most, tested=TESTED, test=labels)

    def change(x: torch.Tensor) -> torch.Tensor:
        return resized(255 - x if inverted else x, side).expand(-1, 3, -1, -1)

    chosen = ((images, np.sort(drawn.train)), (images, np.sort(drawn.val)), (apart, drawn.test))
    return distinct(*(split_of(source, indices, classes, IMAGENET, change) for source, indices in chosen))


def parts_of(data_set: LoadedDataSet) -> tuple[Images, Images]:
    """The images that train and those that test; the same where a set has no part for tests."""
    if "all" in data_set.parts:
        return (data_set.parts["all"],) * 2
    return data_set.parts["train"], data_set.parts["test" if "test" in data_set.parts else "val"]


def _scans() -> Images:
    from sklearn.datasets import load_digits  # slow to import, and no other site needs it

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return Images(images, bunch.target.astype(np.int64))
