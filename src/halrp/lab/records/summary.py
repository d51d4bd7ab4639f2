"""Runs → one row for all orders and seeds of the same method, settings, recipe and setup.

Runs under the orders first-K are rows of their own. When every task has come first, and the method's tasks depend on
the first one alone, such a row is exact for all T! orders. The spread of the accuracy is over seeds, after the mean
over orders; with one seed it is over orders, and `spread_over` names which. The disparity between orders comes with its
noise floor: the disparity of `stl` with `redraw` under the same orders and seeds, which is that of training alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from halrp.lab.records import metrics
from halrp.lab.records.frames import GROUP, METRICS, SETUP, Frame
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.records.schema import Record

SPREAD = ("spread_over", "error_paper", "error_usual", "lower", "upper")
DISPARITY = ("mopd", "aopd", "stl_mopd", "stl_aopd")
COLUMNS = [
    *GROUP[:-1], "orders", "every_order", "seeds", "runs", "accuracy", *SPREAD, "lowest", "highest", "bwt", *DISPARITY,
    *METRICS[2:], "undefined", "first_order", "record",
]  # fmt: skip


def summarise(runs: Frame, among: Frame | None = None) -> Frame:
    """One row per group of repeated runs, in their order; `among` are all runs, to look for the noise floor in.

    The index of a row is `group_numbers(runs)` of its runs; `record` is the first of its records.
    """
    among = runs if among is None else among
    redrawn = among.loc[[r.method == "stl" and r.settings.get("redraw") is True for r in among["record"]]]
    floors = {_key(setup): here for setup, here in redrawn.groupby(SETUP, sort=False, dropna=False)}
    groups = runs.groupby(GROUP, sort=False, dropna=False)
    frame = pd.DataFrame(
        [_row(dict(zip(GROUP, key, strict=True)), group, floors) for key, group in groups], columns=COLUMNS
    )
    frame["epochs"] = pd.Series([record.epochs for record in frame["record"]], dtype=object)
    return frame


def group_numbers(runs: Frame) -> pd.Series:
    """For each run, the index of its row in `summarise(runs)`."""
    return runs.groupby(GROUP, sort=False, dropna=False).ngroup()


def _key(setup: tuple[Any, ...]) -> tuple[Any, ...]:
    """A setup as a key of a dictionary, in which unknown epochs are equal."""
    return tuple(None if isinstance(value, float) and math.isnan(value) else value for value in setup)


def _row(shared: dict[str, Any], group: Frame, floors: dict[tuple[Any, ...], Frame]) -> dict[str, Any]:
    first: Record = group["record"].iloc[0]
    orders, seeds = [*group["order"].unique()], sorted(group["seed"].unique())
    exact = _exact(group, orders)
    floor = floors.get(_key(tuple(shared[name] for name in SETUP)))
    row: dict[str, Any] = shared | {
        "orders": f"all {first.tasks}!" if exact else " ".join(orders),
        "every_order": exact,
        "seeds": " ".join(map(str, seeds)),
        "runs": len(group),
        "record": first,
        "undefined": {name: reason for name, reason in group["undefined"].iloc[0].items() if name == "epochs"},
    }
    row |= _means(group, row["undefined"])
    row |= _accuracy(group, orders, exact, row["undefined"])
    return row | _disparities(group, orders, exact, floor, row["undefined"])


def _means(group: Frame, undefined: dict[str, str]) -> dict[str, float]:
    """The mean of each metric, the highest of peaks; NaN if one run lacks it, for a mean over the others is another."""
    values: dict[str, float] = group[METRICS].mean(skipna=False).to_dict() | {
        "peak_bytes": group["peak_bytes"].max(skipna=False)
    }
    for name in METRICS:
        lacking = [reason[name] for reason in group["undefined"] if name in reason]
        if lacking:
            some = f"in {len(lacking)} of the runs: " if len(lacking) < len(group) else ""
            undefined[name] = some + lacking[0]
    return values


def _accuracy(group: Frame, orders: list[str], exact: bool, undefined: dict[str, str]) -> dict[str, Any]:
    """The mean, its spread, and the lowest and highest of the orders."""
    values: dict[str, Any] = dict.fromkeys((*SPREAD, "lowest", "highest"), math.nan)
    if "accuracy" in undefined:
        undefined |= dict.fromkeys(values, undefined["accuracy"])
        return values
    accuracy, order, seed = (group[name].to_numpy() for name in ("accuracy", "order", "seed"))
    by_order = [accuracy[order == name].mean() for name in orders]
    by_seed = [accuracy[seed == common].mean() for common in _common_seeds(group, orders)]
    values |= {"accuracy": accuracy.mean(), "lowest": min(by_order), "highest": max(by_order)}
    over, means = ("seeds", by_seed) if len(by_seed) > 1 or exact else ("orders", by_order)
    if len(means) > 1:
        errors = metrics.standard_error(means, "paper"), metrics.standard_error(means, "usual")
        values |= zip(SPREAD, (over, *errors, *metrics.bootstrap(means)), strict=True)
    else:
        all_orders = "all orders are present, and one seed has no spread: it needs several"
        one_run = "one run has no spread: it needs several seeds, or several orders"
        undefined |= dict.fromkeys(SPREAD, all_orders if exact else one_run)
    if exact:
        result = metrics.all_orders(_by_order(group, orders))
        values |= {"accuracy": result.accuracy, "lowest": result.lowest, "highest": result.highest}
    return values


def _disparities(
    group: Frame, orders: list[str], exact: bool, redrawn: Frame | None, undefined: dict[str, str]
) -> dict[str, float]:
    """Disparity between orders, and that of `stl` when only its random draws differ."""

    def measured() -> tuple[float, float]:
        p = _by_order(group, orders)
        return metrics.all_orders(p)[1:3] if exact else metrics.order_disparity(p)

    def floor() -> tuple[float, float]:
        return metrics.order_disparity(_by_order(_matching(group, redrawn), orders))

    values: dict[str, float] = {}
    for names, compute in ((DISPARITY[:2], measured), (DISPARITY[2:], floor)):
        values |= zip(names, _both(names, compute, undefined), strict=True)
    return values


def _both(
    names: tuple[str, ...], compute: Callable[[], tuple[float, float]], undefined: dict[str, str]
) -> tuple[float, float]:
    try:
        return compute()
    except UndefinedMetric as error:
        undefined |= dict.fromkeys(names, str(error))
        return math.nan, math.nan


def _matching(group: Frame, redrawn: Frame | None) -> Frame:
    """The runs of `stl` with `redraw` in the same setup, under the orders and seeds of a group."""
    if redrawn is None:
        raise UndefinedMetric("stl with redraw=true was not run here")
    wanted = {*zip(group["order"], group["seed"], strict=True)}
    pairs = [*zip(redrawn["order"], redrawn["seed"], strict=True)]
    if lacking := sorted(wanted - {*pairs}):
        raise UndefinedMetric(
            f"stl with redraw=true was not run under {len(lacking)} of the {len(wanted)} orders and seeds; the "
            f"first is order {lacking[0][0]} with seed {lacking[0][1]}"
        )
    return redrawn[[pair in wanted for pair in pairs]]


def _by_order(group: Frame, orders: list[str]) -> NDArray[np.float64]:
    """Final accuracies p[o, t] by order and identity, averaged over the seeds that were run under every order."""
    if len(orders) < 2:
        raise UndefinedMetric("one order has no disparity: it needs at least two")
    seeds = _common_seeds(group, orders)
    if not seeds:
        raise UndefinedMetric("no seed was run under every order")
    finals = [metrics.by_identity(record.rows) for record in group["record"]]
    if len({tuple(final) for final in finals}) > 1:
        raise UndefinedMetric("the orders do not have the same tasks: learn whole streams to compare orders")
    accuracies, order = np.array([[*final.values()] for final in finals]), group["order"].to_numpy()
    common = group["seed"].isin(seeds).to_numpy()
    return np.array([accuracies[common & (order == name)].mean(axis=0) for name in orders])


def _common_seeds(group: Frame, orders: list[str]) -> list[int]:
    """The seeds that were run under every order."""
    by_order: dict[str, set[int]] = {order: set() for order in orders}
    for order, seed in zip(group["order"], group["seed"], strict=True):
        by_order[order].add(seed)
    return sorted(set.intersection(*by_order.values()))


def _exact(group: Frame, orders: list[str]) -> bool:
    """Whether the runs determine the result of every order of the stream."""
    records: list[Record] = [*group["record"]]
    identities = {row["identity"] for row in records[0].rows}
    return (
        records[0].first_order
        and {record.rows[0]["identity"] for record in records} == identities
        and len(orders) == len(identities) > 1
        and all({row["identity"] for row in record.rows} == identities for record in records)
        and bool(_common_seeds(group, orders))
        and all(record.first_decides for record in records)
    )
