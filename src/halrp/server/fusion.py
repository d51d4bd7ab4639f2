"""Requests of different tasks, fused into mixed batches: `Fusion`.

One thread computes. It takes the request that has waited longest, waits a little for others whose inputs are of the
same kind, and computes all their rows in one call. If that call fails, each request is computed alone, so that nobody's
inputs spoil the answers of others. A model that normalises by the statistics of the batch gets one request at a time,
since a row's answer must not depend on whose rows share its batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Protocol

from torch import Tensor

from halrp.errors import HalrpError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.serve.loaded import LoadedTask
from halrp.server.errors import RequestError
from halrp.server.limits import Limits


class Computes(Protocol):
    """What computes rows: a `StorePredictor`."""

    def compute(self, x: Batch, rows: Sequence[LoadedTask], batch: int) -> Tensor:
        """Outputs of rows for the task of each, about a number of rows at a time."""

    def narrowed(self, outputs: Tensor, rows: Sequence[LoadedTask]) -> Tensor:
        """Outputs of some rows of a batch, as wide as the widest task among them."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request that waits to be computed."""

    x: Batch
    rows: Sequence[LoadedTask]
    deadline: float
    answer: Future[Tensor] = field(default_factory=Future)

    @property
    def kind(self) -> object:
        """What requests that share a batch have in common."""
        return tree.structure(self.x), tree.kind(self.x)


@dataclass
class Counts:
    """What was computed so far."""

    batches: int = 0
    rows: int = 0
    requests: int = 0
    tasks: int = 0
    """Distinct tasks of each batch, summed."""
    alone: int = 0
    """Batches of several requests that failed and were computed one by one."""
    seconds: float = 0.0


class Fusion:
    """A queue of requests, and the thread that computes them."""

    def __init__(self, predictor: Computes, limits: Limits, together: bool = True) -> None:
        """Take what computes rows; `together` says whether requests may share a batch."""
        self.counts = Counts()
        self._predictor, self._limits, self._together = predictor, limits, together
        self._queue: deque[Waiting] = deque()
        self._changed, self._closed, self._hurried = Condition(), False, False
        self._thread = Thread(target=self._work, name="halrp-fusion", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def submit(self, x: Batch, rows: Sequence[LoadedTask], deadline: float) -> Future[Tensor]:
        """Put a request into the queue; its outputs come by `deadline`, a time of `time.monotonic`, or not at all."""
        request = Waiting(x, rows, deadline)
        with self._changed:
            if self._closed:
                raise RequestError(503, "the server is shutting down")
            if len(self._queue) >= self._limits.queue:
                raise RequestError(429, f"{self._limits.queue} requests are waiting; try again later", retry_after=1)
            self._queue.append(request)
            self._changed.notify_all()
        return request.answer

    def hurry(self) -> None:
        """Let no request wait for others any more: the server shuts down."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """Compute what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            batch = [request for request in batch if request.answer.set_running_or_notify_cancel()]
            late = [request for request in batch if time.monotonic() > request.deadline]
            for request in late:
                request.answer.set_exception(RequestError(503, "the request waited too long; try again", retry_after=1))
            batch = [request for request in batch if request not in late]
            if batch:
                self._answer(batch)

    def _next(self) -> list[Waiting] | None:
        """The next requests to share a batch; None when there will be no more."""
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
            first = self._queue[0]
            until = time.monotonic() + self._limits.delay
            while self._together and not (self._closed or self._hurried):
                rest = until - time.monotonic()
                if rest <= 0 or self._rows_like(first) >= self._limits.batch:
                    break
                self._changed.wait(rest)
            return self._taken(first)

    def _rows_like(self, first: Waiting) -> int:
        return sum(len(request.rows) for request in self._queue if request.kind == first.kind)

    def _taken(self, first: Waiting) -> list[Waiting]:
        """The first request, and those behind it that fit into its batch; the others stay in their order."""
        batch, others, room = [first], deque[Waiting](), self._limits.batch - len(first.rows)
        self._queue.popleft()
        for request in self._queue:
            if self._together and len(request.rows) <= room and request.kind == first.kind:
                batch.append(request)
                room -= len(request.rows)
            else:
                others.append(request)
        self._queue = others
        return batch

    def _answer(self, batch: list[Waiting]) -> None:
        start = time.perf_counter()
        try:
            parts = self._outputs(batch).split([len(request.rows) for request in batch])
            outputs = [self._predictor.narrowed(part, r.rows) for part, r in zip(parts, batch, strict=True)]
        except Exception as error:  # of any kind: the thread must live, and the request be answered
            if len(batch) == 1:
                batch[0].answer.set_exception(error if isinstance(error, HalrpError) else _unforeseen(error))
            else:
                self.counts.alone += 1
                for request in batch:
                    self._answer([request])
            return
        self.counts.batches += 1
        self.counts.requests += len(batch)
        self.counts.rows += sum(len(request.rows) for request in batch)
        self.counts.tasks += len({task for request in batch for task in request.rows})
        self.counts.seconds += time.perf_counter() - start
        for request, answer in zip(batch, outputs, strict=True):
            request.answer.set_result(answer)

    def _outputs(self, batch: list[Waiting]) -> Tensor:
        rows = [task for request in batch for task in request.rows]
        x = batch[0].x if len(batch) == 1 else tree.concatenate([request.x for request in batch])
        return self._predictor.compute(x, rows, self._limits.batch)


def _unforeseen(error: Exception) -> RequestError:
    made = RequestError(500, "the request could not be computed; the server's log says why")
    made.__cause__ = error
    return made
