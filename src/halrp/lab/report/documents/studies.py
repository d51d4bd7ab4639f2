"""Tables that answer one question each: what an order, a size, a setting or a part of the method is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from halrp.lab.records import frames
from halrp.lab.records.schema import Record
from halrp.lab.report.documents.cells import (
    BWT,
    GROWTH,
    LATER_BYTES,
    TEST,
    described,
    groups,
    markdown,
    records,
    records_of,
    trained_by,
)
from halrp.lab.report.table import Column, Markdown

POSITIONS = (1, 2, 5, 10, 20, 50, 100)
"""Tasks at which the progress over a stream is shown."""
METHOD = Column("method", "method")
STREAM = Column("stream", "stream")
DATA = Column("data", "data")


def sizes_table(*folders: Path, methods: Sequence[str]) -> str:
    """Runs of order A by the bytes that a further task adds."""
    runs = frames.runs(records_of(folders))
    chosen = runs[(runs["order"] == "A") & runs["method"].isin(methods)]
    columns = (
        DATA,
        Column("run", "run"),
        replace(LATER_BYTES, title="bytes per task"),
        Column("growth_parameters", "growth, all numbers", 3),
        replace(GROWTH, title="growth, paper's count"),
        Column("accuracy", "accuracy (%)", 2),
        BWT,
    )
    ordered = chosen.sort_values(["fraction", "later_bytes"], kind="stable")
    return markdown(columns, map(described, ordered.to_dict("records")))


def orders_table(folder: Path) -> str:
    """The exact result of all orders, for methods that were run with every task first."""
    rows = groups(folder)
    rows = rows[rows["first_order"].astype(bool)].sort_values("method", kind="stable").to_dict("records")
    titles = {
        "accuracy": "accuracy (%)", "lowest": "lowest", "highest": "highest", "mopd": "MOPD", "aopd": "AOPD",
        "stl_mopd": "stl's MOPD", "stl_aopd": "stl's AOPD",
    }  # fmt: skip
    columns = (METHOD, Column("orders", "orders"), *(Column(key, title, 2) for key, title in titles.items()))
    return markdown(columns, [described(row) | {"orders": _orders(row)} for row in rows])


def settings_table(*folders: Path, varied: Mapping[str, Sequence[str]], fixed: Mapping[str, object] = {}) -> str:
    """Order A with each value of the settings that vary by method; the best on validation data is bold.

    The first folder decides on which streams. Runs whose settings do not have the values of `fixed` are left out, and
    so are those whose recipe is not the paper's.
    """
    streams = {record.stream for record in records(folders[0])}
    runs = frames.runs(record for record in records_of(folders) if record.stream in streams)
    rows = []
    for row in runs.to_dict("records"):
        record: Record = row["record"]
        if record.method in varied and _of_order_a(record, fixed) and not trained_by(record):
            values = [(name, record.values[name]) for name in varied[record.method]] + [*record.network.items()]
            rows.append(row | {"values": values})
    rows.sort(key=lambda row: ([*varied].index(row["method"]), row["values"]))
    by_method = {method: [row["validation"] for row in rows if row["method"] == method] for method in varied}
    columns = (METHOD, Column("setting", "setting"), Column("bold", "validation (%)", format=str), TEST, BWT, GROWTH)
    return markdown(columns, [described(row) | _setting(row, by_method[row["method"]]) for row in rows])


def _setting(row: Mapping[str, Any], validation: Sequence[float]) -> dict[str, str]:
    text = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in row["values"]
    )
    best = row["validation"] == max(validation) and len(validation) > 1
    return {"setting": text, "bold": Markdown(f"**{row['validation']:.2f}**" if best else f"{row['validation']:.2f}")}


def grid_table(*folders: Path, method: str, down: str, across: str, fixed: Mapping[str, object]) -> str:
    """Test accuracy of order A over two settings of a method, where its other settings have the values of `fixed`."""
    accuracies: dict[float, dict[str, Any]] = {}
    for row in _runs_of(method, folders, fixed):
        values = row["record"].values
        accuracies.setdefault(values[down], {})[f"{across}={values[across]:g}"] = row["accuracy"]
    names = sorted({name for row in accuracies.values() for name in row}, key=lambda name: float(name.split("=")[1]))
    columns = (Column("name", Markdown(f"`{method}`")), *(Column(name, name, format="{:.2f}".format) for name in names))
    rows = [{"name": f"{down}={value:g}", **accuracies[value]} for value in sorted(accuracies)]
    return markdown(columns, rows)


def strengths_table(*folders: Path, method: str, setting: str, fixed: Mapping[str, object]) -> str:
    """Order A of a method on each benchmark that was run with several values of a setting, the others being `fixed`."""
    benchmarks: dict[tuple[str, float], dict[float, dict[str, Any]]] = {}
    for row in _runs_of(method, folders, fixed):
        benchmarks.setdefault((row["stream"], row["fraction"]), {})[row["record"].values[setting]] = row
    columns = (STREAM, DATA, Column("setting", Markdown(f"`{method}`")), TEST, BWT, GROWTH, Column("paper", "paper"))
    rows = [
        described(row) | {"setting": f"{setting}={strength:g}"}
        for _, by_strength in sorted(benchmarks.items())
        if len(by_strength) > 1
        for strength, row in sorted(by_strength.items())
    ]
    return markdown(columns, rows)


def progress_table(folder: Path) -> str:
    """Accuracy, growth, time and memory at some tasks of a stream, in the longest runs there are."""
    longest = max(record.tasks for record in records(folder))
    runs = frames.runs(record for record in records(folder) if record.tasks == longest)
    steps = frames.steps(runs)
    positions = [position for position in POSITIONS if position <= longest]
    measures = {
        "accuracy so far (%)": ("average", 1.0, 2),
        "growth, paper's count": ("growth", 1.0, 3),
        "MB stored": ("bytes", 1e-6, 2),
        "seconds of the task": ("seconds", 1.0, 1),
        "peak memory, MB": ("peak_bytes", 1e-6, 0),
    }
    rows = []
    for index, run in runs.sort_values("method", kind="stable").iterrows():
        here = steps[steps["run"] == index].set_index("position")
        here = here.assign(growth=here["counted"] / here["counted"].iloc[0] - 1)
        for title, (key, scale, digits) in measures.items():
            values = {f"task {p}": f"{here[key][p - 1] * scale:.{digits}f}" for p in positions}
            rows.append({"method": Markdown(f"`{run['method']}`"), "measure": title, **values})
    columns = (METHOD, Column("measure", ""), *(Column(f"task {p}", f"task {p}", format=str) for p in positions))
    return markdown(columns, rows)


def statistics_table(*folders: Path) -> str:
    """Accuracies when norms use running statistics, as everywhere else, and when they use those of the batch."""
    runs = frames.runs(records_of(folders))
    by_run: dict[tuple[str, float, str], dict[str, dict[str, Any]]] = {}
    for row in runs[runs["order"] == "A"].to_dict("records"):
        by_run.setdefault((row["stream"], row["fraction"], row["method"]), {})[row["network"]] = row
    columns = (
        STREAM,
        METHOD,
        Column("accuracy", "running statistics (%)", 2),
        Column("batch", "those of the batch (%)", 2),
        Column("paper", "paper"),
    )
    rows = [
        described(networks[""]) | {"batch": networks["statistics=batch"]["accuracy"]}
        for networks in by_run.values()
        if {"", "statistics=batch"} <= set(networks)
    ]
    return markdown(columns, rows)


def _runs_of(method: str, folders: Sequence[Path], fixed: Mapping[str, object]) -> list[dict[str, Any]]:
    """The runs of a method under order A whose settings have the values of `fixed`."""
    chosen = [record for record in records_of(folders) if record.method == method and _of_order_a(record, fixed)]
    return [dict(row) for row in frames.runs(chosen).to_dict("records")]


def _of_order_a(record: Record, fixed: Mapping[str, object]) -> bool:
    return record.order == "A" and all(record.values[name] == value for name, value in fixed.items())


def _orders(row: Mapping[str, Any]) -> str:
    return str(row["orders"]) if row["every_order"] else f"{len(row['orders'].split())} first tasks"
