"""TinyImageNet-200 cut into 20 tasks of ten classes, or 40 of five: `tinyimagenet-20` and `tinyimagenet-40`.

Classes are numbered by the rank of their WordNet ids; task k has the classes from 10k or 5k on. A repeat has one
random generator, which visits the classes by number; of each it shuffles the training images in file order, keeps the
first ⌈fraction · N⌉, validates on the first tenth of those and trains on the rest. The official validation images
test, because those called test have no labels. Training pads its images with black, crops and mirrors them.

The released code tests on the images held out from training and validates on the official validation images. The
variants `tinyimagenet-20@swapped` and `tinyimagenet-40@swapped` do that: a tenth of *all* training images of a class
tests at every fraction, and training has as many images as without the swap.
"""

from os import PathLike

import numpy as np

from halrp.lab.data import read
from halrp.lab.streams.augment import CropFlip
from halrp.lab.streams.pixels import IMAGENET, split
from halrp.lab.streams.protocol import (
    Indices,
    class_names,
    identities_of,
    members,
    mixed,
    name_of,
    published_orders,
    shares,
    split_seed,
)
from halrp.lab.streams.stream import Stream, Task

CLASSES, SIDE = 200, 64
VALIDATION = 0.1
PADDING = 4


def load_20(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `tinyimagenet-20`."""
    return _load(20, False, order, seed, fraction, data)


def load_40(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `tinyimagenet-40`."""
    return _load(40, False, order, seed, fraction, data)


def load_20_swapped(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `tinyimagenet-20@swapped`."""
    return _load(20, True, order, seed, fraction, data)


def load_40_swapped(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `tinyimagenet-40@swapped`."""
    return _load(40, True, order, seed, fraction, data)


def _load(
    tasks: int, swapped: bool, order: str, seed: int, fraction: float, data: str | PathLike[str] | None
) -> Stream:
    name = f"tinyimagenet-{tasks}" + ("@swapped" if swapped else "")
    identities = identities_of(name, published_orders(f"tinyimagenet_{tasks}"), order)
    data_set = read("tinyimagenet", data)
    train, official = data_set.parts["train"], data_set.parts["val"]
    random = np.random.RandomState(split_seed(seed))
    drawn: list[tuple[Indices, Indices]] = []
    """By class: the images that train, and those held out from training."""
    for label in range(CLASSES):
        pool = random.permutation(members(train, [label]))
        subset, held = shares(name, len(pool), fraction, VALIDATION)
        first = shares(name, len(pool), 1.0, VALIDATION)[1] if swapped else held
        drawn.append((pool[first : first + subset - held], pool[:first]))
    size = CLASSES // tasks

    def make(identity: int) -> Task:
        mine = range(size * identity, size * (identity + 1))
        learned, held = (mixed(np.concatenate(parts)) for parts in zip(*(drawn[label] for label in mine), strict=True))
        held_out = split(train, held, mine, IMAGENET)
        official_split = split(official, mixed(members(official, mine)), mine, IMAGENET)
        return Task(
            name=f"classes-{mine[0]:03d}-{mine[-1]:03d}",
            identity=identity,
            classes=size,
            train=split(train, learned, mine, IMAGENET),
            val=official_split if swapped else held_out,
            test=held_out if swapped else official_split,
            class_names=class_names(data_set, mine),
            normal=IMAGENET,
            augment=CropFlip.black(IMAGENET, PADDING),
        )

    return Stream(name_of(name, data_set), order, seed, fraction, identities, make, (3, SIDE, SIDE))
