"""Small data sets with the real sets' classes and random pictures, no two of them alike; and made texts and series."""

import functools
from collections.abc import Collection
from os import PathLike
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from halrp.lab.data import Images, LoadedDataSet
from halrp.lab.streams import Split, Task, cifar100, ctrl, five, omniglot, pmnist, sites, tinyimagenet
from tests.lab.streams.made_packages import read_made_packages

READERS = (cifar100, ctrl, five, omniglot, pmnist, sites, tinyimagenet)
KINDS = {
    # parts with their images per class, classes, side, channels
    "cifar100": ({"train": 20, "test": 2}, 100, 32, 3),
    "cifar10": ({"train": 20, "test": 4}, 10, 32, 3),
    "svhn": ({"train": 24, "test": 4}, 10, 32, 3),
    "mnist": ({"train": 30, "test": 6}, 10, 28, 1),
    "fashion-mnist": ({"train": 30, "test": 6}, 10, 28, 1),
    "notmnist": ({"all": 80}, 10, 28, 1),
    "tinyimagenet": ({"train": 20, "val": 2}, 200, 64, 3),
}
CHARACTERS = {"background": 964, "evaluation": 240}
DRAWINGS = 4


@functools.cache
def loaded(name: str) -> LoadedDataSet:
    """Make the data set `name`: images that train are in random order, except Omniglot's; all others are sorted."""
    if name == "omniglot":
        parts = {part: pictures(DRAWINGS, count, 40, 1, seed=count) for part, count in CHARACTERS.items()}
        parts = {part: by_label(images) for part, images in parts.items()}
        by_part = {part: tuple(f"{part}-{item}" for item in range(count)) for part, count in CHARACTERS.items()}
        return whole(parts, sum(by_part.values(), ()), by_part)
    sizes, classes, side, channels = KINDS[name]
    parts = {part: pictures(size, classes, side, channels, seed=size) for part, size in sizes.items()}
    parts = {part: images if part == "train" else by_label(images) for part, images in parts.items()}
    names = tuple(f"{name}-{item}" for item in range(classes))
    return whole(parts, names, dict.fromkeys(parts, names))


def whole(parts: dict[str, Images], names: tuple[str, ...], by_part: dict[str, tuple[str, ...]]) -> LoadedDataSet:
    return LoadedDataSet(parts, True, names, "made", by_part, Path("nowhere"), ())


def pictures(count: int, classes: int, side: int, channels: int, seed: int) -> Images:
    """Make `count` random images of each class, in random order."""
    random = np.random.default_rng([seed, classes, side])
    labels = random.permutation(np.repeat(np.arange(classes), count))
    return Images(random.integers(0, 256, (len(labels), side, side, channels), dtype=np.uint8), labels)


def by_label(source: Images) -> Images:
    order = np.argsort(source.labels, kind="stable")
    return Images(source.images[order], source.labels[order])


def read_made(monkeypatch: pytest.MonkeyPatch, partial: Collection[str] = ()) -> None:
    """Let streams read the made data sets; those named in `partial` are subsets."""

    def read(name: str, data: str | PathLike[str] | None = None) -> LoadedDataSet:
        return loaded(name)._replace(complete=name not in partial)

    for module in READERS:
        monkeypatch.setattr(module, "read", read)
    read_made_packages(monkeypatch)


def rows(x: torch.Tensor) -> set[bytes]:
    """Return the images as a set, to ask whether two splits share one."""
    return {row.numpy().tobytes() for row in x}


def splits(task: Task) -> tuple[Split, Split, Split]:
    return task.train, task.val, task.test


def sizes(task: Task) -> list[int]:
    return [len(split.y) for split in splits(task)]


def normal(images: NDArray[np.uint8], mean: object, deviation: object) -> NDArray[np.float64]:
    """Normalise bytes (images, height, width, channels) in double precision, as (images, channels, height, width)."""
    result: NDArray[np.float64] = ((images / 255 - np.array(mean)) / np.array(deviation)).transpose(0, 3, 1, 2)
    return result
