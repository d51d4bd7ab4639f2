"""`pmnist-20`: the setting of the rank-one-update method (IRU), twenty tasks of ten digits with permuted pixels.

Task 0 is MNIST as it is. The pixels of every further task k are those of task k−1, shuffled once more with the seed
100·k, so that the permutations build on each other. Images are 1×28×28.

Differences from the source, and choices where it has nothing: its network takes raw bytes, here pixels are
scaled to 0 … 1 and normalised; it has no validation images, here the first tenth of the training images in file order
validates (of a smaller fraction, the first tenth of the images that the seed draws); it has one order, A, by
identity, and B … E are the permutations drawn from the seeds 1 … 4.
"""

from os import PathLike

import numpy as np
import torch
from torch import Tensor

from halrp.lab.streams.pixels import permuted
from halrp.lab.streams.pmnist import Digits, load_digits
from halrp.lab.streams.protocol import drawn_orders
from halrp.lab.streams.stream import Stream

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

    def change(images: Tensor, identity: int) -> Tensor:
        return permuted(images, permutation(identity))

    digits = Digits(NAME, drawn_orders(TASKS), HELD_OUT, change, (1, SIDE, SIDE))
    return load_digits(digits, order, seed, fraction, data)
