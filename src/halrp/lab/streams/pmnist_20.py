"""`pmnist-20`: the setting of the rank-one-update method (IRU), twenty tasks of ten digits with permuted pixels.

Task 0 is MNIST as it is. The pixels of every further task k are those of task k−1, shuffled once more with the seed
100·k, so that the permutations build on each other. Images are 1×28×28.

Chosen here, because the source does something else or says nothing: its network takes raw bytes, here pixels are
scaled to 0 … 1 and normalised; it has no validation images, here the first tenth of the training images in file order
validates (of a smaller fraction, the first tenth of the images that the seed draws); it has one order, A, by
identity, and B … E are the permutations drawn from the seeds 1 … 4.
"""

from os import PathLike

import numpy as np
import torch
from torch import Tensor

from halrp.lab.data import Images, read
from halrp.lab.streams.pixels import MNIST, local_labels, normalised, permuted, taken
from halrp.lab.streams.protocol import (
    Indices,
    class_names,
    drawn_orders,
    identities_of,
    in_file_order,
    mixed,
    name_of,
    split_seed,
)
from halrp.lab.streams.stream import Split, Stream, Task

NAME = "pmnist-20"
HELD_OUT = 0.1
TASKS, SIDE = 20, 28


def permutation(identity: int) -> Tensor:
    """Return a task's permutation of the 784 pixels: pixel p of its images is pixel `permutation[p]` of MNIST's."""
    pixels = np.arange(SIDE * SIDE)
    for task in range(1, identity + 1):
        np.random.RandomState(100 * task).shuffle(pixels)
    return torch.from_numpy(pixels)


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `pmnist-20`."""
    identities = identities_of(NAME, drawn_orders(TASKS), order)
    found = read("mnist", data)
    train, test = found.parts["train"], found.parts["test"]
    random = np.random.RandomState(split_seed(seed))
    learned, validated = in_file_order(NAME, len(train.labels), random, fraction, HELD_OUT)
    tested = mixed(np.arange(len(test.labels)))

    def make(identity: int) -> Task:
        pixels = permutation(identity)

        def split(source: Images, chosen: Indices) -> Split:
            x = permuted(taken(source, chosen), pixels).view(-1, 1, SIDE, SIDE)
            return Split(normalised(x, MNIST), local_labels(source.labels[chosen], range(10)))

        return Task(
            name=f"permutation-{identity:02d}",
            identity=identity,
            classes=10,
            train=split(train, learned),
            val=split(train, validated),
            test=split(test, tested),
            class_names=class_names(found, range(10)),
            normal=MNIST,
        )

    return Stream(name_of(NAME, found), order, seed, fraction, identities, make, (1, SIDE, SIDE))
