"""Engines: where cells run.

`LocalEngine` has processes on this machine, `DaskEngine` the workers of a cluster. An engine has two calls: `submit`
takes a cell, and `collect` returns what has happened to submitted cells. The record of a finished cell is in the
results folder. A record does not depend on the engine or on the number of jobs: every cell runs alone in its process,
with one thread.

An error that the library raises on purpose fails its cell at once, because it would happen again. If a worker dies, or
on any other error, the cell is tried again, and continues from its state after the last learned task. A cell that
another process runs for the same folder is tried again after all others, until it is finished.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from halrp.errors import HalrpError, LockedError
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.training.progress import Progress

NOTIFY_EVERY = 0.5
"""Seconds between two events about the training of the same task."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell."""

    cell: str
    """Its name."""
    kind: Literal["started", "working", "row", "done", "failed", "retry", "busy"]
    """"row" is a learned task, "retry" an attempt that was lost, "busy" a cell that another process runs."""
    position: int = 0
    """Of the task that is being learned, or of the one just learned."""
    share: float = 0.0
    """Of the task's current stage that is done."""
    text: str = ""
    """The task and its stage; for "failed" and "retry" the reason, in one line."""
    accuracy: float | None = None
    """After a row: the mean over all tasks so far, as a share."""
    seconds: float = 0.0
    """After a row: the time to learn the task."""


Notify = Callable[[Event], None]


class Engine(ABC):
    """Runs cells. Used as a context manager: on exit, running cells are stopped, and no finished one is lost."""

    @abstractmethod
    def submit(self, cell: Cell) -> None:
        """Queue a cell; it starts as soon as a worker is free."""

    @abstractmethod
    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Return what has happened since the last call, after waiting at most `seconds` for the first event."""

    @abstractmethod
    def stop(self) -> None:
        """Stop running cells and release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_cell(
    values: Mapping[str, Any],
    folder: str | os.PathLike[str],
    data: str | None,
    device: str,
    notify: Notify,
    on_progress: Callable[[Progress], None] | None = None,
) -> runner.Record:
    """Run a cell in this process and report events; the work of every engine's workers.

    `on_progress` is called with all progress of the training, of which events report only a part.
    """
    cell = Cell.of(values)
    started, position, notified = False, 0, 0.0

    def start() -> None:
        nonlocal started
        if not started:
            started = True
            notify(Event(cell.name, "started"))

    def progress(event: Progress) -> None:
        nonlocal notified
        start()
        if on_progress is not None:
            on_progress(event)
        now = time.monotonic()
        if now - notified >= NOTIFY_EVERY:
            notified = now
            share = (event.epoch + event.step / max(1, event.steps)) / max(1, event.epochs)
            notify(Event(cell.name, "working", position, round(share, 3), f"{event.task}, {event.stage}"))

    def on_row(row: runner.Row) -> None:
        nonlocal position
        start()
        notify(row_event(cell.name, row))
        position = row["position"] + 1

    warm_up()
    return runner.execute(cell, folder, data=data, device=device, progress=progress, on_row=on_row)


def warm_up() -> None:
    """Import what torch imports with a process's first optimiser, so that it does not count as a task's time."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


def row_event(name: str, row: runner.Row) -> Event:
    """A row of a record as an event."""
    known = [share for share in row["test"] if share is not None]
    accuracy = sum(known) / len(known) if known else None
    return Event(name, "row", row["position"], 1.0, row["task"], accuracy, row["seconds"])


def error_event(name: str, error: Exception) -> Event:
    """An error of a cell as an event: busy, failed or retry."""
    if isinstance(error, LockedError):
        return Event(name, "busy", text="another process runs it")
    return Event(name, "failed" if isinstance(error, HalrpError) else "retry", text=one_line(error))


def one_line(error: BaseException) -> str:
    """The message of an error in one line; with its type, unless the library raised it on purpose."""
    text = " ".join(str(error).split())
    return text if isinstance(error, HalrpError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
