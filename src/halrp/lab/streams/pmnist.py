"""`pmnist`: ten tasks of ten digits, each the MNIST images under one fixed permutation of their values.

An image of 28×28 is resized to 32×32, copied to three channels and normalised; a task's permutation then moves all of
its 3072 values, across channels too. No task is the identity. The released code seeds the permutation of task r with
100·r + i, where i is the position of r in the order that was in force when its files were first written; here that
order is the one it draws from seed 0, `WRITTEN`.

The training images stay in file order and the first fifth of them validates: at fraction 1 the first 12,000, whatever
the seed. A smaller fraction draws its images by the seed. All tasks see the same images.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from halrp.lab.data import read
from halrp.lab.streams.pixels import MNIST, permuted, resized, split
from halrp.lab.streams.protocol import (
    class_names,
    identities_of,
    in_file_order,
    mixed,
    name_of,
    published_orders,
    split_seed,
)
from halrp.lab.streams.stream import Stream, Task

NAME = "pmnist"
VALIDATION = 0.2
CHANNELS, SIDE = 3, 32
WRITTEN = tuple(np.random.RandomState(0).permutation(10).tolist())


def permutation(identity: int) -> Tensor:
    """Return a task's permutation of the 3072 values: value p of its images is value `permutation[p]` of MNIST's."""
    values = np.arange(CHANNELS * SIDE * SIDE)
    np.random.RandomState(100 * identity + WRITTEN.index(identity)).shuffle(values)
    return torch.from_numpy(values)


class Digits(NamedTuple):
    """A benchmark whose tasks are all digits of MNIST, each task with its own change of the images."""

    name: str
    orders: Mapping[str, Sequence[int]]
    validation: float
    """The share of the training images for validation."""
    change: Callable[[Tensor, int], Tensor]
    """`change(images, identity)`: bytes (images, 1, 28, 28) → as many values per image as `shape` has."""
    shape: tuple[int, int, int]


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `pmnist`."""

    def change(images: Tensor, identity: int) -> Tensor:
        # The three channels are equal until they are permuted: value p comes from pixel p modulo 1024.
        return permuted(resized(images, SIDE), permutation(identity) % SIDE**2)

    digits = Digits(NAME, published_orders("pmnist"), VALIDATION, change, (CHANNELS, SIDE, SIDE))
    return load_digits(digits, order, seed, fraction, data)


def load_digits(digits: Digits, order: str, seed: int, fraction: float, data: str | PathLike[str] | None) -> Stream:
    """Load a benchmark of changed digits."""
    name, orders, validation, change, shape = digits
    identities = identities_of(name, orders, order)
    data_set = read("mnist", data)
    train, test = data_set.parts["train"], data_set.parts["test"]
    random = np.random.RandomState(split_seed(seed))
    learned, validated = in_file_order(name, len(train.labels), random, fraction, validation)
    tested = mixed(np.arange(len(test.labels)))
    width = max(1, len(str(len(identities) - 1)))
    classes = range(10)

    def make(identity: int) -> Task:
        def changed(x: Tensor) -> Tensor:
            return change(x, identity).view(-1, *shape)

        return Task(
            name=f"permutation-{identity:0{width}d}",
            identity=identity,
            classes=len(classes),
            train=split(train, learned, classes, MNIST, changed),
            val=split(train, validated, classes, MNIST, changed),
            test=split(test, tested, classes, MNIST, changed),
            class_names=class_names(data_set, classes),
            normal=MNIST,
        )

    return Stream(name_of(name, data_set), order, seed, fraction, identities, make, shape)
