"""The progress of a sweep on the screen: a live table in a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from halrp.lab.run.engine import Event
from halrp.lab.run.status import Observer, SweepStatus, duration
from halrp.terminal import safe_markup


@contextmanager
def observer(console: Console, write: Callable[[str], None]) -> Iterator[Observer]:
    """An observer for a block: a live table if the console is a terminal, else lines that `write` prints."""
    if console.is_terminal:
        with LiveTable(console) as table:
            yield table.observe
    else:
        yield log_lines(write)


def log_lines(write: Callable[[str], None]) -> Observer:
    """An observer that writes a line for every started, learned and ended cell or task."""

    def observe(status: SweepStatus, event: Event | None) -> None:
        if event is None or event.kind == "working":
            return
        cell = status.cells[event.cell]
        if event.kind == "started":
            write(f"start  {event.cell}")
        elif event.kind == "row":
            total = f" of {cell.tasks}" if cell.tasks else ""
            accuracy = "" if event.accuracy is None else f", average accuracy {event.accuracy:.1%}"
            write(f"task   {event.cell}: {event.position + 1}{total}{accuracy}, {event.seconds:.1f} s")
        elif event.kind == "done":
            write(f"done   {event.cell} in {duration(cell.seconds)} ({status.summary()})")
        else:
            write(f"{event.kind:<6} {event.cell}: {event.text}")

    return observe


class LiveTable:
    """A live table of the running cells; a context manager whose `observe` is an observer."""

    def __init__(self, console: Console) -> None:
        """Take the terminal."""
        self.console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def observe(self, status: SweepStatus, event: Event | None) -> None:
        """Draw the table; lines about ended cells stay on the screen above it."""
        if event is not None and event.kind in ("done", "failed", "retry", "busy"):
            cell = status.cells[event.cell]
            text = event.text or (f"average accuracy {cell.accuracy:.1%}" if cell.accuracy is not None else "")
            colour = {"done": "green", "failed": "red"}.get(event.kind, "yellow")
            spent = f" in {duration(cell.seconds)}" if event.kind == "done" else ""
            self.console.print(f"[{colour}]{event.kind:<6}[/] {safe_markup(event.cell)}{spent}: {safe_markup(text)}")
        self._live.update(self.table(status))

    def table(self, status: SweepStatus) -> RenderableType:
        """The running cells, and a summary of all."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        for title in ("running", "task", "", "accuracy", "time"):
            table.add_column(title, no_wrap=True, ratio=2 if title == "running" else None)
        now = status.clock()
        for cell in status.cells.values():
            if cell.state == "running":
                task = f"{min(cell.position + 1, cell.tasks or cell.position + 1)} of {cell.tasks or '?'}"
                accuracy = "" if cell.accuracy is None else f"{cell.accuracy:.1%}"
                bar = ProgressBar(total=1.0, completed=cell.progress, width=20)
                table.add_row(safe_markup(cell.cell.name), task, bar, accuracy, duration(now - cell.began))
        return Group(table, Text(status.summary()))
