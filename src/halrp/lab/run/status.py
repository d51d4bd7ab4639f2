"""The status of a sweep: the state of each of its cells, and an estimate of the time that is left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from halrp.lab.run.cell import Cell
from halrp.lab.run.engine import Event

State = Literal["waiting", "running", "elsewhere", "done", "failed", "skipped"]
"""A cell that is "skipped" had its record before the sweep began; another process runs one that is "elsewhere"."""


@dataclass
class CellStatus:
    """What is known about one cell."""

    cell: Cell
    tasks: int | None
    """The number of tasks that it learns, if that is known."""
    state: State = "waiting"
    position: int = 0
    """The number of learned tasks."""
    share: float = 0.0
    """Of the task that is being learned."""
    accuracy: float | None = None
    text: str = ""
    began: float = 0.0
    seconds: float = 0.0
    """From start to end; known when the cell has ended."""
    learning: float = 0.0
    """Seconds to learn all tasks so far, including those of earlier attempts."""

    @property
    def progress(self) -> float:
        """The share of the cell that is done."""
        return min(1.0, (self.position + 0.9 * self.share) / self.tasks) if self.tasks else 0.0


@dataclass
class SweepStatus:
    """The status of all cells of a sweep."""

    cells: dict[str, CellStatus]
    jobs: int
    clock: Callable[[], float] = time.monotonic
    retries: list[str] = field(default_factory=list)
    """Attempts that were lost, with the reasons."""

    @staticmethod
    def of(cells: Sequence[Cell], tasks: Mapping[str, int], jobs: int) -> SweepStatus:
        """The status before the first cell starts."""
        return SweepStatus({cell.name: CellStatus(cell, tasks.get(cell.name)) for cell in cells}, jobs)

    def update(self, event: Event) -> bool:
        """Take an event into account; False if it comes too late to matter."""
        status = self.cells[event.cell]
        if status.state in ("done", "failed", "skipped") or (status.state == "elsewhere" and event.kind == "busy"):
            return False
        now = self.clock()
        if event.kind == "started":
            if status.state == "running":
                self.retries.append(f"{event.cell}: its worker was lost")
            status.state, status.began, status.position, status.share, status.learning = "running", now, 0, 0.0, 0.0
        elif event.kind == "working":
            status.position, status.share, status.text = event.position, event.share, event.text
        elif event.kind == "row":
            status.position, status.share, status.accuracy = event.position + 1, 0.0, event.accuracy
            status.learning += event.seconds
        elif event.kind == "retry":
            self.retries.append(f"{event.cell}: {event.text}")
            status.state, status.share = "waiting", 0.0
        elif event.kind == "busy":
            status.state, status.text = "elsewhere", event.text
        else:
            status.state, status.text = event.kind, event.text
            status.seconds = now - status.began if status.began else 0.0
        return True

    @property
    def counts(self) -> Counter[str]:
        """The number of cells in each state."""
        return Counter(status.state for status in self.cells.values())

    @property
    def failed(self) -> dict[str, str]:
        """The reasons of failed cells, by name."""
        return {name: status.text for name, status in self.cells.items() if status.state == "failed"}

    @property
    def left(self) -> int:
        """The number of cells that have not ended."""
        return sum(self.counts[state] for state in ("waiting", "running", "elsewhere"))

    def remaining(self) -> float | None:
        """Seconds until the last cell ends, estimated from finished cells, of the same method if there are any."""
        spent: dict[str, list[float]] = {}
        for status in self.cells.values():
            if status.state == "done":
                spent.setdefault(status.cell.method, []).append(status.learning)
        known = [value for values in spent.values() for value in values]
        if not known:
            return None
        total, longest = 0.0, 0.0
        for status in self.cells.values():
            of_method = spent.get(status.cell.method, known)
            cost = sum(of_method) / len(of_method)
            if status.state == "running":
                cost = max(0.0, cost * (1 - status.progress))
            elif status.state != "waiting":
                continue
            total, longest = total + cost, max(longest, cost)
        return max(total / self.jobs, longest)

    def summary(self) -> str:
        """The status in one line."""
        counts = self.counts
        parts = [f"{counts['done'] + counts['skipped']} of {len(self.cells)} cells done"]
        parts += [
            f"{counts[state]} {state}" for state in ("failed", "running", "elsewhere", "waiting") if counts[state]
        ]
        rest = self.remaining() if self.left else None
        return ", ".join(parts) + (f"; about {duration(rest)} left" if rest is not None else "")


Observer = Callable[[SweepStatus, Event | None], None]
"""Called for every event, and with None when there was none for a while."""


def duration(seconds: float) -> str:
    """Seconds as text, in a unit that fits: 42 s, 12 min, 3.5 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"
