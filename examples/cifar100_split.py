"""CIFAR100-Split with LeNet: the paper's main benchmark, a cell at a time, raw records kept.

    python examples/cifar100_split.py --data DIR --results results/cifar100-split          # every cell
    python examples/cifar100_split.py --data DIR --results results/cifar100-split --only stl --fractions 0.05
    python examples/cifar100_split.py --results results/cifar100-split --table             # the table, from records

Cells whose record exists are skipped, so an interrupted run goes on where it was. HALRP by budget is run at the growth
that the paper reports for nine later tasks (0.234 of the base) and at half of it; all numbers of a task count, biases
and batch-norm statistics included. The runs `small-…` and `half-…` bound the bytes of a task's file instead (100,000,
and the bytes of half the paper's growth) and differ in the precision of the factors.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halrp.lab import cells, metrics
from halrp.train import Progress

PAPER_GROWTH = 0.234
LATER_TASKS = 9
PAPER = {0.05: {"halrp": 45.09, "stl": 45.13}, 0.25: {"halrp": 58.94, "stl": 59.04}}
"""Accuracy in %, means over five orders: the paper's table for CIFAR100-Split."""

RUNS: dict[str, dict[str, Any]] = {
    "stl": {"method": "stl"},
    "official": {"method": "halrp-official", "recipe": {"gradient_scale": 10.0, "shuffle": False}},
    "budget": {"method": "halrp-budget", "settings": {"growth_per_task": PAPER_GROWTH / LATER_TASKS}},
    "budget-half": {"method": "halrp-budget", "settings": {"growth_per_task": PAPER_GROWTH / 2 / LATER_TASKS}},
}
for _precision in ("float32", "bfloat16", "int8"):
    for _name, _bytes in (("small", 100_000), ("half", 156_000)):
        RUNS[f"{_name}-{_precision}"] = {
            "method": "halrp-budget",
            "settings": {"bytes_per_task": _bytes, "precision": _precision},
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="CIFAR100-Split with LeNet, order A, one seed.")
    parser.add_argument("--data", help="folder that holds the data sets (default: $HALRP_DATA or the user's cache)")
    parser.add_argument("--results", default="results/cifar100-split", help="folder of the raw records")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="which runs (default: all)")
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.05, 0.25], help="shares of the training data")
    parser.add_argument("--order", default="A")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--tasks", type=int, help="learn only the first so many tasks")
    parser.add_argument("--table", action="store_true", help="print the table of existing records and stop")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # start a second process for the second core
    for fraction in options.fractions:
        for name in options.only:
            run = RUNS[name]
            cell = cells.Cell(
                method=run["method"],
                stream="cifar100-split",
                backbone="lenet",
                order=options.order,
                seed=options.seed,
                fraction=fraction,
                settings=run.get("settings", {}),
                recipe={"epochs": options.epochs, **run.get("recipe", {})},
                tasks=options.tasks,
            )
            path = Path(options.results) / f"{cell.name}.json"
            if not options.table and not path.exists():
                rows = []
                for row in cells.run(cell, options.data, _tell):
                    rows.append(row)
                    print(f"\r{name} {fraction:.0%} {row['task']}: {100 * row['test'][-1]:.1f} %".ljust(79), flush=True)
                cells.write(options.results, cell, rows)
            if path.exists():
                print(_line(name, fraction, json.loads(path.read_text())["rows"]))


def _tell(event: Progress) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{event.task} {event.stage} {event.epoch}/{event.epochs}".ljust(79), end="", file=sys.stderr, flush=True
        )


def _line(name: str, fraction: float, rows: list[dict[str, Any]]) -> str:
    """One row of the table in docs/results.md, recomputed from raw rows."""
    accuracy = np.full((len(rows), len(rows)), np.nan)
    for position, row in enumerate(rows):
        accuracy[position, : position + 1] = row["test"]
    growth = rows[-1]["parameters"] / rows[0]["parameters"] - 1
    per_task = (rows[-1]["bytes"] - rows[0]["bytes"]) / max(1, len(rows) - 1)
    base = rows[0].get("base_parameters")
    # Pruning may have changed committed tasks since they were counted; the last row counts them as they are.
    total = rows[-1].get("paper_count_all", sum(row.get("paper_count", 0) for row in rows[1:]))
    counted = total / base if base else growth
    paper = PAPER.get(fraction, {}).get("stl" if name == "stl" else "halrp", float("nan"))
    seconds = sum(row["seconds"] for row in rows)
    forgotten = 100 * metrics.forgetting(accuracy) if len(rows) > 1 else 0.0
    return (
        f"| {fraction:.0%} | {name} | {100 * metrics.average_accuracy(accuracy):.2f} | {paper:.2f} | "
        f"{forgotten:.2f} | {growth:.3f} | {counted:.3f} | {per_task:,.0f} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
