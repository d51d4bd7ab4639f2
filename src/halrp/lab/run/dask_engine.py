"""The engine on a Dask cluster: cells run wherever its workers are.

    dask scheduler                                                        # on one machine
    dask worker tcp://HOST:8786 --nthreads 1 --nworkers 8                 # on every machine
    halrp sweep cifar100-split --scheduler tcp://HOST:8786

Workers need this package and the data. Where they see the client's results folder, they write records and states there
themselves, and a cell whose worker is lost goes on from its state on another one. Where they do not, a cell's state
lies in the cache of the worker's machine and its record travels back to the client, which writes it.

Dask runs a lost worker's cell again. A worker process runs one cell at a time, however many threads it has.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from halrp.errors import HalrpError, SettingError
from halrp.lab.data.directories import cache_directory
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.engines import Engine, Event, end_of, line_of, work
from halrp.store import atomic
from halrp.training.progress import Progress

_alone = threading.Lock()
"""Global generators are put back after use, which two cells in one process would not notice of each other."""
ASK_EVERY = 1.0
"""Seconds between two questions whether to stop."""


class Stopped(Exception):  # noqa: N818  (reads as what it says)
    """The client wants no more work."""


class Cluster(Engine):
    """The workers of a Dask scheduler."""

    def __init__(
        self,
        address: str,
        folder: str | os.PathLike[str],
        *,
        jobs: int | None = None,
        data: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        retries: int = 2,
        wait: float = 10.0,
    ) -> None:
        """Connect to a scheduler. `jobs` bounds how many cells may run at once; None leaves it to the workers.

        `data` is the data directory as the workers see it; None means each one's own.
        """
        try:
            import distributed
        except ModuleNotFoundError as error:
            raise SettingError("a cluster needs Dask; run: pip install 'halrp[cluster]'") from error
        if jobs is not None and jobs < 1:
            raise SettingError(f"jobs={jobs} must be at least 1")
        try:
            self.client = distributed.Client(address, timeout=wait, set_as_default=False)
        except (OSError, ValueError, TimeoutError, ImportError) as error:
            raise SettingError(
                f"no Dask scheduler answers at {address!r} ({line_of(error)}); is it running?"
            ) from error
        self.folder, self.jobs, self.retries = Path(folder).absolute(), jobs, retries
        token = secrets.token_hex(8)
        self._topic, self._stop = f"halrp-{token}", distributed.Event(f"halrp-stop-{token}", client=self.client)
        self._mark = self.folder / f".{self._topic}"
        """A file that workers see if this very folder is theirs too."""
        atomic.write(self._mark, b"", durable=False)
        self._about = (str(self.folder), str(self._mark), None if data is None else str(data), device, self._topic)
        self._waiting: deque[Cell] = deque()
        self._cells: dict[str, Cell] = {}
        self._running: dict[str, Any] = {}
        self._sent = 0
        self._heard: queue.Queue[Event | str] = queue.Queue()
        self.client.subscribe_topic(self._topic, self._take)

    @property
    def workers(self) -> int:
        """How many worker processes there are at the moment, at least 1."""
        return max(1, len(self.client.nthreads()))

    def submit(self, cell: Cell) -> None:
        """Take a cell."""
        self._cells[cell.name] = cell
        self._waiting.append(cell)

    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Send cells to the scheduler, and tell what the workers have said."""
        while self._waiting and (self.jobs is None or len(self._running) < self.jobs):
            self._send(self._waiting.popleft())
        events: list[Event] = []
        with suppress(queue.Empty):
            heard = self._heard.get(timeout=seconds)
            while True:
                events += [heard] if isinstance(heard, Event) else self._ended(heard)
                heard = self._heard.get_nowait()
        if self.client.status in ("closed", "closing") or self.client.scheduler is None:
            raise SettingError("the connection to the Dask scheduler is lost; what was finished is kept, run it again")
        return events

    def stop(self) -> None:
        """Tell workers to leave what they do, and disconnect."""
        with suppress(Exception):  # whatever the cluster's state is
            if self._running:
                self._stop.set()
                self.client.cancel(list(self._running.values()), force=True)
            self.client.unsubscribe_topic(self._topic)
        self._running.clear()
        self.client.close(timeout=5)
        self._mark.unlink(missing_ok=True)

    def _send(self, cell: Cell) -> None:
        self._sent += 1  # a key names one try
        key = f"{cell.name}-{self._topic}-{self._sent}"
        future = self.client.submit(run, cell.canonical(), *self._about, self._stop.name, key=key, retries=self.retries)
        self._running[cell.name] = future
        future.add_done_callback(lambda _, name=cell.name: self._heard.put(name))

    def _take(self, message: tuple[float, Mapping[str, Any]]) -> None:
        self._heard.put(Event(**message[1]["event"]))  # Dask adds the worker beside it

    def _ended(self, name: str) -> list[Event]:
        """What became of a cell whose future is done."""
        future = self._running.pop(name, None)
        if future is None:
            return []
        if future.status != "finished":
            error = future.exception(timeout=10) if future.status == "error" else None
            return [Event(name, "failed", text=line_of(error) if error is not None else f"it was {future.status}")]
        found, failure = future.result(timeout=60)
        if failure:
            event = Event(**failure)
            if event.kind == "busy":
                self._waiting.append(self._cells[name])
            return [event]
        target = self.folder / f"{name}.json"
        if not target.exists():
            atomic.write(target, (json.dumps(found, indent=1) + "\n").encode())
        return [Event(name, "done")]


def run(
    values: Mapping[str, Any], folder: str, mark: str, data: str | None, device: str, topic: str, stop: str
) -> tuple[runner.Record | None, dict[str, Any] | None]:
    """Run a cell in a Dask worker; returns its record, or the event of an error that Dask need not try again."""
    import distributed

    worker = distributed.get_worker()
    wanted = distributed.Event(stop)
    asked = time.monotonic()

    def progress(event: Progress) -> None:
        nonlocal asked
        if time.monotonic() - asked >= ASK_EVERY:
            asked = time.monotonic()
            if wanted.is_set():
                raise Stopped

    shared = Path(mark).exists()
    own = Path(folder) if shared else cache_directory() / "cells"
    name = Cell.of(values).name
    with _alone:
        torch.set_num_threads(1)
        try:
            found = work(
                values, own, data, device, lambda event: worker.log_event(topic, {"event": asdict(event)}), progress
            )
        except Stopped:
            return None, asdict(Event(name, "failed", text="stopped"))
        except HalrpError as error:
            return None, asdict(end_of(name, error))
        if not shared:  # a record in a cache could outlive the code that made it
            (own / f"{name}.json").unlink(missing_ok=True)
        return found, None
