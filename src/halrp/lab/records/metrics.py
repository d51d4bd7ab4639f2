"""The metrics of tables and figures, as pure functions of raw accuracies.

`a[i, j]` is the accuracy of the task at position j after the task at position i was learned, so that only j ≤
i has a meaning; the rest may be NaN. `p[o, t]` is the final accuracy of the task with *identity* t under
order o. Positions and identities are different things: before orders are compared, a final row has to be
re-indexed, `p[o, stream.identities] = a[-1]`. Accuracies may be shares or percentages; a metric has the unit
of its input.

A metric reads only the entries its formula names, and refuses to answer when one of them is missing: a mean
over the entries that are present is a different number.

Rows are those of a record, one for each position; `accuracy_matrix` and `by_identity` read accuracies from them, in %.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halrp.errors import HalrpError, SettingError


class UndefinedMetric(HalrpError, ValueError):  # noqa: N818  (reads as what it says, like BudgetTooSmall)
    """A metric has no value for this input: an accuracy it needs is missing, or there are too few tasks or orders."""


class Orders(NamedTuple):
    """The results of all orders of a stream, for a method whose tasks depend on the first one alone."""

    accuracy: float
    """The mean over all orders of the average accuracy."""
    mopd: float
    aopd: float
    lowest: float
    """The least average accuracy that an order has."""
    highest: float
    lowest_first: int
    """The identity that comes first in the orders with the least average accuracy."""
    highest_first: int
    orders: int
    """How many orders there are, T!."""


class Times(NamedTuple):
    """Seconds as multiples of the time in which `stl` learns its first task."""

    per_task: tuple[float, ...]
    """By position."""
    cumulative: tuple[float, ...]
    """Up to and with a position; the last one is the whole stream."""


class Interval(NamedTuple):
    """A range that holds a share of what resampling gives."""

    lower: float
    upper: float


def accuracy_matrix(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Read a[i, j] in % from the rows of a record: (tasks, tasks), NaN above the diagonal and where none was measured.

    Methods that learn all tasks at once have no accuracy before the last position.
    """
    a = np.full((len(rows), len(rows)), np.nan)
    for position, row in enumerate(rows):
        if len(row["test"]) != position + 1:
            raise UndefinedMetric(
                f"the accuracy matrix needs {position + 1} accuracies at position {position}; "
                f"the row has {len(row['test'])}"
            )
        a[position, : position + 1] = [np.nan if share is None else 100 * share for share in row["test"]]
    return a


def by_identity(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Read the final accuracy in % of every task, by its identity, in the order of identities."""
    if not rows:
        raise UndefinedMetric("final accuracies need at least one row; the record has none")
    final = _known("final accuracies", accuracy_matrix(rows)[-1], "the last row")
    identities = [int(row["identity"]) for row in rows]
    if len(set(identities)) < len(identities):
        raise UndefinedMetric(f"final accuracies need an identity for each task; the rows have {identities}")
    return {identity: float(value) for identity, value in sorted(zip(identities, final, strict=True))}


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


def all_orders(p: ArrayLike) -> Orders:
    """Measure all T! orders, from T runs: p[b, t] is the final accuracy of identity t when b came first, (T, T).

    Only for methods whose tasks depend on the first task and on themselves alone. An order that begins with b then has
    exactly the final accuracies p[b], whatever follows, and (T−1)! orders begin with each b. So the mean over all
    orders is the mean over b, and a task's largest and smallest accuracies over all orders are those over b.
    """
    p = np.asarray(p, dtype=np.float64)
    if p.ndim != 2 or p.shape[0] != p.shape[1]:
        raise UndefinedMetric(f"all orders need every identity to come first once; p has shape {p.shape}")
    mopd, aopd = order_disparity(p)
    averages = p.mean(axis=1)
    low, high = int(averages.argmin()), int(averages.argmax())
    return Orders(
        float(averages.mean()),
        mopd,
        aopd,
        float(averages[low]),
        float(averages[high]),
        low,
        high,
        math.factorial(len(p)),
    )


def growth(sizes: ArrayLike, base: float | None = None) -> float:
    """Measure what the stream added: (size after all tasks) / (single-task model) − 1, as a share.

    `sizes` are by position, (tasks,), in bytes, parameters or the paper's count. `base` is the size of a single-task
    model in the same unit; without one it is the size after the first task.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or len(sizes) == 0:
        raise UndefinedMetric(f"growth needs a size for each position; sizes has shape {sizes.shape}")
    final = float(_known("growth", sizes[-1:], "the size after the last task")[0])
    single = float(_known("growth", sizes[:1] if base is None else np.array([base]), "the single-task model's size")[0])
    if single <= 0:
        raise UndefinedMetric(f"growth is relative to a single-task model, whose size {single:g} must be above 0")
    return final / single - 1


def time_ratios(seconds: ArrayLike, stl_first: float) -> Times:
    """Express seconds by position, (tasks,), as multiples of `stl_first`, the seconds of `stl`'s first task.

    It has a meaning only if both were measured on the same machine with as many threads.
    """
    seconds = np.asarray(seconds, dtype=np.float64)
    if seconds.ndim != 1 or len(seconds) == 0:
        raise UndefinedMetric(f"time ratios need the seconds of each task; seconds has shape {seconds.shape}")
    if not (math.isfinite(stl_first) and stl_first > 0):
        raise UndefinedMetric(f"time ratios need the seconds of stl's first task above 0; they are {stl_first}")
    ratios = _known("time ratios", seconds, "seconds") / stl_first
    return Times(tuple(map(float, ratios)), tuple(map(float, ratios.cumsum())))


def mean(values: ArrayLike) -> float:
    """Average values, all of which have to be known."""
    return float(_values("a mean", values).mean())


def standard_error(values: ArrayLike, convention: Literal["paper", "usual"] = "usual") -> float:
    """Measure how far a mean of n values is from that of many: deviation / √n.

    "usual" estimates the deviation with n − 1. "paper" divides by n, as the summary in the authors' code does, which is
    smaller by the factor √((n − 1) / n).
    """
    if convention not in ("paper", "usual"):
        raise SettingError(f"convention={convention!r} of a standard error must be 'paper' or 'usual'")
    values = _values("a standard error", values, at_least=2)
    return float(values.std(ddof=0 if convention == "paper" else 1)) / math.sqrt(len(values))


def bootstrap(values: ArrayLike, share: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Find the percentile interval of the mean: that of `resamples` samples of the same size, drawn with replacement.

    The same values and seed give the same interval, in whatever order the values come.
    """
    if not 0 < share < 1:
        raise SettingError(f"share={share} of a bootstrap must lie between 0 and 1")
    if resamples < 1:
        raise SettingError(f"resamples={resamples} of a bootstrap must be at least 1")
    values = np.sort(_values("a bootstrap", values, at_least=2))
    chosen = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    tail = (1 - share) / 2
    lower, upper = np.quantile(values[chosen].mean(axis=1), (tail, 1 - tail))
    return Interval(float(lower), float(upper))


def _values(metric: str, values: ArrayLike, at_least: int = 1) -> NDArray[np.float64]:
    """Return `values` as a float64 vector of enough of them."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise UndefinedMetric(f"{metric} needs a list of values; they have shape {values.shape}")
    if len(values) < at_least:
        raise UndefinedMetric(
            f"{metric} needs at least {at_least} value{'s' * (at_least > 1)}; there are {len(values)}"
        )
    return _known(metric, values, "the values")


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
