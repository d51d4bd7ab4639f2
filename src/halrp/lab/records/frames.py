"""Records as two tidy frames: `runs` has one row per run, `steps` one row per run and task.

Every number is computed from the raw rows of records by `halrp.lab.records.metrics`. A number without a value is NaN,
and the column `undefined` has the reason, by column; nothing is guessed. Sizes and times are relative to single-task
networks (`stl`) among the same records, so measure all records at once and select rows afterwards:

    everything = runs(load(["results"]).records)
    summarise(everything[everything.method == "ewc"], among=everything)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from halrp.checks import is_number
from halrp.lab.records import metrics
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.records.schema import Record, Setup, as_text
from halrp.text import as_json

Frame: TypeAlias = pd.DataFrame

SETUP = [*Setup._fields]
"""Columns that runs have to share to be compared: see `Setup`."""
GROUP = [*SETUP, "method", "settings", "recipe", "first_order"]
"""Columns that runs have to share to be repetitions of each other, under other orders and seeds."""
SIZES = {"bytes": "the stored bytes", "parameters": "the stored parameters", "counted": "the paper's count"}
METRICS = [
    "accuracy", "bwt", *(f"growth_{size}" for size in SIZES), "later_bytes", "seconds", "time_ratio",
    "later_time_ratio", "peak_bytes",
]  # fmt: skip
INTERNAL = ["first_order", "record", "validation"]
"""Columns for further computation, which files and screens do not show."""
WHOLE = ("tasks", "epochs", "seed", "runs", "peak_bytes")
"""Columns of whole numbers."""


def runs(records: Iterable[Record]) -> Frame:
    """One row per run, in the order of tables: its configuration and its metrics.

    `accuracy`, `validation` and `bwt` (backward transfer) are in %, `growth_*` is a share of one single-task network,
    `later_bytes` is what each task after the first adds, `time_ratio` is in multiples of the first task of `stl`.
    """
    ordered = sorted(records, key=Record.sort_key)
    references = _References(ordered)
    frame = pd.DataFrame([_run(record, references) for record in ordered], columns=[*_RUN_COLUMNS])
    frame["epochs"] = pd.Series([record.epochs for record in ordered], dtype=object)
    return frame


def steps(runs: Frame) -> Frame:
    """One row per run and position: `run` is the index in `runs`; sizes, seconds and facts are those of the raw row.

    `test` and `val` are the accuracies in % of all tasks so far, NaN where one was not measured, and `average` is the
    mean of `test`. `growth_*` is that of `runs` up to this position, `time_ratio` that of this task, and `time_so_far`
    that of all tasks so far; all of them are NaN where that of the run is.
    """
    rows = []
    for index, record in runs["record"].items():
        matrix = metrics.accuracy_matrix(record.rows)
        for position, row in enumerate(record.rows):
            test = matrix[position, : position + 1]
            label = f"{position + 1} {row.get('task') or row['identity']}"
            measured = {"test": test, "val": _percent(row.get("val")), "average": float(test.mean())}
            rows.append({**row, "run": index, "position": position, "label": label, **measured})
    frame = pd.DataFrame(rows, columns=None if rows else ["run", "position", "label", "test", "average"])
    for name in (*SIZES, "seconds", "peak_bytes"):
        frame[name] = pd.to_numeric(frame[name]) if name in frame else np.nan
    for size in SIZES:
        growth = frame[size] / frame["run"].map(runs[f"single_{size}"]) - 1
        frame[f"growth_{size}"] = growth.where(frame["run"].map(runs[f"growth_{size}"]).notna())
    ratio = frame["seconds"] / frame["run"].map(runs["time_unit"])
    frame["time_ratio"] = ratio.where(frame["run"].map(runs["time_ratio"]).notna())
    frame["time_so_far"] = frame.groupby("run")["time_ratio"].cumsum()
    return frame


def plain(frame: Frame) -> list[dict[str, Any]]:
    """The rows as JSON values: undefined ones are null, and `undefined` has their reasons by column."""
    shown = [name for name in frame.columns if name not in INTERNAL and not name.startswith(("single_", "time_unit"))]
    return [{name: _plain(name, value) for name, value in row.items()} for row in frame[shown].to_dict("records")]


def _plain(name: str, value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return int(value) if name in WHOLE else value


def to_json(frame: Frame) -> str:
    """The rows as JSON: see `plain`."""
    return as_json(plain(frame)) + "\n"


# ---- one run ------------------------------------------------------------------------------------------------------


class _References:
    """Runs of `stl`, the single-task networks that sizes and times are relative to."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.singles: dict[tuple[Any, ...], list[Record]] = {}
        seconds: dict[tuple[Any, ...], list[float]] = {}
        for record in records:
            if record.method == "stl":
                self.singles.setdefault(_network(record), []).append(record)
                if spent := record.number(0, "seconds"):
                    seconds.setdefault(_machine(record), []).append(spent)
        self.seconds = {key: metrics.mean(spent) for key, spent in seconds.items()}

    def size(self, record: Record, name: str) -> float:
        """The size of a network for one task: that of `stl`, or else what the run itself stored after its first task.

        Of several, one that learned the same first task. The two agree for methods that begin with a plain network.
        """
        first = record.rows[0]["identity"]
        singles = self.singles.get(_network(record), ())
        known = [(stl.rows[0]["identity"] != first, size) for stl in singles if (size := stl.number(0, name))]
        if known:
            return min(known)[1]
        stored = record.number(0, name)
        if stored is None or (record.tasks > 1 and record.rows[0]["test"] == [None]):
            where = f"{record.stream} with {record.backbone}"
            raise UndefinedMetric(f"no record of stl on {where} has {SIZES[name]} of one task")
        return stored


def _network(record: Record) -> tuple[Any, ...]:
    return record.stream, record.backbone, as_text(record.network)


def _machine(record: Record) -> tuple[Any, ...]:
    """What has to be equal for times to be compared."""
    environment = tuple(record.environment.get(key) for key in ("machine", "threads"))
    return *_network(record), record.fraction, record.epochs, environment


_RUN_COLUMNS = (
    *SETUP, "method", "settings", "recipe", "order", "seed", *METRICS, "undefined",
    *INTERNAL, *(f"single_{size}" for size in SIZES), "time_unit",
)  # fmt: skip


def _run(record: Record, references: _References) -> dict[str, Any]:
    undefined = {} if record.epochs is not None else {"epochs": "the record lacks them"}
    matrix = metrics.accuracy_matrix(record.rows)

    def value(name: str, compute: Callable[[], float]) -> float:
        try:
            return compute()
        except UndefinedMetric as error:
            undefined[name] = str(error)
            return math.nan

    measured = {
        "accuracy": value("accuracy", lambda: metrics.average_accuracy(matrix)),
        "bwt": value("bwt", lambda: _transfer(matrix)),
        "later_bytes": value("later_bytes", lambda: _later_bytes(record)),
        "seconds": value("seconds", lambda: sum(_column(record, "seconds", "training times"))),
        "peak_bytes": value("peak_bytes", lambda: max(_column(record, "peak_bytes", "the peak memory"))),
        "time_unit": references.seconds.get(_machine(record), math.nan),
        "time_ratio": value("time_ratio", lambda: _times(record, references).cumulative[-1]),
        "later_time_ratio": value("later_time_ratio", lambda: _later_time(record, references)),
    }
    for size in SIZES:
        single = value(f"growth_{size}", lambda size=size: references.size(record, size))  # type: ignore[misc]
        growth = value(f"growth_{size}", lambda size=size, single=single: _growth(record, size, single))  # type: ignore[misc]
        measured |= {f"single_{size}": single, f"growth_{size}": growth}
    return {
        **record.setup._asdict(),
        **{name: getattr(record, name) for name in ("method", "order", "seed", "first_order")},
        "settings": as_text(record.settings),
        "recipe": as_text(record.recipe),
        **measured,
        "undefined": undefined,
        "record": record,
        "validation": _validation(record),
    }


def _growth(record: Record, size: str, single: float) -> float:
    final = record.number(-1, size)
    if final is None:
        raise UndefinedMetric(f"the record lacks {SIZES[size]}")
    return math.nan if math.isnan(single) else metrics.growth([single, final])


def _transfer(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    if len(matrix) > 1 and np.isnan(matrix.diagonal()[:-1]).all():
        raise UndefinedMetric("all tasks are learned at once, and none of them is measured before the last one")
    return metrics.backward_transfer(matrix)


def _column(record: Record, name: str, meaning: str) -> list[float]:
    values = [record.number(position, name) for position in range(record.tasks)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        raise UndefinedMetric(f"the record lacks {meaning}")
    return known


def _later_bytes(record: Record) -> float:
    if record.tasks < 2:
        raise UndefinedMetric("there is no later task")
    first, final = record.number(0, "bytes"), record.number(-1, "bytes")
    if first is None or final is None:
        raise UndefinedMetric("the record lacks the stored bytes after the first task or after the last")
    return (final - first) / (record.tasks - 1)


def _times(record: Record, references: _References) -> metrics.Times:
    """Seconds as multiples of those of the first task of `stl` on the same kind of machine."""
    unit = references.seconds.get(_machine(record))
    if unit is None:
        raise UndefinedMetric("no record of stl with as many epochs on such a machine has training times")
    return metrics.time_ratios(_column(record, "seconds", "training times"), unit)


def _later_time(record: Record, references: _References) -> float:
    if record.tasks < 2:
        raise UndefinedMetric("there is no later task")
    return metrics.mean(_times(record, references).per_task[1:])


def _validation(record: Record) -> float:
    """The mean final accuracy in % on validation data; NaN if the record lacks it."""
    shares = _percent(record.rows[-1].get("val"))
    return sum(shares) / len(shares) if shares else math.nan


def _percent(shares: Any) -> list[float]:
    known = shares if isinstance(shares, list) else []
    return [100 * share if is_number(share) else math.nan for share in known]


def reasons(undefined: Mapping[str, str]) -> str:
    """Why values of a row are undefined, as text: each reason once, after the columns it holds for."""
    columns: dict[str, list[str]] = {}
    for name, reason in undefined.items():
        columns.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in columns.items())
