"""`pmnist`: ten tasks of ten digits, each the MNIST images under one fixed permutation of their values.

An image of 28×28 is resized to 32×32, copied to three channels and normalised; a task's permutation then moves all of
its 3072 values, across channels too. No task is the identity. The released code seeds the permutation of task r with
100·r + i, where i is the position of r in the order that was in force when its files were first written; here that
order is the one it draws from seed 0, `WRITTEN`.

The training images stay in file order and the first fifth of them validates: at fraction 1 the first 12,000, whatever
the seed. A smaller fraction draws its images by the seed. All tasks see the same images.
"""

from collections.abc import Callable
from os import PathLike

import numpy as np
import torch
from torch import Tensor

from halrp.lab.data import Images, read
from halrp.lab.streams.pixels import MNIST, local_labels, normalised, permuted, resized, taken
from halrp.lab.streams.protocol import (
    Indices,
    class_names,
    identities_of,
    in_file_order,
    mixed,
    name_of,
    published_orders,
    split_seed,
)
from halrp.lab.streams.stream import Split, Stream, Task

NAME = "pmnist"
VALIDATION = 0.2
CHANNELS, SIDE = 3, 32
WRITTEN = tuple(np.random.RandomState(0).permutation(10).tolist())


def permutation(identity: int) -> Tensor:
    """Return a task's permutation of the 3072 values: value p of its images is value `permutation[p]` of MNIST's."""
    values = np.arange(CHANNELS * SIDE * SIDE)
    np.random.RandomState(100 * identity + WRITTEN.index(identity)).shuffle(values)
    return torch.from_numpy(values)


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `pmnist`."""
    identities = identities_of(NAME, published_orders("pmnist"), order)
    shape = (CHANNELS, SIDE, SIDE)

    def seen(images: Tensor, identity: int) -> Tensor:
        # The three channels are equal until they are permuted: value p comes from pixel p modulo 1024.
        return permuted(resized(images, SIDE), permutation(identity) % SIDE**2)

    return of_digits(NAME, order, seed, fraction, data, identities, VALIDATION, seen, shape)


def of_digits(
    name: str,
    order: str,
    seed: int,
    fraction: float,
    data: str | PathLike[str] | None,
    identities: tuple[int, ...],
    validation: float,
    seen: Callable[[Tensor, int], Tensor],
    shape: tuple[int, int, int],
) -> Stream:
    """A stream whose tasks are the images of MNIST, each as `seen(images, identity)`, bytes of the given shape."""
    data_set = read("mnist", data)
    train, test = data_set.parts["train"], data_set.parts["test"]
    random = np.random.RandomState(split_seed(seed))
    learned, validated = in_file_order(name, len(train.labels), random, fraction, validation)
    tested = mixed(np.arange(len(test.labels)))
    digits = max(1, len(str(len(identities) - 1)))

    def make(identity: int) -> Task:
        def split(source: Images, chosen: Indices) -> Split:
            x = seen(taken(source, chosen), identity).view(-1, *shape)
            return Split(normalised(x, MNIST), local_labels(source.labels[chosen], range(10)))

        return Task(
            name=f"permutation-{identity:0{digits}d}",
            identity=identity,
            classes=10,
            train=split(train, learned),
            val=split(train, validated),
            test=split(test, tested),
            class_names=class_names(data_set, range(10)),
            normal=MNIST,
        )

    return Stream(name_of(name, data_set), order, seed, fraction, identities, make, shape)
