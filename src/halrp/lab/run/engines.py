"""Engines: where cells run. `Local` has processes on this machine; `halrp.lab.run.dask_engine` has a Dask cluster.

An engine is two functions. `submit` takes a cell, `collect` tells what has happened to those that were taken. The
record of a cell that is done lies in the results folder. A record does not depend on the engine or on how many cells
run at once: every cell runs alone in its process, with one thread.

An error that the library names ends its cell at once, because another try would end alike. A worker that dies, or any
other error, costs the cell one of its retries, and the next try goes on from the state after the last whole task.
A cell that another process runs for the same folder is asked for again, after all others, until it is done.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

import torch

from halrp.errors import HalrpError, LockedError, SettingError
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.training.progress import Progress

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TELL_EVERY = 0.5
"""Seconds between two words about the same task."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell."""

    cell: str
    """Its name."""
    kind: Literal["started", "working", "row", "done", "failed", "again", "busy"]
    """"row" is a learned task, "again" a try that was lost, "busy" a cell that another process runs."""
    position: int = 0
    """Of the task that is being learned, or of the one that was."""
    share: float = 0.0
    """Of the task's present stage that is done."""
    text: str = ""
    """The task and its stage; for "failed" and "again" the reason, in a line."""
    accuracy: float | None = None
    """After a row: the mean over all tasks so far, as a share."""
    seconds: float = 0.0
    """After a row: what the task took."""


Tell = Callable[[Event], None]


class Engine(ABC):
    """Runs cells somewhere. Used as a context: leaving it ends whatever still runs, and nothing finished is lost."""

    @abstractmethod
    def submit(self, cell: Cell) -> None:
        """Take a cell; it starts as soon as there is room."""

    @abstractmethod
    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Tell what has happened, waiting at most so long until something has."""

    @abstractmethod
    def stop(self) -> None:
        """End what runs, and give everything back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def work(
    values: Mapping[str, Any],
    folder: str | os.PathLike[str],
    data: str | None,
    device: str,
    tell: Tell,
    extra: Callable[[Progress], None] | None = None,
) -> runner.Record:
    """Run a cell in this process and tell about it; what every engine's worker does. `extra` hears all progress."""
    cell = Cell.of(values)
    begun, position, told = False, 0, 0.0

    def begin() -> None:
        nonlocal begun
        if not begun:
            begun = True
            tell(Event(cell.name, "started"))

    def progress(event: Progress) -> None:
        nonlocal told
        begin()
        if extra is not None:
            extra(event)
        now = time.monotonic()
        if now - told >= TELL_EVERY:
            told = now
            share = (event.epoch + event.step / max(1, event.steps)) / max(1, event.epochs)
            tell(Event(cell.name, "working", position, round(share, 3), f"{event.task}, {event.stage}"))

    def on_row(row: runner.Row) -> None:
        nonlocal position
        begin()
        tell(row_event(cell.name, row))
        position = row["position"] + 1

    warm_up()
    return runner.execute(cell, folder, data=data, device=device, progress=progress, on_row=on_row)


def warm_up() -> None:
    """Import what torch imports with a process's first optimiser, so that no task's seconds have it."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


def row_event(name: str, row: runner.Row) -> Event:
    """A row of a record as an event."""
    known = [share for share in row["test"] if share is not None]
    accuracy = sum(known) / len(known) if known else None
    return Event(name, "row", row["position"], 1.0, row["task"], accuracy, row["seconds"])


def end_of(name: str, error: Exception) -> Event:
    """What an error means for its cell."""
    if isinstance(error, LockedError):
        return Event(name, "busy", text="another process runs it")
    return Event(name, "failed" if isinstance(error, HalrpError) else "again", text=line_of(error))


def line_of(error: BaseException) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, HalrpError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


class Local(Engine):
    """Processes on this machine, started afresh and used for one cell after the other."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        jobs: int = 1,
        *,
        data: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        retries: int = 2,
    ) -> None:
        """Take the results folder and how many cells may run at once. Processes start when there are cells."""
        if jobs < 1:
            raise SettingError(f"jobs={jobs} must be at least 1")
        self.folder, self.jobs, self.retries = Path(folder), jobs, retries
        self._about = (str(self.folder.absolute()), None if data is None else str(Path(data).absolute()), device)
        self._waiting: deque[Cell] = deque()
        self._workers: list[_Worker] = []
        self._tries: dict[str, int] = {}

    def submit(self, cell: Cell) -> None:
        """Take a cell."""
        self._waiting.append(cell)

    @property
    def pids(self) -> dict[str, int]:
        """The process of each running cell, by the cell's name."""
        return {w.cell.name: w.process.pid for w in self._workers if w.cell is not None and w.process.pid is not None}

    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Give idle workers cells, and tell what the others have said."""
        self._fill()
        pipes = {worker.pipe: worker for worker in self._workers}
        events: list[Event] = []
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            events += self._hear(pipes[pipe])
        return events

    def _fill(self) -> None:
        for worker in [w for w in self._workers if w.cell is None]:
            if self._waiting:
                self._give(worker, self._waiting.popleft())
        while self._waiting and len(self._workers) < self.jobs:
            self._workers.append(self._start())
            self._give(self._workers[-1], self._waiting.popleft())

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._about), daemon=True)
        with _inherited(ONE_THREAD):
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        return _Worker(process, ours)

    def _give(self, worker: _Worker, cell: Cell) -> None:
        worker.cell = cell
        with suppress(OSError):  # a dead worker is noticed when it is heard
            worker.pipe.send_bytes(json.dumps(cell.canonical()).encode())

    def _hear(self, worker: _Worker) -> list[Event]:
        try:
            event = Event(**json.loads(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            return self._lost(worker)
        cell = worker.cell
        assert cell is not None, "a worker speaks only of its cell"
        if event.kind in ("done", "failed", "again", "busy"):
            worker.cell = None
        if event.kind == "busy":
            self._waiting.append(cell)
        return [self._retry(cell, event.text)] if event.kind == "again" else [event]

    def _lost(self, worker: _Worker) -> list[Event]:
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        code = worker.process.exitcode or 0
        worker.process.close()
        if worker.cell is None:
            return []
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return [self._retry(worker.cell, f"its process ended {how}")]

    def _retry(self, cell: Cell, reason: str) -> Event:
        tries = self._tries[cell.name] = self._tries.get(cell.name, 0) + 1
        if tries > self.retries:
            return Event(cell.name, "failed", text=f"{reason} (tried {tries} times)")
        self._waiting.appendleft(cell)
        return Event(cell.name, "again", text=reason)

    def stop(self) -> None:
        """Ask every worker to end, and make those end that do not within some seconds."""
        self._waiting.clear()
        for worker in self._workers:
            worker.process.terminate() if worker.cell is not None else worker.pipe.close()
        deadline = time.monotonic() + 5
        for worker in self._workers:
            worker.process.join(max(0.1, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()  # files are whole or absent, at any moment
                worker.process.join()
            worker.pipe.close()
            worker.process.close()
        self._workers.clear()


@contextmanager
def _inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Start processes in this block with environment variables of their own, and deaf to Ctrl-C: we tell them."""
    before = {name: os.environ.get(name) for name in variables}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        if masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _serve(pipe: Connection, folder: str, data: str | None, device: str) -> None:
    """The life of a worker: cells come through the pipe, events go back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)

    def tell(event: Event) -> None:
        pipe.send_bytes(json.dumps(asdict(event)).encode())

    while True:
        try:
            values = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        name = Cell.of(values).name
        try:
            work(values, folder, data, device, tell)
            end = Event(name, "done")
        except BrokenPipeError:
            return  # nobody listens any more; the state is kept
        except Exception as error:
            end = end_of(name, error)
        tell(end)


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
