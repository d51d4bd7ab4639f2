"""Few examples of each class: drawn class by class, with the same test examples for every seed and fraction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halrp import seeding
from halrp.lab.data import DataDamaged
from halrp.lab.streams.protocol import Indices, subset_size

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
    labels of a part of its own; without one, a third of each class tests. At most `tested` of a class do.
    """
    parts: tuple[list[Indices], list[Indices], list[Indices]] = ([], [], [])
    for label in classes:
        pool = np.flatnonzero(labels == label)
        if test is None:
            mixed = _mixed(pool, name, "test", label)
            count = min(tested, len(pool) // 3)
            held, pool = mixed[:count], np.sort(mixed[count:])
        else:
            held = _mixed(np.flatnonzero(test == label), name, "test", label)[:tested]
        if len(pool) < 2 or len(held) == 0:
            raise DataDamaged(
                f"{name!r} has too few examples of class {label} to learn and to test. Copy the data again."
            )
        pool = _mixed(pool, name, "train", label, seed)[:most]
        subset = min(len(pool), max(FEWEST, subset_size(len(pool), fraction)))
        validated = max(1, math.floor(round(VALIDATION * subset, 6)))
        for part, chosen in zip(parts, (pool[validated:subset], pool[:validated], held), strict=True):
            part.append(chosen)
    return Parts(*(np.concatenate(part) for part in parts))


def _mixed(indices: Indices, *key: object) -> Indices:
    """Indices in the order that a seed key draws."""
    return indices[np.random.RandomState(seeding.seed_of(*key) % 2**32).permutation(len(indices))]
