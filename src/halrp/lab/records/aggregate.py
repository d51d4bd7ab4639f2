"""Records → tables: one row for each run, or one row for all orders and seeds of the same thing.

Every number is computed from the raw rows of records by `halrp.lab.metrics`. One that has no value says why: it is an
`Undefined` with a reason, never a guess.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halrp.lab.records import metrics
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.records.schema import Loaded, Problem, Record, Run, load, text
from halrp.store import atomic

__all__ = [
    "Loaded", "Problem", "Record", "Row", "Table", "Undefined", "Value", "load", "machine", "plain", "runs_table",
    "summary", "time_units", "to_csv", "to_json", "write_csv", "write_json",
]  # fmt: skip

SIZES = {"bytes": "the stored bytes", "parameters": "the stored parameters", "counted": "the paper's count"}


@dataclass(frozen=True)
class Undefined:
    """In place of a number that has no value."""

    reason: str


Value: TypeAlias = str | int | float | bool | Undefined
Row: TypeAlias = dict[str, Value]
Singles: TypeAlias = dict[tuple[str, str, str], list[Run]]
Table: TypeAlias = list[Row]


def runs_table(records: Iterable[Record], others: Iterable[Record] | None = None) -> Table:
    """One row for each run: what it was, accuracy and backward transfer in %, growth as a share, seconds, bytes.

    `others` are more records, among which the size of a single-task model may be found; without them it is `records`.
    """
    chosen, known = _runs(records, others)
    singles = _singles(known)
    return [_row_of_run(run, singles) for run in chosen]


def summary(records: Iterable[Record], others: Iterable[Record] | None = None) -> Table:
    """One row for all orders and seeds of the same method, settings, recipe, stream, backbone, fraction and tasks.

    Runs under the orders first-K are a row of their own. When every task has come first, and the method's tasks depend
    on the first one alone, that row holds exactly for all T! orders. The spread of the accuracy is over seeds, after
    the mean over orders; with one seed it is over orders, and `spread_over` says so. Beside the disparity between
    orders stands that of `stl` with `redraw`, under the very same orders and seeds: the noise of training alone.
    `others` are more records, among which runs of `stl` are looked for; without them it is `records`.
    """
    chosen, known = _runs(records, others)
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in chosen:
        groups.setdefault(run.kind, []).append(run)
    singles, units = _singles(known), time_units(known)
    return [_row_of_group(group, known, singles, units) for group in groups.values()]


def plain(table: Table) -> list[dict[str, Any]]:
    """A table as values of JSON: undefined ones are null, and `undefined` has their reasons by column."""
    return [
        {name: None if isinstance(value, Undefined) else value for name, value in row.items()}
        | {"undefined": {name: value.reason for name, value in row.items() if isinstance(value, Undefined)}}
        for row in table
    ]


def to_json(table: Table) -> str:
    """A table as JSON, as `plain` has it."""
    return json.dumps(plain(table), indent=1) + "\n"


def to_csv(table: Table) -> str:
    """A table as CSV: undefined values are empty, and the last column has their reasons."""
    out = io.StringIO()
    if table:
        writer = csv.DictWriter(out, [*table[0], "undefined"], lineterminator="\n")
        writer.writeheader()
        for row in plain(table):
            columns: dict[str, list[str]] = {}
            for name, reason in row["undefined"].items():
                columns.setdefault(reason, []).append(name)
            reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in columns.items())
            cells = {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
            writer.writerow(cells | {"undefined": reasons})
    return out.getvalue()


def write_csv(path: str | os.PathLike[str], table: Table) -> None:
    """Write a table as CSV, whole or not at all."""
    atomic.write(Path(path), to_csv(table).encode())


def write_json(path: str | os.PathLike[str], table: Table) -> None:
    """Write a table as JSON, whole or not at all."""
    atomic.write(Path(path), to_json(table).encode())


def _runs(records: Iterable[Record], others: Iterable[Record] | None) -> tuple[list[Run], list[Run]]:
    """The runs that are shown, in the order of the table, and those that they are held against."""
    chosen = [Run.of(record) for record in records]
    return sorted(chosen, key=Run.sorting), chosen if others is None else [Run.of(record) for record in others]


def _attempt(find: Callable[[], Value]) -> Value:
    try:
        return find()
    except UndefinedMetric as error:
        return Undefined(str(error))


def _what(run: Run) -> Row:
    return {
        "stream": run.stream,
        "backbone": run.backbone,
        "network": text(run.network),
        "fraction": run.fraction,
        "tasks": run.tasks,
        "epochs": Undefined("the record does not say") if run.epochs is None else run.epochs,
        "method": run.method,
        "settings": text(run.settings),
        "recipe": text(run.recipe),
    }


# ---- one run ------------------------------------------------------------------------------------------------------


def _row_of_run(run: Run, singles: Singles) -> Row:
    return _what(run) | {"order": run.order, "seed": run.seed} | _measures(run, singles)


def _measures(run: Run, singles: Singles) -> Row:
    """All that is measured on one run."""
    matrix = metrics.accuracy_matrix(run.rows)
    measured: Row = {
        "accuracy": _attempt(lambda: metrics.average_accuracy(matrix)),
        "bwt": _attempt(lambda: _transfer(run, matrix)),
    }
    measured |= {f"growth_{name}": _attempt(lambda name=name: _growth(run, name, singles)) for name in SIZES}  # type: ignore[misc]
    return measured | {
        "later_bytes": _attempt(lambda: _later_bytes(run)),
        "seconds": _attempt(lambda: sum(_column(run, "seconds", "how long tasks took"))),
        "peak_bytes": _attempt(lambda: metrics.peak_memory(_column(run, "peak_bytes", "the peak of memory")).highest),
    }


def _transfer(run: Run, matrix: NDArray[np.float64]) -> float:
    if run.tasks > 1 and np.isnan(matrix.diagonal()[:-1]).all():
        raise UndefinedMetric("all tasks are learned at once, and none of them is measured before the last has come")
    return metrics.backward_transfer(matrix)


def _column(run: Run, name: str, meaning: str) -> list[float]:
    values = [run.number(position, name) for position in range(run.tasks)]
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        raise UndefinedMetric(f"the record does not say {meaning}")
    return found


def _growth(run: Run, name: str, singles: Singles) -> float:
    """Beyond a network for one task: that of `stl` on this stream, or else what the run itself stored after its first.

    The two are one for methods that begin with a plain network; others begin with less than one, or with more.
    """
    final, base = run.number(-1, name), run.number(0, name)
    if final is None:
        raise UndefinedMetric(f"the record does not say {SIZES[name]}")
    known = [(one.first != run.first, size) for one in singles.get(_network(run), ()) if (size := one.number(0, name))]
    if not known and (base is None or (run.tasks > 1 and run.rows[0]["test"] == [None])):
        raise UndefinedMetric(f"no record of {run.stream} with {run.backbone} says {SIZES[name]} of one task of stl")
    return metrics.growth([min(known)[1] if known else base or 0.0, final])


def _network(run: Run) -> tuple[str, str, str]:
    return run.stream, run.backbone, text(run.network)


def _singles(known: list[Run]) -> Singles:
    """The runs of `stl`, by stream and network."""
    found: Singles = {}
    for run in known:
        if run.method == "stl":
            found.setdefault(_network(run), []).append(run)
    return found


def _later_bytes(run: Run) -> float:
    if run.tasks < 2:
        raise UndefinedMetric("there is no later task")
    first, final = run.number(0, "bytes"), run.number(-1, "bytes")
    if first is None or final is None:
        raise UndefinedMetric("the record does not say how many bytes were stored after the first task and the last")
    return (final - first) / (run.tasks - 1)


# ---- many runs ----------------------------------------------------------------------------------------------------


def _row_of_group(group: list[Run], known: list[Run], singles: Singles, units: Mapping[tuple[Any, ...], float]) -> Row:
    orders = list(dict.fromkeys(run.order for run in group))
    seeds = sorted({run.seed for run in group})
    rows = [_measures(run, singles) for run in group]
    every = _every_order(group, orders)
    row = _what(group[0]) | {
        "orders": f"all {group[0].tasks}!" if every else " ".join(orders),
        "every_order": every,
        "seeds": " ".join(map(str, seeds)),
        "runs": len(group),
    }
    row |= _accuracy(group, orders, rows, every)
    row |= {"bwt": _mean("bwt", rows)} | _disparity(group, orders, known, every)
    row |= {name: _mean(name, rows) for name in (*(f"growth_{size}" for size in SIZES), "later_bytes", "seconds")}
    return row | _times(group, units) | {"peak_bytes": _highest("peak_bytes", rows)}


def _every_order(group: list[Run], orders: list[str]) -> bool:
    """Whether the runs tell the result of every order there is."""
    identities = {row["identity"] for row in group[0].rows}
    return (
        group[0].shows_first
        and {run.first for run in group} == identities
        and len(orders) == len(identities) > 1
        and all({row["identity"] for row in run.rows} == identities for run in group)
        and bool(_common_seeds(group, orders))
        and group[0].first_decides()
    )


def _common_seeds(group: list[Run], orders: Sequence[str]) -> list[int]:
    """The seeds that were run under every order."""
    done = {(run.order, run.seed) for run in group}
    return sorted(seed for seed in {run.seed for run in group} if all((order, seed) in done for order in orders))


def _accuracy(group: list[Run], orders: list[str], rows: list[Row], every: bool) -> Row:
    """The mean, its spread, and the least and greatest of the orders."""
    names = ("spread_over", "error_paper", "error_usual", "lower", "upper")
    values = _numbers("accuracy", rows)
    if isinstance(values, Undefined):
        return dict.fromkeys(("accuracy", *names, "lowest", "highest"), values)
    of = {(run.order, run.seed): value for run, value in zip(group, values, strict=True)}
    by_order = [metrics.mean([value for (name, _), value in of.items() if name == order]) for order in orders]
    by_seed = [metrics.mean([of[order, seed] for order in orders]) for seed in _common_seeds(group, orders)]
    over, units = ("seeds", by_seed) if len(by_seed) > 1 or every else ("orders", by_order)
    spread: Row = dict.fromkeys(names, Undefined("one run has no spread: it needs several seeds, or several orders"))
    if every:
        spread = dict.fromkeys(names, Undefined("all orders are there, and one seed has no spread: it needs several"))
    if len(units) > 1:
        errors = metrics.standard_error(units, "paper"), metrics.standard_error(units, "usual")
        spread = dict(zip(names, (over, *errors, *metrics.bootstrap(units)), strict=True))
    if every:
        exact = metrics.all_orders(_by_order(group, orders))
        return {"accuracy": exact.accuracy, **spread, "lowest": exact.lowest, "highest": exact.highest}
    return {"accuracy": metrics.mean(values), **spread, "lowest": min(by_order), "highest": max(by_order)}


def _disparity(group: list[Run], orders: list[str], known: list[Run], every: bool) -> Row:
    """Disparity between orders, and that of `stl` when nothing but its draws differs."""

    def found() -> tuple[float, float]:
        p = _by_order(group, orders)
        return metrics.all_orders(p)[1:3] if every else metrics.order_disparity(p)

    def floor() -> tuple[float, float]:
        wanted = {(run.order, run.seed) for run in group}
        redrawn = [run for run in known if run.method == "stl" and run.settings.get("redraw") is True]
        here = {(run.order, run.seed): run for run in redrawn if run.place == group[0].place}
        if not here:
            raise UndefinedMetric("stl with redraw=true was not run here")
        if lacking := sorted(wanted - set(here)):
            raise UndefinedMetric(
                f"stl with redraw=true was not run under {len(lacking)} of the {len(wanted)} orders and seeds; the "
                f"first is order {lacking[0][0]} with seed {lacking[0][1]}"
            )
        return metrics.order_disparity(_by_order([here[one] for one in sorted(wanted)], orders))

    return dict(zip(("mopd", "aopd", "stl_mopd", "stl_aopd"), (*_both(found), *_both(floor)), strict=True))


def _both(find: Callable[[], tuple[float, float]]) -> tuple[Value, Value]:
    try:
        return find()
    except UndefinedMetric as error:
        return Undefined(str(error)), Undefined(str(error))


def _by_order(group: list[Run], orders: list[str]) -> NDArray[np.float64]:
    """Accuracies p[o, t] by order and identity, averaged over the seeds that were run under every order."""
    if len(orders) < 2:
        raise UndefinedMetric("one order has no disparity: it needs at least two")
    seeds = _common_seeds(group, orders)
    if not seeds:
        raise UndefinedMetric("no seed was run under every order")
    final = {(run.order, run.seed): metrics.by_identity(run.rows) for run in group}
    if len({tuple(accuracies) for accuracies in final.values()}) > 1:
        raise UndefinedMetric("the orders do not have the same tasks: learn whole streams to compare orders")
    p = [np.mean([list(final[order, seed].values()) for seed in seeds], axis=0) for order in orders]
    return np.stack(p)


def machine(run: Run) -> tuple[Any, ...]:
    """What has to be equal for times to be compared."""
    return run.stream, run.backbone, text(run.network), run.fraction, run.epochs, run.machine


def time_units(known: Iterable[Run]) -> dict[tuple[Any, ...], float]:
    """The seconds of the first task of `stl`, by what has to be equal."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for run in known:
        if run.method == "stl" and (seconds := run.number(0, "seconds")):
            found.setdefault(machine(run), []).append(seconds)
    return {machine: metrics.mean(seconds) for machine, seconds in found.items()}


def _times(group: list[Run], units: Mapping[tuple[Any, ...], float]) -> Row:
    """Seconds of all tasks and of a later one, as multiples of those of the first task of `stl` on the same machine."""

    def ratios(run: Run) -> metrics.Times:
        if machine(run) not in units:
            raise UndefinedMetric("no record of stl with as many epochs from such a machine says how long a task took")
        return metrics.time_ratios(_column(run, "seconds", "how long tasks took"), units[machine(run)])

    def later(run: Run) -> float:
        if run.tasks < 2:
            raise UndefinedMetric("there is no later task")
        return metrics.mean(ratios(run).per_task[1:])

    return {
        "time_ratio": _attempt(lambda: metrics.mean([ratios(run).cumulative[-1] for run in group])),
        "later_time_ratio": _attempt(lambda: metrics.mean([later(run) for run in group])),
    }


def _numbers(name: str, rows: Sequence[Mapping[str, Value]]) -> list[float] | Undefined:
    """A column of numbers, or why there is none: a mean over what happens to be there is a different number."""
    reasons = [value.reason for row in rows if isinstance(value := row[name], Undefined)]
    if reasons:
        return Undefined(reasons[0] if len(reasons) == len(rows) else f"in {len(reasons)} of the runs: {reasons[0]}")
    return [float(row[name]) for row in rows]  # type: ignore[arg-type]


def _mean(name: str, rows: Sequence[Mapping[str, Value]]) -> Value:
    values = _numbers(name, rows)
    return values if isinstance(values, Undefined) else metrics.mean(values)


def _highest(name: str, rows: Sequence[Mapping[str, Value]]) -> Value:
    values = _numbers(name, rows)
    return values if isinstance(values, Undefined) else int(max(values))
