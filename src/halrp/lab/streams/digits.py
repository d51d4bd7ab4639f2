"""`digits`: ten small tasks from real handwritten digits that come with scikit-learn; nothing to download.

The 1797 images of 8×8 pixels make five pairs of 5-way tasks. The two tasks of a pair have the digits
0–4 and 5–9; the pairs see the images as they are, turned by a quarter, turned by half, and under two fixed
permutations of the 64 pixels. Turned digits are related to the upright ones and permuted pixels are not, so a
method meets tasks that the base helps with and tasks that it does not.

Which images train, validate and test is drawn once per seed, class by class, and is the same for every
transformation: no image that any task trains on is tested by another one.
"""

from collections.abc import Callable
from os import PathLike

import numpy as np
import torch
from numpy.typing import NDArray

from halrp.lab.streams.protocol import drawn_orders, identities_of, shares
from halrp.lab.streams.stream import Normal, Split, Stream, Task

NAME = "digits"
TRAIN, VALIDATION = 88, 26
"""Images of each class; the other 60 to 69 test. Equal counts make training sets of the same size for every seed."""
MEAN, DEVIATION = 0.3053, 0.3760
"""Of all pixels, scaled to 0 … 1."""

Images = NDArray[np.float32]


def permuted(seed: int) -> Callable[[Images], Images]:
    """Return the transformation that moves the 64 pixels of every image by the one permutation drawn from `seed`."""
    pixels = np.random.RandomState(seed).permutation(64)  # numpy promises that its draws never change
    return lambda images: images.reshape(-1, 64)[:, pixels].reshape(-1, 8, 8)


def turned(quarters: int) -> Callable[[Images], Images]:
    """Return the transformation that turns every image counter-clockwise by `quarters` of a full turn."""
    return lambda images: np.rot90(images, quarters, axes=(1, 2))


DIGITS = {"0-4": range(5), "5-9": range(5, 10)}
TRANSFORMATIONS: dict[str, Callable[[Images], Images]] = {
    "upright": turned(0),
    "quarter-turn": turned(1),
    "half-turn": turned(2),
    "permuted-1": permuted(1),
    "permuted-2": permuted(2),
}
TASKS = [(digits, transformation) for transformation in TRANSFORMATIONS for digits in DIGITS]
"""By identity: 0 and 1 are the upright pair, 2 and 3 the first turned pair, and so on."""


def orders() -> dict[str, list[int]]:
    """Return the five orders: A by identity, B to E the permutations drawn from the seeds 1 to 4."""
    return drawn_orders(len(TASKS))


def draw(
    labels: NDArray[np.int64], seed: int, fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw which images train, validate and test, class by class: three sorted index arrays."""
    subset, held = shares(NAME, TRAIN + VALIDATION, fraction, VALIDATION / (TRAIN + VALIDATION))
    random = np.random.RandomState(seed)
    train, val, test = [], [], []
    for digit in range(10):
        members = random.permutation(np.flatnonzero(labels == digit))
        val.append(members[:held])
        train.append(members[held:subset])
        test.append(members[TRAIN + VALIDATION :])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(val)), np.sort(np.concatenate(test))


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load the stream. `data` is not needed: the images come with scikit-learn."""
    identities = identities_of(NAME, orders(), order)

    from sklearn.datasets import load_digits  # slow to import, and no other stream needs it

    bunch = load_digits()
    images = ((bunch.images / 16 - MEAN) / DEVIATION).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    parts = draw(labels, seed, fraction)

    def make(identity: int) -> Task:
        digits, transformation = TASKS[identity]
        classes = DIGITS[digits]

        def split(chosen: NDArray[np.int64]) -> Split:
            mine = chosen[np.isin(labels[chosen], classes)]
            x = np.ascontiguousarray(TRANSFORMATIONS[transformation](images[mine]))
            return Split(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(labels[mine] - classes[0]))

        train, val, test = (split(part) for part in parts)
        return Task(
            name=f"{digits}-{transformation}",
            identity=identity,
            classes=len(classes),
            train=train,
            val=val,
            test=test,
            class_names=tuple(str(digit) for digit in classes),
            normal=Normal((MEAN,), (DEVIATION,)),
        )

    return Stream(NAME, order, seed, fraction, identities, make, (1, 8, 8))
