"""Few examples of each class: drawn class by class, with the same test examples for every seed and fraction.

Collections of texts, tables and images repeat some examples. With few of them a repeated one would be tested after it
was learned, so `distinct` leaves it out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from halrp import seeding
from halrp.lab.data import DataDamaged
from halrp.lab.streams.protocol import Indices, mixed, subset_size
from halrp.lab.streams.stream import Split

VALIDATION = 0.2
"""The share of the examples in use that validates."""
FEWEST = 5
"""Examples of a class that are in use whatever the fraction, if there are as many."""


class Parts(NamedTuple):
    """Which examples train, validate and test."""

    train: Indices
    val: Indices
    test: Indices


def few(
    name: str,
    labels: NDArray[np.int64],
    classes: Sequence[int],
    seed: int,
    fraction: float,
    *,
    most: int,
    tested: int,
    test: NDArray[np.int64] | None = None,
) -> Parts:
    """Draw the examples of a task, by `name`, with `labels` (examples,).

    Of each class at most `most` examples are in use with a fraction of 1, a fifth of which validates. `test` are the
    labels of a part of its own; without one, a third of each class tests. At most `tested` of a class do, in an order
    that mixes the classes.
    """
    parts: tuple[list[Indices], list[Indices], list[Indices]] = ([], [], [])
    for label in classes:
        pool = np.flatnonzero(labels == label)
        if test is None:
            shuffled = _shuffled(pool, name, "test", label)
            count = min(tested, len(pool) // 3)
            held, pool = shuffled[:count], np.sort(shuffled[count:])
        else:
            held = _shuffled(np.flatnonzero(test == label), name, "test", label)[:tested]
        if len(pool) < 2 or len(held) == 0:
            raise DataDamaged(
                f"{name!r} has too few examples of class {label} to learn and to test. Copy the data again."
            )
        pool = _shuffled(pool, name, "train", label, seed)[:most]
        subset = min(len(pool), max(FEWEST, subset_size(len(pool), fraction)))
        validated = max(1, math.floor(round(VALIDATION * subset, 6)))
        for part, chosen in zip(parts, (pool[validated:subset], pool[:validated], held), strict=True):
            part.append(chosen)
    train, val, held = (np.concatenate(part) for part in parts)
    return Parts(train, val, mixed(held))


def distinct(train: Split, val: Split, test: Split) -> tuple[Split, Split, Split]:
    """Leave out repeated examples: each stays once, in `test` if it is there, or else in `val` if it is there."""
    seen: set[bytes] = set()
    test, val, train = (_unseen(split, seen) for split in (test, val, train))
    return train, val, test


def _unseen(split: Split, seen: set[bytes]) -> Split:
    """The examples whose hash is not among those seen, which it joins."""
    fresh = []
    for i, row in enumerate(split.x.contiguous()):
        key = _hash(row)
        if key not in seen:
            seen.add(key)
            fresh.append(i)
    return split if len(fresh) == len(split.y) else Split(split.x[fresh], split.y[fresh])


def _hash(row: Tensor) -> bytes:
    return hashlib.blake2b(row.numpy().data, digest_size=16).digest()


def _shuffled(indices: Indices, *key: object) -> Indices:
    """Indices in the order that a seed key draws."""
    return indices[np.random.RandomState(seeding.seed_of(*key) % 2**32).permutation(len(indices))]
