"""The tables of the documents, each a function of a folder of raw records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from halrp.lab import demo, results
from halrp.lab.report.paper import lookup
from halrp.lab.report.relations import relations
from halrp.lab.report.usual import chosen
from halrp.lab.results import Row, Undefined

BACKBONE = "lenet"
"""That of all runs which the documents show."""
VARIED = {
    "l2": ("strength",),
    "ewc": ("strength",),
    "apd": ("l1",),
    "apdfix": ("l1",),
    "wsn": ("share",),
    "iru": ("r1", "r2"),
}
"""By method, the settings that validation data were asked for."""
MEASURED = ("cifar100-split-5", "cifar100-split-25", "cifar100-superclass-5")
"""Folders of records, by the preset that made them."""


def main_table(folder: Path) -> str:
    """For the README: every method's accuracy beside the paper's, what is forgotten, and what is stored in bytes."""
    methods: dict[str, list[Row]] = {}
    for row in _summary(folder):
        methods.setdefault(str(row["method"]), []).append(row)
    rows = [chosen(some, lambda row: row) for some in methods.values()]
    lines = []
    for row in sorted(rows, key=lambda row: -_value(row["accuracy"])):
        paper = lookup(str(row["stream"]), BACKBONE, _value(row["fraction"]), str(row["method"]))
        lines.append(
            (
                f"`{row['method']}`",
                _with_error(row),
                f"{paper.accuracy:.2f}" if paper else "",
                "–" if isinstance(row["bwt"], Undefined) else f"{0.0 - _value(row['bwt']):.2f}",
                "–" if isinstance(row["later_bytes"], Undefined) else f"{row['later_bytes']:,.0f}",
                "–" if isinstance(row["growth_bytes"], Undefined) else f"{1 + _value(row['growth_bytes']):.2f}",
            )
        )
    head = ("method", "accuracy %", "paper", "forgotten, points", "bytes per further task", "all tasks, in networks")
    return _table(head, lines)


def demo_table(folder: Path) -> str:
    """The four runs of the demo."""
    records = {record["cell"]["method"]: record["rows"] for record in _records(folder)}
    return demo.markdown({name: records[name] for name in demo.LABELS})


def methods_table(folder: Path, stream: str, fraction: float) -> str:
    """Every method's accuracy, forgetting, disparity, size and time, beside the paper's accuracy and disparity."""
    rows = [row for row in _summary(folder) if row["stream"] == stream and row["fraction"] == fraction]
    head = ("method", "accuracy % ±", "paper", "difference", "BWT", "MOPD / AOPD", "paper's", "growth", "time", "runs")
    lines = []
    for row in sorted(rows, key=lambda row: -_value(row["accuracy"])):
        paper = lookup(stream, BACKBONE, fraction, str(row["method"]))
        gap = _value(row["accuracy"]) - (paper.accuracy if paper else math.nan)
        lines.append(
            (
                f"`{row['method']}`" + (f" ({row['settings']})" if row["settings"] else ""),
                _with_error(row),
                f"{paper.accuracy:.2f}" if paper else "",
                "" if math.isnan(gap) else f"{gap:+.2f}",
                _number(row["bwt"], 2),
                f"{_number(row['mopd'], 1)} / {_number(row['aopd'], 1)}",
                f"{paper.mopd:.1f} / {paper.aopd:.1f}" if paper and paper.mopd and paper.aopd else "",
                _number(row["growth_counted"], 3),
                _number(row["time_ratio"], 1),
                str(row["runs"]),
            )
        )
    return _table(head, lines)


def sizes_table(folder: Path) -> str:
    """Runs under other limits on their size: accuracy against what a further task adds."""
    rows = results.runs_table(results.load([folder]).records)
    head = (
        "data",
        "run",
        "accuracy %",
        "paper",
        "BWT",
        "growth, all numbers",
        "growth, paper's count",
        "bytes per task",
    )
    lines = []
    for row in sorted(rows, key=lambda row: (_value(row["fraction"]), str(row["method"]), str(row["settings"]))):
        paper = lookup(str(row["stream"]), BACKBONE, _value(row["fraction"]), str(row["method"]))
        lines.append(
            (
                f"{100 * _value(row['fraction']):g} %",
                f"`{row['method']}`" + (f" ({row['settings']})" if row["settings"] else ""),
                _number(row["accuracy"], 2),
                f"{paper.accuracy:.2f}" if paper else "",
                _number(row["bwt"], 2),
                _number(row["growth_parameters"], 3),
                _number(row["growth_counted"], 3),
                "–" if isinstance(row["later_bytes"], Undefined) else f"{row['later_bytes']:,.0f}",
            )
        )
    return _table(head, lines)


def orders_table(folder: Path) -> str:
    """The exact result of all orders, for methods that were run with every task first."""
    rows = [row for row in _summary(folder) if row["every_order"] or str(row["orders"]).startswith("first-")]
    head = ("method", "orders", "accuracy %", "lowest", "highest", "MOPD", "AOPD", "stl's MOPD", "stl's AOPD")
    keys = ("accuracy", "lowest", "highest", "mopd", "aopd", "stl_mopd", "stl_aopd")
    lines = [
        (f"`{row['method']}`", _orders(row), *(_number(row[key], 2) for key in keys))
        for row in sorted(rows, key=lambda row: str(row["method"]))
    ]
    return _table(head, lines)


def settings_table(*folders: Path) -> str:
    """Validation and test accuracy for each value of a setting; the best on validation data is marked."""
    found = []
    for record in (record for folder in folders for record in _records(folder)):
        method, settings = record["cell"]["method"], record["resolved"]["settings"]
        if method not in VARIED or record["cell"].get("order", "A") != "A":
            continue
        last = record["rows"][-1]
        share = [100 * sum(last[part]) / len(last[part]) for part in ("val", "test")]
        found.append((method, tuple((name, settings[name]) for name in VARIED[method]), *share))
    best = {method: max(val for m, _, val, _ in found if m == method) for method, *_ in found}
    lines = [
        (
            f"`{method}`",
            ", ".join(f"{name}={value:g}" for name, value in settings),
            f"**{val:.2f}**" if val == best[method] else f"{val:.2f}",
            f"{test:.2f}",
        )
        for method, settings, val, test in sorted(found)
    ]
    return _table(("method", "setting", "validation %", "test %"), lines)


def statistics_table(root: Path) -> str:
    """Accuracies when norms use running statistics, as everywhere else, and when they use those of the batch."""
    records = [record for name in ("statistics", *MEASURED) for record in _records(root / name)]
    rows = [row for row in results.runs_table(records) if row["order"] == "A"]
    found: dict[tuple[str, float, str], dict[str, float]] = {}
    for row in rows:
        key = str(row["stream"]), _value(row["fraction"]), str(row["method"])
        found.setdefault(key, {})[str(row["network"])] = _value(row["accuracy"])
    lines = []
    for (stream, fraction, method), by in found.items():
        if "statistics=batch" in by and "" in by:
            paper = lookup(stream, BACKBONE, fraction, method)
            shown = f"{paper.accuracy:.2f}" if paper else ""
            lines.append((f"`{stream}`", f"`{method}`", f"{by['']:.2f}", f"{by['statistics=batch']:.2f}", shown))
    return _table(("stream", "method", "running statistics %", "those of the batch %", "paper"), lines)


def orderings(folder: Path, stream: str, fraction: float) -> str:
    """How many of the orderings that the paper's table clearly shows hold in our runs, and which do not."""
    rows = relations(_records(folder), stream, BACKBONE, fraction).rows
    judged = [row for row in rows if row["holds"] is not None]
    failed = [row for row in judged if row["holds"] != "yes"]
    count = f"{len(judged) - len(failed)} of {len(judged)} hold."
    if not failed:
        return count
    lines = []
    for row in failed:
        ours, error = (math.nan if row[n] is None else float(row[n]) for n in ("ours", "ours_error"))  # type: ignore[arg-type]
        spread = "" if math.isnan(error) else f" ± {error:.2f}"
        lines.append((f"`{row['better']}` > `{row['worse']}`", f"{row['paper']:+.2f}", f"{ours:+.2f}{spread}"))
    return f"{count} Those that do not:\n\n" + _table(("the paper's ordering", "paper", "ours"), lines)


def method_table(root: Path, method: str) -> str:
    """All that was measured of one method, beside the paper."""
    head = (
        "stream", "data", "settings", "orders", "accuracy % ±", "paper", "difference", "BWT", "MOPD / AOPD",
        "growth", "bytes per task",
    )  # fmt: skip
    lines = []
    for name in MEASURED:
        for row in _summary(root / name):
            if row["method"] != method:
                continue
            paper = lookup(str(row["stream"]), BACKBONE, _value(row["fraction"]), method)
            gap = _value(row["accuracy"]) - (paper.accuracy if paper else math.nan)
            lines.append(
                (
                    f"`{row['stream']}`",
                    f"{100 * _value(row['fraction']):g} %",
                    str(row["settings"]),
                    str(row["orders"]).replace(" ", ""),
                    _with_error(row),
                    f"{paper.accuracy:.2f}" if paper else "",
                    "" if math.isnan(gap) else f"{gap:+.2f}",
                    _number(row["bwt"], 2),
                    f"{_number(row['mopd'], 1)} / {_number(row['aopd'], 1)}",
                    _number(row["growth_counted"], 3),
                    "–" if isinstance(row["later_bytes"], Undefined) else f"{row['later_bytes']:,.0f}",
                )
            )
    return _table(head, lines)


def times_table(path: Path) -> str:
    """Time per task as tasks accumulate: at some positions, and how much each further task adds."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    places = [p for p in (1, 2, 5, 10, 15, 20) if p <= len(rows[0]["beside"])]
    lines = []
    for row in sorted(rows, key=lambda row: -_slope(row["beside"])):
        ratios = row["beside"]
        first, last = np.mean(ratios[1:4]), np.mean(ratios[-3:])
        shown = [f"{ratios[p - 1]:.2f}" for p in places]
        lines.append((f"`{row['name']}`", *shown, f"{100 * _slope(ratios):+.1f}", f"{last / first:.2f}"))
    head = ("method", *(f"task {p}" for p in places), "each further task, % of stl's", "last three to tasks 2 – 4")
    return _table(head, lines)


def _slope(ratios: Sequence[float]) -> float:
    """By how much a ratio rises from task to task, least squares over all but the first."""
    return float(np.polyfit(np.arange(1, len(ratios)), np.asarray(ratios[1:]), 1)[0])


def ratios_table(path: Path, title: str) -> str:
    """The ratios of a benchmark with their quartiles."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    lines = [(row["name"], f"{row['ratio']:.2f}", f"{row['lower']:.2f} – {row['upper']:.2f}") for row in rows]
    return _table((title, "ratio", "quartiles"), lines)


def decoding_table(path: Path) -> str:
    """How long each data set takes from its stored form, and from the kept arrays."""
    rows = json.loads(path.read_text("utf-8"))["rows"]
    lines = [
        (
            f"`{row['name']}`",
            row["layout"],
            f"{row['images']:,}",
            f"{row['stored']:.1f} → {row['decoded']:.1f}",
            f"{row['first']:.2f}",
            f"{row['again']:.3f}",
            f"{row['through']:.3f}",
        )
        for row in rows
    ]
    return _table(("set", "layout", "images", "MB", "decoded s", "opened again s", "read through s"), lines)


@cache
def _loaded(folder: Path) -> results.Loaded:
    return results.load([folder])


def _records(folder: Path) -> list[results.Record]:
    return list(_loaded(folder).records)


def _summary(folder: Path) -> list[Row]:
    return results.summary(_records(folder))


def _with_error(row: Row) -> str:
    error = "" if isinstance(row["error_usual"], Undefined) else f" ± {_number(row['error_usual'], 2)}"
    return f"{_number(row['accuracy'], 2)}{error}"


def _orders(row: Row) -> str:
    return str(row["orders"]) if row["every_order"] else f"{len(str(row['orders']).split())} first tasks"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _value(value: Any) -> float:
    return math.nan if isinstance(value, Undefined) else float(value)


def _number(value: Any, digits: int) -> str:
    return "–" if isinstance(value, Undefined) else f"{value:.{digits}f}"
