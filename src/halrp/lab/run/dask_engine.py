"""The engine on a Dask cluster: cells run on its workers.

    dask scheduler                                                        # on one machine
    dask worker tcp://HOST:8786 --nthreads 1 --nworkers 8                 # on every machine
    halrp sweep cifar100-split --scheduler tcp://HOST:8786

Workers need this package, the data, and the module of a method of your own. Workers that share the client's results
folder write records and states there, and a cell whose worker is lost continues from its state on another one. Other
workers keep the state in the cache of their machine and send the record to the client, which writes it.
`ClusterSecurity` has the files of a connection with TLS, and decides whether workers may use the folder at all. Records
and events are checked whoever sent them: a record has to be a complete one of its cell, with its checksum.

Dask runs a lost worker's cell again. A worker process runs one cell at a time, whatever its number of threads. Cells
of a client that has left, or was killed, are stopped.
"""

from __future__ import annotations

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
from halrp.lab.directories import cache_directory
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.cluster_security import ClusterSecurity, event_of
from halrp.lab.run.engine import Engine, Event, error_event, one_line, run_cell
from halrp.store import atomic
from halrp.training.progress import Progress

_one_cell = threading.Lock()
"""Cells restore the process's global generators after use, so that two at once would disturb each other."""
CHECK_EVERY = 1.0
"""Seconds between two checks whether the client still wants the cell."""


DEFAULT_SECURITY = ClusterSecurity()
PROGRESS = ("started", "working", "row")
"""Events that a worker sends while it runs a cell."""
ENDS = ("failed", "retry", "busy")
"""Events with which a worker ends a cell without a record."""


class Stopped(Exception):  # noqa: N818  (not an error)
    """The client does not want the cell any more, or has gone."""


class DaskEngine(Engine):
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
        security: ClusterSecurity = DEFAULT_SECURITY,
    ) -> None:
        """Connect to a scheduler. `jobs` bounds the number of cells that run at once; by default the workers do.

        `data` is the data directory as the workers see it; None means each worker's default. `security` has the files
        of a connection with TLS, and decides whether workers may use the results folder.
        """
        security.check(address)
        try:
            import distributed
        except ModuleNotFoundError as error:
            raise SettingError("a cluster needs Dask; run: pip install 'halrp[cluster]'") from error
        if jobs is not None and jobs < 1:
            raise SettingError(f"jobs={jobs} must be at least 1")
        try:
            self.client = distributed.Client(address, timeout=wait, set_as_default=False, security=security.of_dask())
        except (OSError, ValueError, TimeoutError, ImportError, RuntimeError) as error:
            hint = ", and are the certificates those of its authority?" if security.encrypted else "?"
            raise SettingError(
                f"no Dask scheduler answers at {address!r} ({one_line(error)}); is it running{hint}"
            ) from error
        self.folder, self.jobs, self.retries = Path(folder).absolute(), jobs, retries
        token = secrets.token_hex(8)
        self._topic = f"halrp-{token}"
        self._marker = self.folder / f".{self._topic}"
        """A file by which workers recognise that they share this folder."""
        self._trusted = security.trusted
        if self._trusted:
            atomic.write(self._marker, b"", durable=False)
        paths = (str(self.folder), str(self._marker)) if self._trusted else (None, None)
        self._arguments = (*paths, None if data is None else str(data), device)
        self._waiting: deque[Cell] = deque()
        self._cells: dict[str, Cell] = {}
        self._futures: dict[str, Any] = {}
        self._sent = 0
        self._received: queue.Queue[Event | str] = queue.Queue()
        """Events of workers, and names of cells whose futures are done."""
        self.client.subscribe_topic(self._topic, self._receive)

    @property
    def workers(self) -> int:
        """The current number of worker processes, at least 1."""
        return max(1, len(self.client.nthreads()))

    def submit(self, cell: Cell) -> None:
        """Queue a cell."""
        self._cells[cell.name] = cell
        self._waiting.append(cell)

    def collect(self, seconds: float = 0.5) -> list[Event]:
        """Send waiting cells to the scheduler, and return the events of the workers."""
        while self._waiting and (self.jobs is None or len(self._futures) < self.jobs):
            self._send(self._waiting.popleft())
        events: list[Event] = []
        with suppress(queue.Empty):
            message = self._received.get(timeout=seconds)
            while True:
                events += [message] if isinstance(message, Event) else self._finish(message)
                message = self._received.get_nowait()
        if self.client.status in ("closed", "closing") or self.client.scheduler is None:
            raise SettingError(
                "the connection to the Dask scheduler is lost; finished cells have their records, run the same command "
                "again"
            )
        return events

    def stop(self) -> None:
        """Stop the workers' cells, and disconnect."""
        with suppress(Exception):  # whatever the cluster's state is
            if self._futures:
                self.client.cancel(list(self._futures.values()), force=True)
            self.client.unsubscribe_topic(self._topic)
        self._futures.clear()
        self.client.close(timeout=5)
        self._marker.unlink(missing_ok=True)

    def _send(self, cell: Cell) -> None:
        self._sent += 1  # a key names one attempt
        future = self.client.submit(
            run,
            cell.name,
            cell.canonical(),
            *self._arguments,
            self._topic,
            key=f"{cell.name}-{self._topic}-{self._sent}",
            retries=self.retries,
        )
        self._futures[cell.name] = future
        future.add_done_callback(lambda _, name=cell.name: self._received.put(name))

    def _receive(self, message: tuple[float, Mapping[str, Any]]) -> None:
        event = event_of(message[1].get("event"), self._cells)  # Dask adds the worker beside it
        if event is not None and event.kind in PROGRESS:
            self._received.put(event)

    def _finish(self, name: str) -> list[Event]:
        """The events of a cell whose future is done; its record is written if the worker could not."""
        future = self._futures.pop(name, None)
        if future is None:
            return []
        if future.status != "finished":
            error = future.exception(timeout=10) if future.status == "error" else None
            return [Event(name, "failed", text=one_line(error) if error is not None else f"it was {future.status}")]
        try:
            record, failure = future.result(timeout=60)
        except (TypeError, ValueError):
            return [Event(name, "failed", text="its worker sent what is no result")]
        if failure:
            event = event_of(failure, (name,))
            if event is None or event.kind not in ENDS:
                return [Event(name, "failed", text="its worker sent what is no event of its end")]
            if event.kind == "busy":
                self._waiting.append(self._cells[name])
            return [event]
        return [self._accept(self._cells[name], record)]

    def _accept(self, cell: Cell, record: object) -> Event:
        """Check the record that a worker wrote or sent, write it if need be, and tell how the cell ended."""
        target = self.folder / f"{cell.name}.json"
        try:
            if target.exists():
                runner.check_finished(cell, runner.read(target), str(target))
            else:
                runner.write(self.folder, runner.check_sent(cell, record))
        except HalrpError as error:
            return Event(cell.name, "failed", text=one_line(error))
        return Event(cell.name, "done")


def run(
    name: str,
    values: Mapping[str, Any],
    folder: str | None,
    marker: str | None,
    data: str | None,
    device: str,
    topic: str,
) -> tuple[runner.Record | None, dict[str, Any] | None]:
    """Run a cell in a Dask worker; returns its record, or the event of an error that Dask must not retry.

    A worker that may not use the results folder is given neither the folder nor the marker in it.
    """
    import distributed

    worker = distributed.get_worker()
    key = worker.get_current_task()
    checked = time.monotonic()

    def notify(event: Event) -> None:
        worker.log_event(topic, {"event": asdict(event)})

    def check_stop(event: Progress) -> None:
        nonlocal checked
        if time.monotonic() - checked >= CHECK_EVERY:
            checked = time.monotonic()
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":
                raise Stopped

    shared = folder is not None and marker is not None and Path(marker).exists()
    states = Path(folder) if shared and folder is not None else cache_directory() / "cells"
    with _one_cell:
        torch.set_num_threads(1)
        try:
            record = run_cell(values, states, data, device, notify, check_stop)
        except Stopped:
            return None, asdict(Event(name, "failed", text="stopped"))
        except HalrpError as error:
            return None, asdict(error_event(name, error))
        if not shared:  # a record in a cache could outlive the code that made it
            (states / f"{name}.json").unlink(missing_ok=True)
        return record, None
