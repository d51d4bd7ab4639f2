"""Tables that answer one question each: what an order, a size, a setting or a part of the method is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from halrp.lab.records import aggregate, metrics
from halrp.lab.records.aggregate import Record, Row
from halrp.lab.report.documents.markdown import loaded, named, number, paper_of, summary, table, value, whole

POSITIONS = (1, 2, 5, 10, 20, 50, 100)
"""Tasks at which the course of a stream is shown."""


def sizes_table(*folders: Path, methods: Sequence[str]) -> str:
    """Runs of order A by what a further task adds in bytes."""
    rows = [row for row in aggregate.runs_table(_records(folders)) if row["order"] == "A" and row["method"] in methods]
    head = ("data", "run", "bytes per task", "growth, all numbers", "growth, paper's count", "accuracy %", "BWT")
    lines = [
        (
            f"{100 * value(row['fraction']):g} %",
            named(row),
            whole(row["later_bytes"]),
            number(row["growth_parameters"], 3),
            number(row["growth_counted"], 3),
            number(row["accuracy"], 2),
            number(row["bwt"], 2),
        )
        for row in sorted(rows, key=lambda row: [value(row[key]) for key in ("fraction", "later_bytes")])
    ]
    return table(head, lines)


def orders_table(folder: Path) -> str:
    """The exact result of all orders, for methods that were run with every task first."""
    rows = [row for row in summary(folder) if row["every_order"] or str(row["orders"]).startswith("first-")]
    head = ("method", "orders", "accuracy %", "lowest", "highest", "MOPD", "AOPD", "stl's MOPD", "stl's AOPD")
    keys = ("accuracy", "lowest", "highest", "mopd", "aopd", "stl_mopd", "stl_aopd")
    lines = [
        (f"`{row['method']}`", _orders(row), *(number(row[key], 2) for key in keys))
        for row in sorted(rows, key=lambda row: str(row["method"]))
    ]
    return table(head, lines)


def settings_table(*folders: Path, varied: Mapping[str, Sequence[str]], held: Mapping[str, object] = {}) -> str:
    """Order A with each value of the settings that a method is asked for; the best on validation data is bold.

    The first folder says on which streams. Runs whose settings do not have the values of `held` are left out.
    """
    streams = {record["cell"]["stream"] for record in loaded(folders[0])}
    records = [record for record in _records(folders) if record["cell"]["stream"] in streams]
    found = []
    for record in records:
        method, settings = record["cell"]["method"], record["resolved"]["settings"]
        if method in varied and _of_order_a(record, held):
            told = *((name, settings[name]) for name in varied[method]), *record["cell"].get("network", {}).items()
            validation = record["rows"][-1]["val"]
            row = aggregate.runs_table([record], records)[0]
            found.append((method, told, 100 * sum(validation) / len(validation), row))
    best = {method: max(val for other, _, val, _ in found if other == method) for method, *_ in found}
    several = {method for method in best if sum(other == method for other, *_ in found) > 1}
    lines = [
        (
            f"`{method}`",
            ", ".join(f"{name}={told:g}" if isinstance(told, float) else f"{name}={told}" for name, told in settings),
            f"**{val:.2f}**" if val == best[method] and method in several else f"{val:.2f}",
            number(row["accuracy"], 2),
            number(row["bwt"], 2),
            number(row["growth_counted"], 3),
        )
        for method, settings, val, row in sorted(found, key=lambda one: (list(varied).index(one[0]), one[1]))
    ]
    return table(("method", "setting", "validation %", "test %", "BWT", "growth"), lines)


def grid_table(*folders: Path, method: str, down: str, across: str, held: Mapping[str, object]) -> str:
    """Test accuracy of order A over two settings of a method, where its other settings have the values of `held`."""
    found: dict[tuple[float, float], float] = {}
    for record in _records(folders):
        settings = record["resolved"]["settings"]
        if record["cell"]["method"] == method and _of_order_a(record, held):
            found[settings[down], settings[across]] = value(aggregate.runs_table([record])[0]["accuracy"])
    rows, columns = (sorted({key[i] for key in found}) for i in (0, 1))
    lines = [
        (f"{down}={row:g}", *(f"{found[row, column]:.2f}" if (row, column) in found else "" for column in columns))
        for row in rows
    ]
    return table((f"`{method}`", *(f"{across}={column:g}" for column in columns)), lines)


def strengths_table(*folders: Path, method: str, setting: str, held: Mapping[str, object]) -> str:
    """Order A of a method on every benchmark that was run with several values of a setting, the others being `held`."""
    found: dict[tuple[str, float], dict[float, Row]] = {}
    for record in _records(folders):
        if record["cell"]["method"] == method and _of_order_a(record, held):
            row = aggregate.runs_table([record])[0]
            place = str(row["stream"]), value(row["fraction"])
            found.setdefault(place, {})[record["resolved"]["settings"][setting]] = row
    lines = [
        (
            f"`{stream}`",
            f"{100 * fraction:g} %",
            f"{setting}={strength:g}",
            number(row["accuracy"], 2),
            number(row["bwt"], 2),
            number(row["growth_counted"], 3),
            paper_of(row).accuracy,
        )
        for (stream, fraction), by in sorted(found.items())
        if len(by) > 1
        for strength, row in sorted(by.items())
    ]
    return table(("stream", "data", f"`{method}`", "test %", "BWT", "growth", "paper"), lines)


def course_table(folder: Path) -> str:
    """How a stream goes on: accuracy, growth, time and memory at some of its tasks, in the longest runs there are."""
    longest = max(len(record["rows"]) for record in loaded(folder))
    records = [record for record in loaded(folder) if len(record["rows"]) == longest]
    seen = [place for place in POSITIONS if place <= longest]
    lines = []
    for record in sorted(records, key=lambda record: str(record["cell"]["method"])):
        rows = record["rows"]
        accuracy = [metrics.average_accuracy(metrics.accuracy_matrix(rows[:place])) for place in seen]
        told: dict[str, list[str]] = {
            "accuracy so far, %": [f"{one:.2f}" for one in accuracy],
            "growth, paper's count": [f"{rows[place - 1]['counted'] / rows[0]['counted'] - 1:.3f}" for place in seen],
            "MB stored": [f"{rows[place - 1]['bytes'] / 1e6:.2f}" for place in seen],
            "seconds of the task": [f"{rows[place - 1]['seconds']:.1f}" for place in seen],
            "peak of memory, MB": [f"{rows[place - 1]['peak_bytes'] / 1e6:.0f}" for place in seen],
        }
        for what, values in told.items():
            lines.append((f"`{record['cell']['method']}`", what, *values))
    return table(("method", "", *(f"task {place}" for place in seen)), lines)


def statistics_table(*folders: Path) -> str:
    """Accuracies when norms use running statistics, as everywhere else, and when they use those of the batch."""
    rows = [row for row in aggregate.runs_table(_records(folders)) if row["order"] == "A"]
    found: dict[tuple[str, float, str], dict[str, Row]] = {}
    for row in rows:
        key = str(row["stream"]), value(row["fraction"]), str(row["method"])
        found.setdefault(key, {})[str(row["network"])] = row
    lines = [
        (
            f"`{stream}`",
            f"`{method}`",
            number(by[""]["accuracy"], 2),
            number(by["statistics=batch"]["accuracy"], 2),
            paper_of(by[""]).accuracy,
        )
        for (stream, _, method), by in found.items()
        if "statistics=batch" in by and "" in by
    ]
    return table(("stream", "method", "running statistics %", "those of the batch %", "paper"), lines)


def _records(folders: Iterable[Path]) -> list[Record]:
    return [record for folder in folders for record in loaded(folder)]


def _of_order_a(record: Record, held: Mapping[str, object]) -> bool:
    """Whether a run is of order A and its settings have the values of `held`."""
    settings = record["resolved"]["settings"]
    return record["cell"].get("order", "A") == "A" and all(settings[name] == wanted for name, wanted in held.items())


def _orders(row: Row) -> str:
    return str(row["orders"]) if row["every_order"] else f"{len(str(row['orders']).split())} first tasks"
