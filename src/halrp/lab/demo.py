"""`python -m halrp.lab.demo`: ten tasks on real digits, four methods, one table and one page.

The digits come with scikit-learn, so nothing is downloaded. Separate networks are the ceiling, plain fine-tuning shows
what forgetting looks like, and between them HALRP runs twice at the same stored size: as the authors released it, and
with the ranks decided by budget before fine-tuning.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from halrp.lab.records import metrics
from halrp.lab.records.schema import Record
from halrp.lab.registry import METHODS
from halrp.lab.report.build import build, made_from
from halrp.lab.report.page import page
from halrp.lab.run import cell, runner
from halrp.store import atomic
from halrp.terminal import Terminal, echo, safe_markup
from halrp.training import progress as training_progress

RECIPE = {"epochs": 12, "batch": 32, "lr": 2e-3}
OFFICIAL_GROWTH = 0.4
"""The released code's growth bound γ; its own counting leaves out biases and what cannot be pruned."""

LABELS = {name: METHODS[name].title for name in ("stl", "finetune", "halrp-official", "halrp-budget")}


def main(arguments: list[str] | None = None) -> None:
    """Run the demo and print its table."""
    parser = argparse.ArgumentParser(prog="python -m halrp.lab.demo", description="Ten tasks, four methods, one table.")
    parser.add_argument("--tasks", type=int, default=10, help="how many of the ten tasks to learn")
    parser.add_argument("--epochs", type=int, default=RECIPE["epochs"], help="epochs per task")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data split, the networks and the training")
    parser.add_argument("--results", help="folder for raw records (JSON); none are written by default")
    parser.add_argument("--page", type=Path, default=Path("demo.html"), help="where to write the page of the runs")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the network is so small that more threads only wait for each other
    console = Terminal()
    recipe = RECIPE | {"epochs": options.epochs}
    finished: dict[str, list[dict[str, Any]]] = {}
    records = []
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[doing]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {
            name: progress.add_task(label, total=options.tasks * options.epochs, doing="", start=False)
            for name, label in LABELS.items()
        }
        for name, bar in bars.items():
            progress.start_task(bar)
            cell = _cell(name, recipe, options.tasks, options.seed, finished)
            rows = []
            for row in runner.run(cell, progress=_on_bar(progress, bar, options.epochs)):
                rows.append(row)
                progress.update(bar, completed=len(rows) * options.epochs, doing="")
            finished[name] = rows
            raw = runner.record(cell, rows)
            records.append(Record.of(raw))
            if options.results:
                runner.write(options.results, raw)
    console.print(_table(finished))
    echo(_verdict(finished))
    made = page("Ten tasks on real digits", build(records), [], made_from(records, [Path(options.results or "demo")]))
    atomic.write(options.page, made.encode())
    echo(f"Page, with every task after every task, sizes, ranks and times: {options.page}")


def _cell(
    name: str, recipe: dict[str, Any], tasks: int, seed: int, finished: dict[str, list[dict[str, Any]]]
) -> cell.Cell:
    settings: dict[str, Any] = {}
    if name == "halrp-official":
        recipe = recipe | {"gradient_scale": 10.0}
        settings = {"growth": OFFICIAL_GROWTH}
    if name == "halrp-budget":
        # The same total as the released code ended with, so that the two can be compared.
        official = finished["halrp-official"]
        added = official[-1]["parameters"] - official[0]["parameters"]
        settings = {"parameters_per_task": added // max(1, tasks - 1)}
    return cell.Cell(name, "digits", "digits-net", seed=seed, settings=settings, recipe=recipe, tasks=tasks)


def _on_bar(progress: Progress, bar: Any, epochs: int) -> training_progress.Notify:
    """Move a bar by finished epochs. A trial of the second view stands still: it repeats epochs already counted."""
    begun: dict[str, int] = {}

    def notify(event: training_progress.Progress) -> None:
        if event.loss is None:
            return
        tried = begun.setdefault(event.task, len(begun)) * epochs
        done = event.epoch if event.stage in ("fine-tune", "base", "warm-up") else event.epoch + 1
        progress.update(bar, completed=tried + min(done, epochs), doing=f"{event.task}: {event.stage}")

    return notify


def _matrix(rows: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    accuracy = np.full((len(rows), len(rows)), np.nan)
    for position, row in enumerate(rows):
        accuracy[position, : position + 1] = row["test"]
    return 100 * accuracy


def _table(finished: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(title="Accuracy in % on each task after the last one was learned", title_justify="left")
    table.add_column("task", no_wrap=True)
    for name in finished:
        table.add_column(LABELS[name], justify="right")
    matrices = {name: _matrix(rows) for name, rows in finished.items()}
    tasks = [row["task"] for row in next(iter(finished.values()))]
    for position, task in enumerate(tasks):
        table.add_row(safe_markup(task), *(f"{m[-1, position]:.1f}" for m in matrices.values()))
    table.add_section()
    table.add_row("[bold]average", *(f"[bold]{metrics.average_accuracy(m):.2f}" for m in matrices.values()))
    table.add_row("forgetting", *(f"{_forgetting(m):.2f}" for m in matrices.values()))
    table.add_row("parameters in all", *(f"{rows[-1]['parameters']:,}" for rows in finished.values()))
    table.add_row("bytes per new task", *(f"{_bytes_per_task(rows):,}" for rows in finished.values()))
    table.add_row("seconds", *(f"{sum(row['seconds'] for row in rows):.1f}" for rows in finished.values()))
    return table


def _verdict(finished: dict[str, list[dict[str, Any]]]) -> str:
    """Say in one sentence what the table shows about the two HALRP columns, whichever way it went."""
    official, budget = (metrics.average_accuracy(_matrix(finished[f"halrp-{n}"])) for n in ("official", "budget"))
    sizes = [finished[f"halrp-{n}"][-1]["parameters"] for n in ("official", "budget")]
    word = "above" if budget > official else "below" if budget < official else "equal to"
    return (
        f"By budget: {budget:.2f} % with {sizes[1]:,} parameters, {word} the released code's {official:.2f} % "
        f"with {sizes[0]:,}."
    )


def _forgetting(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return metrics.forgetting(matrix) if len(matrix) > 1 else 0.0


def _bytes_per_task(rows: list[dict[str, Any]]) -> int:
    return int(rows[-1]["bytes"] - rows[0]["bytes"]) // max(1, len(rows) - 1)


if __name__ == "__main__":
    main()
