"""`five`: CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, each a task of ten classes, all as 3×32×32.

MNIST and Fashion-MNIST get two black pixels on every side, notMNIST is resized from 28 to 32, and grey images are
copied to three channels. For each data set a fresh generator of the repeat's seed shuffles the training images; the
first ⌈fraction · N⌉ are kept, the first fifth of those validates and the rest trains.

notMNIST is a substitute for the packaged copy that others use, which is not published as a list of files: the images
of notMNIST_small that can be read, a tenth of which, drawn once with `NOTMNIST_SEED`, tests.
"""

import math
from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

import numpy as np
from torch import Tensor

from halrp.lab.data import Images, LoadedDataSet, read
from halrp.lab.reference import load_reference
from halrp.lab.streams.pixels import padded, resized, split
from halrp.lab.streams.protocol import (
    Indices,
    carve,
    class_names,
    identities_of,
    mixed,
    name_of,
    published_orders,
    split_seed,
)
from halrp.lab.streams.stream import Normal, Stream, Task

NAME = "five"
VALIDATION = 0.2
NOTMNIST_SEED, NOTMNIST_TEST = 0, 0.1


class Kind(NamedTuple):
    """How one of the data sets is read."""

    name: str
    fitted: Callable[[Tensor], Tensor]
    """Bytes (images, channels, height, width) → bytes of 32×32."""
    normal: Normal


KINDS = {
    "CIFAR10": Kind(
        "cifar10",
        lambda x: x,
        Normal((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    ),
    "MNIST": Kind("mnist", lambda x: padded(x, 2), Normal((0.1,), (0.2752,))),
    "SVHN": Kind("svhn", lambda x: x, Normal((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197))),
    "FashionMNIST": Kind("fashion-mnist", lambda x: padded(x, 2), Normal((0.2190,), (0.3318,))),
    "notMNIST": Kind("notmnist", lambda x: resized(x, 32), Normal((0.4254,), (0.4501,))),
}
"""By the name in the published list of tasks."""


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `five`."""
    identities = identities_of(NAME, published_orders("five_dataset"), order)
    kinds = {int(task): KINDS[name] for task, name in load_reference("task_orders")["five_dataset_ids"].items()}
    data_sets = {identity: read(kind.name, data) for identity, kind in kinds.items()}

    def make(identity: int) -> Task:
        kind, data_set = kinds[identity], data_sets[identity]
        (pool, source), (tested, test) = _pools(data_set)
        random = np.random.RandomState(split_seed(seed))
        learned, validated = carve(NAME, pool, random, fraction, VALIDATION)

        def change(x: Tensor) -> Tensor:
            return kind.fitted(x).expand(-1, 3, -1, -1)

        classes = range(10)
        return Task(
            name=kind.name,
            identity=identity,
            classes=len(classes),
            train=split(source, learned, classes, kind.normal, change),
            val=split(source, validated, classes, kind.normal, change),
            test=split(test, tested, classes, kind.normal, change),
            class_names=class_names(data_set, classes),
            normal=kind.normal,
        )

    return Stream(name_of(NAME, *data_sets.values()), order, seed, fraction, identities, make, (3, 32, 32))


def _pools(data_sets: LoadedDataSet) -> tuple[tuple[Indices, Images], tuple[Indices, Images]]:
    """Return the images that may train, and those that test in their fixed order, each with the part they are in."""
    if "all" not in data_sets.parts:
        train, test = data_sets.parts["train"], data_sets.parts["test"]
        return (np.arange(len(train.labels)), train), (mixed(np.arange(len(test.labels))), test)
    everything = data_sets.parts["all"]
    drawn = np.random.RandomState(NOTMNIST_SEED).permutation(len(everything.labels))
    tested = math.ceil(NOTMNIST_TEST * len(drawn))
    return (np.sort(drawn[tested:]), everything), (drawn[:tested], everything)
