"""Run one cell in this process and show it: a progress bar, a line for each task, and a summary at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from halrp.errors import HalrpError, SettingError
from halrp.lab.records import metrics
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.engine import row_event, warm_up
from halrp.lab.run.status import duration
from halrp.lab.run.tensorboard import EventFile
from halrp.terminal import Terminal, echo, safe_markup
from halrp.training.progress import Progress as TrainingProgress


def check_device(device: str) -> None:
    """Refuse a device that is not available."""
    try:
        torch.zeros(1, device=torch.device(device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"--device {device!r} cannot be used here: {reason}") from error


def run(
    cell: Cell,
    tasks: int,
    folder: Path,
    data: Path | None,
    device: str,
    threads: int,
    tensorboard: Path | None,
    aside: bool = False,
) -> None:
    """Run a cell and print its progress, `aside` on the standard error."""
    events = None if tensorboard is None else EventFile(tensorboard, cell)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    console = Terminal(stderr=aside)
    echo(cell.name, err=aside)
    try:
        warm_up()
        with _bar(console, cell, tasks) if console.is_terminal else nullcontext() as bar:

            def progress(event: TrainingProgress) -> None:
                if bar is not None:
                    bar.update(event)
                if events is not None:
                    events.progress(event)

            def on_row(row: runner.Row) -> None:
                if events is not None:
                    events.row(row)
                console.print(safe_markup(_line(cell, tasks, row)))
                if bar is not None:
                    bar.row(row)

            runner.execute(cell, folder, data=data, device=device, progress=progress, on_row=on_row)
    except KeyboardInterrupt:
        echo("stopped; the same command resumes after the last learned task", err=True)
        raise
    finally:
        torch.set_num_threads(before)
        if events is not None:
            events.close()


def _line(cell: Cell, tasks: int, row: runner.Row) -> str:
    """A learned task in one line."""
    newest, average = row["test"][-1], row_event(cell.name, row).accuracy
    accuracy = "waits for the last task" if newest is None else f"accuracy {newest:6.1%}, average {average:6.1%}"
    size = f", {row['bytes']:,} bytes" if "bytes" in row else ""
    number = f"{row['position'] + 1:>{len(str(tasks))}} of {tasks}"
    return f"task {number}  {row['task']}: {accuracy}{size}, {row['seconds']:.1f} s"


class _Rate(ProgressColumn):
    """Epochs per second, or seconds per epoch."""

    def render(self, task: Task) -> Text:
        """The rate of the last half minute."""
        if not task.speed:
            return Text("")
        return Text(f"{task.speed:.1f} epochs/s" if task.speed >= 1 else f"{1 / task.speed:.1f} s/epoch")


class _Bar:
    """A bar that counts epochs. Epochs that a task trains twice, to choose between two trials, count once."""

    def __init__(self, progress: Progress, cell: Cell, tasks: int) -> None:
        self.progress, self.tasks = progress, tasks
        self.epochs = cell.make_recipe().epochs
        self.position, self.stages = 0, dict[str, float]()
        self.task = progress.add_task("", total=tasks * self.epochs)

    def update(self, event: TrainingProgress) -> None:
        self.stages[event.stage] = event.epoch + event.step / max(1, event.steps)
        done = self.position * self.epochs + min(self.epochs, sum(self.stages.values()))
        text = f"task {self.position + 1} of {self.tasks}, {event.stage}"
        self.progress.update(self.task, completed=done, description=text)

    def row(self, row: runner.Row) -> None:
        self.position, self.stages = row["position"] + 1, {}
        self.progress.update(self.task, completed=self.position * self.epochs)


@contextmanager
def _bar(console: Console, cell: Cell, tasks: int) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, cell, tasks)


def summary(record: runner.Record, path: Path) -> dict[str, Any]:
    """What a run ended with, as plain JSON values."""
    rows = record["rows"]
    accuracies = metrics.accuracy_matrix(rows)
    try:
        transfer = metrics.backward_transfer(accuracies)
    except HalrpError:
        transfer = None
    return {
        "cell": path.stem,
        "tasks": len(rows),
        "accuracy": metrics.average_accuracy(accuracies),
        "backward_transfer": transfer,
        "bytes": rows[-1]["bytes"],
        "parameters": rows[-1]["parameters"],
        "seconds": sum(row["seconds"] for row in rows),
        "record": str(path),
    }


def show(record: runner.Record, path: Path) -> None:
    """Print a record's summary."""
    facts = summary(record, path)
    transfer = facts["backward_transfer"]
    none = "none: tasks were learned together, or there is only one"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("average accuracy", f"{facts['accuracy']:.2f} %")
    table.add_row("backward transfer", none if transfer is None else f"{transfer:+.2f}")
    table.add_row("stored", f"{facts['bytes']:,} bytes, {facts['parameters']:,} parameters")
    table.add_row("time", duration(facts["seconds"]))
    table.add_row("record", safe_markup(str(path)))
    console = Terminal(soft_wrap=True)
    console.print()
    console.print(table)
