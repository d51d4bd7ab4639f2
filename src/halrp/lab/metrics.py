"""What the tables say, as pure functions of raw accuracies.

`a[i, j]` is the accuracy of the task at position j after the task at position i was learned, so that only j ≤
i has a meaning; the rest may be NaN. `p[o, t]` is the final accuracy of the task with *identity* t under
order o. Positions and identities are different things: before orders are compared, a final row has to be
re-indexed, `p[o, stream.identities] = a[-1]`. Accuracies may be shares or percentages; a metric has the unit
of its input.

A metric reads only the entries its formula names, and refuses to answer when one of them is missing: a mean
over what happens to be there is a different number.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halrp.errors import HalrpError


class UndefinedMetric(HalrpError, ValueError):  # noqa: N818  (reads as what it says, like BudgetTooSmall)
    """A metric has no value for this input: an accuracy it needs is missing, or there are too few tasks or orders."""


def average_accuracy(a: ArrayLike) -> float:
    """Measure the final network: (1/T) Σⱼ a[T−1, j]."""
    a = _matrix("average accuracy", a)
    return float(_known("average accuracy", a[-1], "the last row of a").mean())


def backward_transfer(a: ArrayLike) -> float:
    """Measure what later tasks did to earlier ones: 1/(T−1) Σ_{j<T−1} (a[T−1, j] − a[j, j]).

    Negative when tasks are forgotten, exactly zero when committed tasks never change. The last task, which nothing
    follows, is left out.
    """
    a = _matrix("backward transfer", a, at_least=2)
    final = _known("backward transfer", a[-1, :-1], "the last row of a")
    learned = _known("backward transfer", a.diagonal()[:-1], "the diagonal of a")
    return float((final - learned).mean())


def forgetting(a: ArrayLike) -> float:
    """Measure what earlier tasks lost, as plots show it: the negative of backward transfer."""
    # Subtracting from zero, because the negative of 0.0 prints as -0.0.
    return 0.0 - backward_transfer(a)


def forward_transfer(a: ArrayLike, single: ArrayLike) -> float:
    """Measure what earlier tasks did for later ones: 1/(T−1) Σ_{j≥1} (a[j, j] − single[j]).

    `single[j]` is the accuracy of a network that learned only the task at position j. The first task, which nothing
    precedes, is left out.
    """
    a = _matrix("forward transfer", a, at_least=2)
    alone = np.asarray(single, dtype=np.float64)
    if alone.shape != (len(a),):
        raise UndefinedMetric(
            f"forward transfer needs one single-task accuracy for each of the {len(a)} tasks of a; "
            f"single has shape {alone.shape}"
        )
    learned = _known("forward transfer", a.diagonal()[1:], "the diagonal of a, after its first entry,")
    return float((learned - _known("forward transfer", alone[1:], "single, after its first entry,")).mean())


def order_disparity(p: ArrayLike) -> tuple[float, float]:
    """Measure how much a task's accuracy depends on the order of the stream: (MOPD, AOPD).

    OPD_t = max_o p[o, t] − min_o p[o, t]; MOPD is its largest value over tasks, AOPD its mean. With several repeats,
    `p` is their mean.
    """
    p = np.asarray(p, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] == 0:
        raise UndefinedMetric(f"order disparity needs accuracies by order and task identity; p has shape {p.shape}")
    if len(p) < 2:
        raise UndefinedMetric(f"order disparity compares orders and needs at least two; p has {len(p)}")
    disparity = np.ptp(_known("order disparity", p, "p"), axis=0)
    return float(disparity.max()), float(disparity.mean())


def _matrix(metric: str, a: ArrayLike, at_least: int = 1) -> NDArray[np.float64]:
    """Return `a` as a float64 matrix with one row and one column for each of enough tasks."""
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise UndefinedMetric(f"{metric} needs a square matrix, positions by positions; a has shape {a.shape}")
    if len(a) < at_least:
        raise UndefinedMetric(f"{metric} needs at least {at_least} task{'s' * (at_least > 1)}; a has {len(a)}")
    return a


def _known(metric: str, values: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """Return `values` unless one of them is missing."""
    missing = np.argwhere(~np.isfinite(values))
    if len(missing):
        index = ", ".join(str(i) for i in missing[0])
        raise UndefinedMetric(
            f"{metric} needs {where} in full: {len(missing)} of {values.size} values are not finite, the first at "
            f"index {index}. Finish the run, or evaluate the tasks that were left out."
        )
    return values
