"""Whether two methods differ on the tasks that both have learned, by a permutation test.

Runs of one task under several orders and seeds share its data and are not independent, so their differences are
averaged first: the test flips the signs of the tasks' mean differences. Up to `EXACT` tasks all flips are counted, and
beyond that `FLIPS` of them. Several comparisons are corrected by Holm's rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from halrp.lab.records.metrics import UndefinedMetric

EXACT, FLIPS, SEED = 14, 20_000, 0
LEVEL = 0.05

Verdict = Literal["better", "not distinguishable", "worse"]
Finals = Mapping[tuple[int, tuple[str, int]], float]
"""Accuracies by task, and by the run of it that another method has too: (order, seed)."""


class Comparison(NamedTuple):
    """The mean difference of two methods, over tasks."""

    difference: float
    error: float
    """Its standard error over tasks; NaN for a single one."""
    p: float
    """The probability of a difference as large if the signs of tasks were arbitrary."""
    tasks: int


def compare(first: Finals, second: Finals) -> Comparison:
    """The first method minus the second, on what both have."""
    shared = first.keys() & second.keys()
    if not shared:
        raise UndefinedMetric("a paired test needs tasks that both methods learned under the same orders and seeds")
    by_task: dict[int, list[float]] = {}
    for key in sorted(shared, key=repr):
        by_task.setdefault(key[0], []).append(first[key] - second[key])
    means = np.array([np.mean(values) for values in by_task.values()])
    error = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
    return Comparison(float(means.mean()), error, sign_flips(means), len(means))


def sign_flips(differences: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The share of sign flips whose mean is at least as far from zero as the one that was observed."""
    values = np.asarray(differences, dtype=np.float64)
    observed = abs(values.mean())
    if len(values) <= EXACT:
        signs = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
        return float((np.abs((signs * values).mean(1)) >= observed * (1 - 1e-9)).mean())
    signs = np.random.default_rng(SEED).choice((-1.0, 1.0), size=(FLIPS, len(values)))
    beyond = int((np.abs((signs * values).mean(1)) >= observed * (1 - 1e-9)).sum())
    return (beyond + 1) / (FLIPS + 1)


def corrected(p: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of n is multiplied by n − k + 1, and none is below one before it."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = largest
    return adjusted


def verdict(difference: float, p: float) -> Verdict:
    """What a corrected test says of a difference."""
    if p >= LEVEL:
        return "not distinguishable"
    return "better" if difference > 0 else "worse"
