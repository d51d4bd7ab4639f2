"""The engine on this machine: processes that run one cell after the other, and end when the engine's process does."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch

from halrp.errors import SettingError
from halrp.lab.run.cell import Cell
from halrp.lab.run.engine import Engine, Event, error_event, run_cell

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment variables of the processes."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


class LocalEngine(Engine):
    """Processes on this machine. They are spawned, not forked, and used for one cell after the other."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        jobs: int = 1,
        *,
        data: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        retries: int = 2,
    ) -> None:
        """Take the results folder and the number of cells that run at once. Processes start with the first cells."""
        if jobs < 1:
            raise SettingError(f"jobs={jobs} must be at least 1")
        self.folder, self.jobs, self.retries = Path(folder), jobs, retries
        self._arguments = (str(self.folder.absolute()), None if data is None else str(Path(data).absolute()), device)
        self._waiting: deque[Cell] = deque()
        self._workers: list[_Worker] = []
        self._attempts: dict[str, int] = {}

    def submit(self, cell: Cell) -> None:
        """Queue a cell."""
        self._waiting.append(cell)

    @property
    def pids(self) -> dict[str, int]:
        """The process of each running cell, by the cell's name."""
        return {w.cell.name: w.process.pid for w in self._workers if w.cell is not None and w.process.pid is not None}

    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Give waiting cells to idle workers, and return the events of the others."""
        self._assign_waiting()
        pipes = {worker.pipe: worker for worker in self._workers}
        events: list[Event] = []
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            events += self._receive(pipes[pipe])
        return events

    def _assign_waiting(self) -> None:
        for worker in [w for w in self._workers if w.cell is None]:
            if self._waiting:
                self._assign(worker, self._waiting.popleft())
        while self._waiting and len(self._workers) < self.jobs:
            self._workers.append(self._start_worker())
            self._assign(self._workers[-1], self._waiting.popleft())

    def _start_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, *self._arguments), daemon=True)
        with _environment_of_workers(ONE_THREAD):
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        return _Worker(process, ours)

    def _assign(self, worker: _Worker, cell: Cell) -> None:
        worker.cell = cell
        with suppress(OSError):  # a dead worker is noticed when its pipe is read
            worker.pipe.send_bytes(json.dumps(cell.canonical()).encode())

    def _receive(self, worker: _Worker) -> list[Event]:
        try:
            event = Event(**json.loads(worker.pipe.recv_bytes()))
        except (EOFError, OSError):
            return self._remove(worker)
        cell = worker.cell
        assert cell is not None, "a worker sends events of its cell only"
        if event.kind in ("done", "failed", "retry", "busy"):
            worker.cell = None
        if event.kind == "busy":
            self._waiting.append(cell)
        return [self._retry(cell, event.text)] if event.kind == "retry" else [event]

    def _remove(self, worker: _Worker) -> list[Event]:
        """Remove a worker whose process has ended; its cell is tried again."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        code = worker.process.exitcode or 0
        worker.process.close()
        if worker.cell is None:
            return []
        reason = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return [self._retry(worker.cell, f"its process ended {reason}")]

    def _retry(self, cell: Cell, reason: str) -> Event:
        attempts = self._attempts[cell.name] = self._attempts.get(cell.name, 0) + 1
        if attempts > self.retries:
            return Event(cell.name, "failed", text=f"{reason} (tried {attempts} times)")
        self._waiting.appendleft(cell)
        return Event(cell.name, "retry", text=reason)

    def stop(self) -> None:
        """Ask every worker to exit, and kill those that do not within five seconds."""
        self._waiting.clear()
        for worker in self._workers:
            worker.process.terminate() if worker.cell is not None else worker.pipe.close()
        deadline = time.monotonic() + 5
        for worker in self._workers:
            worker.process.join(max(0.1, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()  # files are written atomically, so that any moment will do
                worker.process.join()
            worker.pipe.close()
            worker.process.close()
        self._workers.clear()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _environment_of_workers(variables: Mapping[str, str]) -> Iterator[None]:
    """Start processes in this block with other environment variables and without Ctrl-C: the engine stops them."""
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


def _work(pipe: Connection, folder: str, data: str | None, device: str) -> None:
    """The main function of a worker: it receives cells through the pipe and sends events back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, daemon=True, name="halrp-watchdog").start()
    torch.set_num_threads(1)

    def notify(event: Event) -> None:
        pipe.send_bytes(json.dumps(asdict(event)).encode())

    while True:
        try:
            values = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        name = Cell.of(values).name
        try:
            run_cell(values, folder, data, device, notify)
            end = Event(name, "done")
        except BrokenPipeError:
            return  # the engine has gone; the cell's state is saved
        except Exception as error:
            end = error_event(name, error)
        notify(end)


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, by whatever signal.

    The sentinel is a pipe whose other end the parent holds and never writes to, so that the system closes it.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by an engine"
    wait([parent.sentinel])
    os._exit(1)  # files are written atomically, so that any moment will do


def _exit(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
