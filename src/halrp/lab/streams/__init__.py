"""Benchmarks by name: `load("cifar100-split", order="B", seed=3, fraction=0.25)`.

A stream is tasks in an order. Three arguments choose one of a benchmark's variants: `order` names the order
in which its tasks are learned, `seed` the repeat, which draws the images of every split, and `fraction` the
share of training and validation images that a task may use. The images of a task depend on its identity, the
seed and the fraction, never on the order. Orders are called A … E; where the paper prints them under seeds 0 … 4,
A is that of seed 0. Adding a benchmark is a file with a function and a line in `STREAMS`.

A benchmark that others divide differently has that as a variant, after "@". A stream made from data sets that are not
whole says so: its name ends in "@subset", whichever of the two names was asked for, and no result of it can be taken
for one of the benchmark.
"""

from collections.abc import Callable
from os import PathLike

import numpy as np

from halrp.errors import SettingError
from halrp.lab.data import DataDamaged, DataMissing
from halrp.lab.names import nearest
from halrp.lab.streams import cifar100, digits, five, omniglot, pmnist, pmnist_20, tinyimagenet
from halrp.lab.streams.about import ABOUT, About
from halrp.lab.streams.custom import permuted, rotated, split_by_class, stream_from_folder
from halrp.lab.streams.protocol import SEEDS, identities_of
from halrp.lab.streams.stream import Augment, Normal, Split, Stream, Task

__all__ = [
    "ABOUT",
    "STREAMS",
    "SUBSET",
    "About",
    "Augment",
    "DataDamaged",
    "DataMissing",
    "Normal",
    "Split",
    "Stream",
    "Task",
    "identities",
    "load",
    "permuted",
    "rotated",
    "split_by_class",
    "stream_from_folder",
]

SUBSET = "@subset"

STREAMS: dict[str, Callable[[str, int, float, str | PathLike[str] | None], Stream]] = {
    "digits": digits.load,
    "cifar100-split": cifar100.load_split,
    "cifar100-superclass": cifar100.load_superclass,
    "cifar100-20": cifar100.load_20,
    "pmnist": pmnist.load,
    "pmnist-20": pmnist_20.load,
    "five": five.load,
    "omniglot-rotation": omniglot.load,
    "omniglot-rotation@drawings": omniglot.load_drawings,
    "tinyimagenet-20": tinyimagenet.load_20,
    "tinyimagenet-20@swapped": tinyimagenet.load_20_swapped,
    "tinyimagenet-40": tinyimagenet.load_40,
    "tinyimagenet-40@swapped": tinyimagenet.load_40_swapped,
}


def load(
    name: str,
    order: str = "A",
    seed: int = 0,
    fraction: float = 1.0,
    data: str | PathLike[str] | None = None,
) -> Stream:
    """Load the benchmark `name`: its tasks in `order`, with images drawn by `seed`.

    `data` is the directory that holds the data sets; without it the environment variable `HALRP_DATA` says where, and
    without that `halrp/data` in the user's cache directory is searched. A name that ends in "@subset" is refused when
    the data sets are whole.
    """
    plain = str(name).removesuffix(SUBSET)
    nearest("stream", plain, STREAMS)
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < SEEDS:
        raise SettingError(f"seed={seed!r} of stream {name!r} must be an integer from 0 to 2³²−1")
    if not 0.0 < fraction <= 1.0:
        raise SettingError(f"fraction={fraction} of stream {name!r} must be more than 0 and at most 1")
    stream = STREAMS[plain](order, int(seed), fraction, data)
    if plain != name and stream.name == plain:
        raise SettingError(f"stream {name!r} does not exist here: its data are whole. Use the name {plain!r}.")
    return stream


def identities(name: str, order: str) -> tuple[int, ...] | None:
    """The identities of a stream's tasks in an order, without reading any data; None for a stream of your own."""
    plain = str(name).removesuffix(SUBSET)
    nearest("stream", plain, STREAMS)
    about = ABOUT.get(plain.partition("@")[0])
    return None if about is None else identities_of(name, about.orders(), order)
