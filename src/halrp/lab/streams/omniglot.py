"""`omniglot-rotation`: a hundred tasks, each twelve handwritten characters, seen in four rotations.

The characters are the first 1200 of Omniglot's 1623, the background set before the evaluation set, each sorted by
alphabet and number; task k has the characters 12k … 12k+11. A character is one class: its 20 drawings as they are and
turned counter-clockwise by one, two and three quarters, 80 images in all. Images are resized from 105 to 32 and scaled
to 0 … 1 with paper at 1 and ink at 0; they are not normalised.

As in WSN, whose split the paper names, 60 of a character's 80 images train and 20 test, drawn once with `SPLIT_SEED`
and the same for all seeds; a turned copy of a tested drawing may be among the training images. The variant
`omniglot-rotation@drawings` is the split of APD, without that: drawings 1–15 train and 16–20 test, in all rotations.

Both have 720 training images per task and none left to validate: as in WSN, the validation images *are* the training
images. They say nothing about images that were not learned. A fraction keeps ⌈fraction · 720⌉ of them, drawn by the
seed; at fraction 1 the seed changes their order only.

The orders are the paper's five and `sequential`, by identity.
"""

from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halrp.lab.data import DataDamaged, Images, read
from halrp.lab.streams.pixels import normalised, resized, taken
from halrp.lab.streams.protocol import (
    Indices,
    class_names,
    identities_of,
    mixed,
    name_of,
    published_orders,
    split_seed,
    subset_size,
)
from halrp.lab.streams.stream import Normal, Split, Stream, Task

NAME = "omniglot-rotation"
TASKS, CLASSES, SIDE = 100, 12, 32
QUARTERS = 4
TRAIN_SHARE = 0.75
SPLIT_SEED = 0
NORMAL = Normal((0.0,), (1.0,))

Numbers = NDArray[np.intp]
"""Some images of one character: image `quarter · drawings + drawing` is that drawing, turned by `quarter` quarters."""


def orders() -> dict[str, list[int]]:
    """Return the paper's orders A … E, and `sequential`."""
    return {**published_orders("omniglot_rotation"), "sequential": list(range(TASKS))}


def by_image(drawings: Sequence[int]) -> list[tuple[Numbers, Numbers]]:
    """Split characters with these numbers of drawings as WSN does: (train, test) numbers of each character's images."""
    random = np.random.RandomState(SPLIT_SEED)
    parts = []
    for count in drawings:
        numbers = random.permutation(QUARTERS * count)
        trained = round(TRAIN_SHARE * len(numbers))
        parts.append((numbers[:trained], numbers[trained:]))
    return parts


def by_drawing(drawings: Sequence[int]) -> list[tuple[Numbers, Numbers]]:
    """Split characters with these numbers of drawings as APD does: (train, test) numbers of each character's images."""
    parts = []
    for count in drawings:
        numbers = np.arange(QUARTERS * count)
        train = numbers % count < round(TRAIN_SHARE * count)
        parts.append((numbers[train], numbers[~train]))
    return parts


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `omniglot-rotation`, split by image."""
    return _load(NAME, by_image, order, seed, fraction, data)


def load_drawings(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `omniglot-rotation@drawings`, split by drawing."""
    return _load(f"{NAME}@drawings", by_drawing, order, seed, fraction, data)


def _load(
    name: str,
    divide: Callable[[Sequence[int]], list[tuple[Numbers, Numbers]]],
    order: str,
    seed: int,
    fraction: float,
    data: str | PathLike[str] | None,
) -> Stream:
    identities = identities_of(name, orders(), order)
    data_set = read("omniglot", data)
    characters = [
        (source, drawings)
        for source in (data_set.parts["background"], data_set.parts["evaluation"])
        for drawings in np.split(*_by_label(source.labels))
    ]
    if len(characters) < TASKS * CLASSES:
        raise DataDamaged(
            f"Omniglot has {len(characters)} characters here, and stream {name!r} needs the first {TASKS * CLASSES}. "
            "Copy the data set again."
        )
    divided = divide([len(drawings) for _, drawings in characters[: TASKS * CLASSES]])
    random = np.random.RandomState(split_seed(seed))
    drawn = {}
    for identity in range(TASKS):
        count = sum(len(train) for train, _ in divided[_mine(identity)])
        drawn[identity] = random.permutation(count)[: subset_size(count, fraction)]

    def make(identity: int) -> Task:
        mine = _mine(identity)
        images = [_turned(source, drawings) for source, drawings in characters[mine]]

        def split(part: int, chosen: Indices | None) -> Split:
            """Take the images that train (part 0) or test (part 1) class by class, then the chosen of them."""
            numbers = [both[part] for both in divided[mine]]
            x = torch.cat([turned[chosen_numbers] for turned, chosen_numbers in zip(images, numbers, strict=True)])
            y = np.repeat(np.arange(CLASSES), [len(chosen_numbers) for chosen_numbers in numbers])
            chosen = mixed(np.arange(len(y))) if chosen is None else chosen
            return Split(normalised(x[chosen], NORMAL), torch.from_numpy(y[chosen]))

        train = split(0, drawn[identity])
        return Task(
            name=f"characters-{mine.start:03d}-{mine.stop - 1:03d}",
            identity=identity,
            classes=CLASSES,
            train=train,
            val=train,
            test=split(1, None),
            class_names=class_names(data_set, range(mine.start, mine.stop)),
            normal=NORMAL,
        )

    return Stream(name_of(name, data_set), order, seed, fraction, identities, make, (1, SIDE, SIDE))


def _mine(identity: int) -> slice:
    """Return the characters of a task."""
    return slice(CLASSES * identity, CLASSES * (identity + 1))


def _by_label(labels: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Sort images by label, and in file order within a label; the second array is where labels other than 0 begin."""
    sorted_images = np.argsort(labels, kind="stable")
    return sorted_images, np.flatnonzero(np.diff(labels[sorted_images])) + 1


def _turned(source: Images, drawings: Indices) -> Tensor:
    """Return a character's images by number, as bytes (4 · drawings, 1, 32, 32)."""
    upright = resized(taken(source, drawings), SIDE)
    return torch.cat([torch.rot90(upright, quarter, (2, 3)) for quarter in range(QUARTERS)])
