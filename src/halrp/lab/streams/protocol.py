"""What the benchmarks share: the names of orders, the seeds of repeats, and the images that a fraction leaves.

A repeat r draws its images with the r-th number that the paper's scripts draw from their master seed. Of the N images
that a task could train on, a fraction f keeps ⌈f · N⌉, of which the share v, rounded down, validates and the rest
trains. The kept images of a small fraction are among those of a large one for the same seed. Test images are never
left out, and they come in one fixed order that mixes the classes, because a network that normalises with the
statistics of the batch would otherwise be tested on batches of one class.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from halrp.errors import SettingError
from halrp.lab.data import DataDamaged, Images, LoadedDataSet
from halrp.lab.names import check_name
from halrp.lab.reference import load_reference

Indices = NDArray[np.intp]

ORDERS = "ABCDE"
MASTER_SEED = 111111
SEEDS = 2**32
"""Repeats are numbered from 0 to one less."""


def published_orders(benchmark: str) -> dict[str, list[int]]:
    """Return the paper's five orders of a benchmark; lists printed under the seeds 0 … 4 are called A … E here."""
    printed: dict[str, list[int]] = load_reference("task_orders")["orders"][benchmark]
    return dict(zip(ORDERS, (printed[key] for key in sorted(printed)), strict=True))


def drawn_orders(tasks: int) -> dict[str, list[int]]:
    """Make orders for a benchmark that has none published: A by identity, B … E drawn from the seeds 1 … 4."""
    drawn = {name: np.random.RandomState(seed).permutation(tasks).tolist() for seed, name in enumerate("BCDE", 1)}
    return {"A": list(range(tasks)), **drawn}


def identities_of(stream: str, orders: Mapping[str, Sequence[int]], order: str) -> tuple[int, ...]:
    """Look up `order` of a benchmark: the identities of its tasks, by position.

    Besides the named ones, "first-3" is the task 3 followed by the others by identity, and "2,0,1" is an order itself.
    """
    if order in orders:
        return tuple(orders[order])
    identities = sorted(next(iter(orders.values())))
    if isinstance(order, str) and (matching := re.fullmatch(r"first-(\d+)", order)):
        first = int(matching[1])
        if first not in identities:
            raise SettingError(
                f"order {order!r} of stream {stream!r}: its tasks are {identities[0]} to {identities[-1]}"
            )
        return (first, *(task for task in identities if task != first))
    if isinstance(order, str) and re.fullmatch(r"\d+(,\d+)+", order):
        listed = tuple(int(word) for word in order.split(","))
        if sorted(listed) != identities:
            raise SettingError(
                f"order {order!r} of stream {stream!r} is no permutation of its tasks {identities[0]} to "
                f"{identities[-1]}; name each of them once"
            )
        return listed
    check_name(f"order of stream {stream!r}", order, orders)
    raise AssertionError("an order that is named is found above")


def split_seed(repeat: int) -> int:
    """Return the seed with which a repeat draws its images; the paper's five are 7690, 1304, 3254, 8140 and 7444."""
    random = np.random.RandomState(MASTER_SEED)  # numpy promises that its draws never change
    block = 1 << 16
    for _ in range(repeat // block):
        random.randint(1, 10000, size=block)
    return int(random.randint(1, 10000, size=repeat % block + 1)[-1])


def subset_size(count: int, fraction: float) -> int:
    """The number of images in a fraction of `count`: ⌈fraction · count⌉."""
    # Rounding first: 0.07 · 5000 is a little more than 350 in binary, and its ceiling would be 351.
    return math.ceil(round(fraction * count, 6))


def shares(stream: str, count: int, fraction: float, validation: float) -> tuple[int, int]:
    """The number of images in a fraction of `count`, and the number of those that validate.

    held = ⌊validation · subset⌋; the others train.
    """
    subset = subset_size(count, fraction)
    held = math.floor(round(validation * subset, 6))
    if held == 0:
        raise SettingError(
            f"fraction={fraction} of stream {stream!r} has {subset} of {count} images and leaves none of them for "
            f"validation; use at least {math.ceil(1 / validation) / count:.4f}"
        )
    return subset, held


def carve(
    stream: str, pool: Indices, random: np.random.RandomState, fraction: float, validation: float
) -> tuple[Indices, Indices]:
    """Shuffle a copy of `pool`, keep the first images of it, and return those that train and those that validate."""
    subset, held = shares(stream, len(pool), fraction, validation)
    mixed = random.permutation(pool)
    return mixed[held:subset], mixed[:held]


def in_file_order(
    stream: str, count: int, random: np.random.RandomState, fraction: float, validation: float
) -> tuple[Indices, Indices]:
    """Draw from images 0 … count−1 and return them in file order, the first of them to validate, as (train, val)."""
    subset, held = shares(stream, count, fraction, validation)
    chosen = np.sort(random.permutation(count)[:subset])
    return chosen[held:], chosen[:held]


def mixed(chosen: Indices) -> Indices:
    """Put images into the one fixed order that mixes their classes."""
    return chosen[np.random.RandomState(0).permutation(len(chosen))]


def members(source: Images, classes: Sequence[int]) -> Indices:
    """List the images of some classes, class by class and in file order within a class."""
    matching = [np.flatnonzero(source.labels == label) for label in classes]
    for label, images in zip(classes, matching, strict=True):
        if len(images) == 0:
            raise DataDamaged(f"no image of class {label} among {len(source.labels)}. Copy the data set again.")
    return np.concatenate(matching)


def class_names(data_set: LoadedDataSet, classes: Sequence[int]) -> tuple[str, ...]:
    """Name some classes of a data set; empty when its files do not name them."""
    return tuple(data_set.classes[label] for label in classes) if data_set.classes else ()


def name_of(stream: str, *used: LoadedDataSet) -> str:
    """Return the stream's name, with "@subset" when one of the data sets it uses is not complete."""
    return stream if all(data_set.complete for data_set in used) else f"{stream}@subset"
