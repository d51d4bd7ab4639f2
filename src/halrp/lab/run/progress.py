"""A sweep while it runs: what stands where, how long it will take, and a live table or plain lines of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from halrp.errors import HalrpError
from halrp.lab.run import sweep
from halrp.lab.run.cell import Cell
from halrp.lab.run.engines import Engine, Event, line_of

State = Literal["waiting", "running", "elsewhere", "done", "failed", "there"]
"""A cell that is "there" had its record before the sweep began; another process runs one that is "elsewhere"."""


@dataclass
class Line:
    """What is known about one cell."""

    cell: Cell
    tasks: int | None
    """How many it learns, if that is known."""
    state: State = "waiting"
    position: int = 0
    """Learned tasks."""
    share: float = 0.0
    """Of the task that is being learned."""
    accuracy: float | None = None
    text: str = ""
    began: float = 0.0
    seconds: float = 0.0
    """From start to end; known when the cell has ended."""
    learning: float = 0.0
    """Seconds that all tasks so far took to learn, those of earlier tries included."""

    @property
    def progress(self) -> float:
        """The share of the cell that is done."""
        return min(1.0, (self.position + 0.9 * self.share) / self.tasks) if self.tasks else 0.0


@dataclass
class Standing:
    """Where a sweep stands."""

    lines: dict[str, Line]
    jobs: int
    clock: Callable[[], float] = time.monotonic
    again: list[str] = field(default_factory=list)
    """Tries that were lost, and why."""

    @staticmethod
    def of(cells: Sequence[Cell], tasks: Mapping[str, int], jobs: int) -> Standing:
        """Nothing has begun yet."""
        return Standing({cell.name: Line(cell, tasks.get(cell.name)) for cell in cells}, jobs)

    def take(self, event: Event) -> bool:
        """Take an event into account; False if it comes too late to matter."""
        line = self.lines[event.cell]
        if line.state in ("done", "failed", "there") or (line.state == "elsewhere" and event.kind == "busy"):
            return False
        now = self.clock()
        if event.kind == "started":
            if line.state == "running":
                self.again.append(f"{event.cell}: its worker was lost")
            line.state, line.began, line.position, line.share, line.learning = "running", now, 0, 0.0, 0.0
        elif event.kind == "working":
            line.position, line.share, line.text = event.position, event.share, event.text
        elif event.kind == "row":
            line.position, line.share, line.accuracy = event.position + 1, 0.0, event.accuracy
            line.learning += event.seconds
        elif event.kind == "again":
            self.again.append(f"{event.cell}: {event.text}")
            line.state, line.share = "waiting", 0.0
        elif event.kind == "busy":
            line.state, line.text = "elsewhere", event.text
        else:
            line.state, line.text = event.kind, event.text
            line.seconds = now - line.began if line.began else 0.0
        return True

    @property
    def counts(self) -> Counter[str]:
        """How many cells are in which state."""
        return Counter(line.state for line in self.lines.values())

    @property
    def failed(self) -> dict[str, str]:
        """Why cells failed, by their names."""
        return {name: line.text for name, line in self.lines.items() if line.state == "failed"}

    @property
    def left(self) -> int:
        """How many cells have not ended."""
        return sum(self.counts[state] for state in ("waiting", "running", "elsewhere"))

    def remaining(self) -> float | None:
        """Seconds until the last cell ends, judged by those that have ended, of the same method if there are any."""
        spent: dict[str, list[float]] = {}
        for line in self.lines.values():
            if line.state == "done":
                spent.setdefault(line.cell.method, []).append(line.learning)
        known = [value for values in spent.values() for value in values]
        if not known:
            return None
        total, longest = 0.0, 0.0
        for line in self.lines.values():
            mine = spent.get(line.cell.method, known)
            cost = sum(mine) / len(mine)
            if line.state == "running":
                cost = max(0.0, cost * (1 - line.progress))
            elif line.state != "waiting":
                continue
            total, longest = total + cost, max(longest, cost)
        return max(total / self.jobs, longest)


Watch = Callable[[Standing, Event | None], None]


def go(
    cells: Sequence[Cell],
    engine: Engine,
    folder: str | os.PathLike[str],
    tasks: Mapping[str, int],
    jobs: int,
    watch: Watch,
) -> Standing:
    """Run cells whose records are not there yet; `watch` is called for every event, and once in a while without one."""
    standing = Standing.of(cells, tasks, jobs)
    for cell in cells:
        line = standing.lines[cell.name]
        try:
            if sweep.finished(cell, folder):
                line.state = "there"
                continue
        except HalrpError as error:
            line.state, line.text = "failed", line_of(error)
            watch(standing, Event(cell.name, "failed", text=line.text))
            continue
        engine.submit(cell)
    while standing.left:
        events = engine.collect()
        for event in events:
            if standing.take(event):
                watch(standing, event)
        if not events:
            watch(standing, None)
    return standing


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"


def summary(standing: Standing) -> str:
    """Where a sweep stands, in a line."""
    counts = standing.counts
    parts = [f"{counts['done'] + counts['there']} of {len(standing.lines)} cells done"]
    parts += [f"{counts[state]} {state}" for state in ("failed", "running", "elsewhere", "waiting") if counts[state]]
    rest = standing.remaining() if standing.left else None
    return ", ".join(parts) + (f"; about {duration(rest)} left" if rest is not None else "")


def plain(say: Callable[[str], None]) -> Watch:
    """Watch a sweep as lines, for logs: starts, learned tasks, ends."""

    def watch(standing: Standing, event: Event | None) -> None:
        if event is None or event.kind == "working":
            return
        line = standing.lines[event.cell]
        if event.kind == "started":
            say(f"start  {event.cell}")
        elif event.kind == "row":
            of = f" of {line.tasks}" if line.tasks else ""
            told = "" if event.accuracy is None else f", average accuracy {event.accuracy:.1%}"
            say(f"task   {event.cell}: {event.position + 1}{of}{told}, {event.seconds:.1f} s")
        elif event.kind == "done":
            say(f"done   {event.cell} in {duration(line.seconds)} ({summary(standing)})")
        else:
            say(f"{event.kind:<6} {event.cell}: {event.text}")

    return watch


class Board:
    """A live table of the running cells; a context whose `watch` is given to `go`."""

    def __init__(self, console: Console) -> None:
        """Take the terminal."""
        self.console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Board:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def watch(self, standing: Standing, event: Event | None) -> None:
        """Draw where the sweep stands; ends of cells stay on the screen."""
        if event is not None and event.kind in ("done", "failed", "again", "busy"):
            line = standing.lines[event.cell]
            told = event.text or (f"average accuracy {line.accuracy:.1%}" if line.accuracy is not None else "")
            colour = {"done": "green", "failed": "red"}.get(event.kind, "yellow")
            spent = f" in {duration(line.seconds)}" if event.kind == "done" else ""
            self.console.print(f"[{colour}]{event.kind:<6}[/] {escape(event.cell)}{spent}: {escape(told)}")
        self._live.update(self.table(standing))

    def table(self, standing: Standing) -> RenderableType:
        """The running cells, and a line about all."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        for title in ("running", "task", "", "accuracy", "time"):
            table.add_column(title, no_wrap=True, ratio=2 if title == "running" else None)
        now = standing.clock()
        for line in standing.lines.values():
            if line.state == "running":
                task = f"{min(line.position + 1, line.tasks or line.position + 1)} of {line.tasks or '?'}"
                accuracy = "" if line.accuracy is None else f"{line.accuracy:.1%}"
                bar = ProgressBar(total=1.0, completed=line.progress, width=20)
                table.add_row(escape(line.cell.name), task, bar, accuracy, duration(now - line.began))
        return Group(table, Text(summary(standing)))
