"""Benchmarks by name: `load("cifar100-split", order="B", seed=3, fraction=0.25)`.

A stream is tasks in an order. Three arguments choose one of a benchmark's variants: `order` names the order in which
its tasks are learned, `seed` the repeat, which draws the images of every split, and `fraction` the share of training
and validation images that a task may use. The images of a task depend on its identity, the seed and the fraction, never
on the order. Orders are called A … E; where the paper prints them under seeds 0 … 4, A is that of seed 0. Adding a
benchmark is a file with a function and an entry in `halrp.lab.registry`; a function of your own is named
"my_module:load".

A different division of the same data is a variant, named after "@". The name of a stream made from incomplete data sets
ends in "@subset", whether it was requested with that ending or not, so that its results are not mistaken for those of
the benchmark.
"""

import dataclasses
from os import PathLike

import numpy as np

from halrp.errors import SettingError
from halrp.lab import registry
from halrp.lab.data import DataDamaged, DataMissing
from halrp.lab.registry import STREAMS, SUBSET
from halrp.lab.streams.custom import permuted, rotated, split_by_class, stream_from_folder
from halrp.lab.streams.orders import orders_of
from halrp.lab.streams.protocol import SEEDS, identities_of
from halrp.lab.streams.stream import Augment, Normal, Split, Stream, Task

__all__ = [
    "STREAMS",
    "SUBSET",
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


def load(
    name: str,
    order: str = "A",
    seed: int = 0,
    fraction: float = 1.0,
    data: str | PathLike[str] | None = None,
) -> Stream:
    """Load the benchmark `name`: its tasks in `order`, with images drawn by `seed`.

    `data` is the directory of the data sets; by default that of the environment variable `HALRP_DATA`, or else
    `halrp/data` in the user's cache directory. A name that ends in "@subset" is refused when the data sets are
    complete.
    """
    name = str(name)
    plain = name.removesuffix(SUBSET)
    entry = registry.stream(name)
    if not isinstance(seed, (int, np.integer)) or not 0 <= seed < SEEDS:
        raise SettingError(f"seed={seed!r} of stream {name!r} must be an integer from 0 to 2³²−1")
    if not 0.0 < fraction <= 1.0:
        raise SettingError(f"fraction={fraction} of stream {name!r} must be more than 0 and at most 1")
    _ = identities(plain, order)  # an order that does not exist is refused under the name that was given
    stream = entry.load_variant(plain.partition("@")[2])(order=order, seed=int(seed), fraction=fraction, data=data)
    if not isinstance(stream, Stream):
        raise SettingError(f"stream {name!r}: its function returns a {type(stream).__name__}; it must return a Stream")
    if stream.name.removesuffix(SUBSET) != plain:  # a user's function may give its stream any name
        stream = dataclasses.replace(stream, name=plain + (SUBSET if stream.name.endswith(SUBSET) else ""))
    if plain != name and stream.name == plain:
        raise SettingError(f"stream {name!r} does not exist here: its data are complete. Use the name {plain!r}.")
    return stream


def identities(name: str, order: str) -> tuple[int, ...] | None:
    """The identities of a stream's tasks in an order, without reading any data; None for a stream of your own."""
    orders = orders_of(name)
    return None if orders is None else identities_of(name, orders, order)
