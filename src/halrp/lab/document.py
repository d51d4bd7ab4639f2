"""`python -m halrp.lab.document`: write the tables of `docs/results.md` from the raw records under `results/`.

A table stands between two comments that name it, `<!-- begin NAME -->` and `<!-- end NAME -->`. Everything between
them is written by this module and nothing by hand; `--check` says whether the document is what the records say.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from halrp.lab import results
from halrp.lab.data import facts
from halrp.lab.results import Row, Undefined

PAPER_NAMES = {
    "stl": "STL",
    "mtl": "MTL",
    "l2": "L2",
    "ewc": "EWC",
    "bn": "BN",
    "be": "BE",
    "apd": "APD",
    "apdfix": "APDfix",
    "ibpwf": "IBPWF",
    "gpm": "GPM",
    "wsn": "WSN",
    "bmkp": "BMKP",
    "clr": "CLR",
    "prd": "PRD",
    "halrp-budget": "HALRP",
    "halrp-official": "HALRP",
    "halrp-paper": "HALRP",
}
"""What our methods are called in the paper's tables."""

RELATIONS = (
    ("stl", "halrp-official"),
    ("stl", "halrp-budget"),
    ("halrp-official", "be"),
    ("halrp-budget", "be"),
    ("be", "bn"),
    ("bn", "l2"),
    ("ewc", "l2"),
    ("l2", "finetune"),
    ("be", "finetune"),
)
"""Pairs of methods of which the first should be more accurate; from the paper's tables at 100 % of the data."""


def paper_of(stream: str, fraction: float, method: str) -> dict[str, Any] | None:
    """What the paper's tables say about a method on a stream with LeNet."""
    name = PAPER_NAMES.get(method)
    for row in facts("paper_results")["records"]:
        same = row["dataset"] == stream.replace("-", "_") and row["backbone"] == "LeNet"
        if same and row.get("data_fraction", 1.0) == fraction and row["method"].casefold() == (name or "").casefold():
            found: dict[str, Any] = row
            return found
    return None


def methods_table(folder: Path, stream: str, fraction: float) -> str:
    """Every method's accuracy, forgetting, disparity, size and time, beside the paper's accuracy and disparity."""
    rows = [row for row in _summary(folder) if row["stream"] == stream and row["fraction"] == fraction]
    head = ("method", "accuracy % ±", "paper", "difference", "BWT", "MOPD / AOPD", "paper's", "growth", "time", "runs")
    lines = []
    for row in sorted(rows, key=lambda row: -_value(row["accuracy"])):
        paper = paper_of(stream, fraction, str(row["method"]))
        gap = _value(row["accuracy"]) - (paper["accuracy"] if paper else math.nan)
        lines.append(
            (
                f"`{row['method']}`" + (f" ({row['settings']})" if row["settings"] else ""),
                f"{_number(row['accuracy'], 2)} ± {_number(row['error_usual'], 2)}",
                f"{paper['accuracy']:.2f}" if paper else "",
                "" if math.isnan(gap) else f"{gap:+.2f}",
                _number(row["bwt"], 2),
                f"{_number(row['mopd'], 1)} / {_number(row['aopd'], 1)}",
                f"{paper['mopd']:.1f} / {paper['aopd']:.1f}" if paper and paper.get("mopd") else "",
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
        paper = paper_of(str(row["stream"]), _value(row["fraction"]), str(row["method"]))
        lines.append(
            (
                f"{100 * _value(row['fraction']):g} %",
                f"`{row['method']}`" + (f" ({row['settings']})" if row["settings"] else ""),
                _number(row["accuracy"], 2),
                f"{paper['accuracy']:.2f}" if paper else "",
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


def penalties_table(folder: Path) -> str:
    """Validation and test accuracy for each strength of a penalty; the best on validation data is marked."""
    found = []
    for record in results.load([folder]).records:
        last = record["rows"][-1]
        strength = record["resolved"]["settings"]["strength"]
        share = [100 * sum(last[part]) / len(last[part]) for part in ("val", "test")]
        found.append((record["cell"]["method"], float(strength), *share))
    best = {method: max(val for m, _, val, _ in found if m == method) for method, *_ in found}
    lines = [
        (f"`{method}`", f"{strength:g}", f"**{val:.2f}**" if val == best[method] else f"{val:.2f}", f"{test:.2f}")
        for method, strength, val, test in sorted(found)
    ]
    return _table(("method", "strength λ", "validation %", "test %"), lines)


def relations_table(folder: Path, stream: str, fraction: float) -> str:
    """Which of the orderings that the paper's tables show hold in our runs, and by how much."""
    rows = [row for row in _summary(folder) if row["stream"] == stream and row["fraction"] == fraction]
    ours = {str(row["method"]): _value(row["accuracy"]) for row in rows}
    lines = []
    for better, worse in RELATIONS:
        if better not in ours or worse not in ours:
            continue
        printed = [paper_of(stream, fraction, name) for name in (better, worse)]
        theirs = ""
        if printed[0] and printed[1]:
            theirs = f"{printed[0]['accuracy'] - printed[1]['accuracy']:+.2f}"
        gap = ours[better] - ours[worse]
        lines.append((f"`{better}` > `{worse}`", f"{gap:+.2f}", theirs, "holds" if gap > 0 else "**fails**"))
    return _table(("relation", "ours", "paper", ""), lines)


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


def tables(root: Path) -> dict[str, Callable[[], str]]:
    """Every generated part of the document, by name."""
    split = root / "cifar100-split-5"
    return {
        "cifar100-split-5": lambda: methods_table(split, "cifar100-split", 0.05),
        "relations": lambda: relations_table(split, "cifar100-split", 0.05),
        "orders": lambda: orders_table(root / "cifar100-split-orders"),
        "sizes": lambda: sizes_table(root / "cifar100-split"),
        "batches": lambda: ratios_table(root / "benchmarks" / "batches.json", "batches of 128 images"),
        "overhead": lambda: ratios_table(root / "benchmarks" / "lab_overhead.json", "three tasks, LeNet"),
        "decoding": lambda: decoding_table(root / "benchmarks" / "decode.json"),
        "penalties": lambda: penalties_table(root / "penalties-cifar100-split"),
    }


def filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A document with every part between its comments written anew."""

    def write(found: re.Match[str]) -> str:
        return f"{found[1]}\n{parts[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- begin ([\w-]+) -->)\n.*?(<!-- end \2 -->)", write, text, flags=re.DOTALL)


def main(arguments: list[str] | None = None) -> None:
    """Write the document, or check it."""
    parser = argparse.ArgumentParser(prog="python -m halrp.lab.document", description=__doc__.partition("\n")[0])
    parser.add_argument("--document", type=Path, default=Path("docs/results.md"))
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder of all records")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the document is stale")
    options = parser.parse_args(arguments)
    old = options.document.read_text("utf-8")
    new = filled(old, tables(options.results))
    if new == old:
        print(f"{options.document} is what the records say")
    elif options.check:
        sys.exit(f"{options.document} is stale; run: python -m halrp.lab.document")
    else:
        options.document.write_text(new, "utf-8")
        print(f"wrote {options.document}")


def _summary(folder: Path) -> list[Row]:
    return results.summary(results.load([folder]).records)


def _orders(row: Row) -> str:
    return str(row["orders"]) if row["every_order"] else f"{len(str(row['orders']).split())} first tasks"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _value(value: Any) -> float:
    return math.nan if isinstance(value, Undefined) else float(value)


def _number(value: Any, digits: int) -> str:
    return "–" if isinstance(value, Undefined) else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
