"""Requests that share batches: each gets its own answer, whoever else is there, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from halrp import Learner, StorePredictor
from halrp.errors import DataError
from halrp.serve.loaded import LoadedTask
from halrp.server.errors import RequestError
from halrp.server.fusion import Fusion
from halrp.server.limits import Limits
from tests.server.asking import TOLERANCE, X, build
from tests.timing import PATIENCE

LATER = 1e12
"""A deadline that does not come."""


class Recorded:
    """A predictor that waits until the first batch may begin, and records the rows of each batch."""

    def __init__(self, predictor: StorePredictor) -> None:
        self.predictor, self.go = predictor, threading.Event()
        self.batches: list[int] = []

    def compute(self, x: Any, rows: Sequence[LoadedTask], batch: int) -> Tensor:
        assert self.go.wait(PATIENCE)
        self.batches.append(len(rows))
        return self.predictor.compute(x, rows, batch)

    def narrowed(self, outputs: Tensor, rows: Sequence[LoadedTask]) -> Tensor:
        return self.predictor.narrowed(outputs, rows)


@pytest.fixture
def recorded(store: Path) -> Recorded:
    return Recorded(StorePredictor.open(store, build()))


def fusion(recorded: Recorded, together: bool = True, **limits: Any) -> Fusion:
    return Fusion(recorded, Limits(**{"batch": 8, "delay": 0.0, **limits}), together)


@pytest.fixture
def tasks(recorded: Recorded) -> dict[Any, LoadedTask]:
    return dict(recorded.predictor.select(["t0", "t1", "t2"]))


def blocked(queue: Fusion, tasks: dict[Any, LoadedTask]) -> Any:
    """A first request, which the thread has taken; what is submitted next waits together."""
    first = queue.submit(X[:1], [tasks["t0"]], LATER)
    while queue.waiting:
        time.sleep(0)
    return first


def test_requests_of_different_tasks_share_a_batch_and_are_as_wide_as_their_own_tasks(
    recorded: Recorded, tasks: dict[Any, LoadedTask], learner: Learner
) -> None:
    queue = fusion(recorded)
    blocked(queue, tasks)
    names = ("t0", "t1", "t2", "t1")
    waiting = [queue.submit(X[2 * n : 2 * n + 2], [tasks[name]] * 2, LATER) for n, name in enumerate(names)]
    recorded.go.set()
    queue.close()
    assert recorded.batches == [1, 8]
    for n, (name, answer) in enumerate(zip(names, waiting, strict=True)):
        expected = learner.predict(X[2 * n : 2 * n + 2], name)
        torch.testing.assert_close(answer.result(), expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert (queue.counts.batches, queue.counts.requests, queue.counts.rows, queue.counts.tasks) == (2, 5, 9, 4)


def test_batches_are_bounded_and_inputs_of_another_kind_are_apart(
    recorded: Recorded, tasks: dict[Any, LoadedTask]
) -> None:
    queue = fusion(recorded)
    blocked(queue, tasks)
    for size in (5, 5, 3, 12):
        queue.submit(X[:size], [tasks["t1"]] * size, LATER)
    queue.submit(X[:2].double(), [tasks["t1"]] * 2, LATER)
    recorded.go.set()
    queue.close()
    assert recorded.batches == [1, 8, 5, 12, 2]


def test_a_request_that_fails_spoils_no_other(
    recorded: Recorded, tasks: dict[Any, LoadedTask], learner: Learner
) -> None:
    queue = fusion(recorded)
    compute = recorded.compute

    def fails_on_large(x: Tensor, rows: Sequence[LoadedTask], batch: int) -> Tensor:
        outputs = compute(x, rows, batch)
        if bool((x > 1e6).any()):
            raise IndexError("out of range")
        return outputs

    recorded.compute = fails_on_large  # type: ignore[method-assign]
    blocked(queue, tasks)
    good, bad = queue.submit(X[:2], [tasks["t1"]] * 2, LATER), queue.submit(X[:2] + 1e9, [tasks["t2"]] * 2, LATER)
    recorded.go.set()
    queue.close()
    assert torch.equal(good.result(), learner.predict(X[:2], "t1"))
    with pytest.raises(RequestError, match="could not be computed"):
        bad.result()
    assert queue.counts.alone == 1


def test_wrong_inputs_are_the_error_of_their_request(recorded: Recorded, tasks: dict[Any, LoadedTask]) -> None:
    queue = fusion(recorded)
    recorded.go.set()
    with pytest.raises(DataError, match="the model fails on inputs"):
        queue.submit(X[:, :3], [tasks["t1"]] * len(X), LATER).result(PATIENCE)
    assert queue.submit(X, [tasks["t1"]] * len(X), LATER).result(PATIENCE).shape == (len(X), 4)
    queue.close()


def test_where_rows_depend_on_each_other_requests_are_computed_alone(
    recorded: Recorded, tasks: dict[Any, LoadedTask]
) -> None:
    queue = fusion(recorded, together=False)
    blocked(queue, tasks)
    for _ in range(3):
        queue.submit(X[:2], [tasks["t1"]] * 2, LATER)
    recorded.go.set()
    queue.close()
    assert recorded.batches == [1, 2, 2, 2]


def test_cancelled_and_late_requests_are_not_computed(recorded: Recorded, tasks: dict[Any, LoadedTask]) -> None:
    queue = fusion(recorded)
    first = blocked(queue, tasks)
    cancelled = queue.submit(X[:2], [tasks["t1"]] * 2, LATER)
    late = queue.submit(X[:2], [tasks["t1"]] * 2, time.monotonic())
    assert cancelled.cancel()
    recorded.go.set()
    queue.close()
    assert first.result().shape == (1, 3)
    assert recorded.batches == [1]
    with pytest.raises(RequestError, match="waited too long"):
        late.result()
    with pytest.raises(RequestError, match="shutting down"):
        queue.submit(X[:2], [tasks["t1"]] * 2, LATER)


@pytest.fixture(autouse=True)
def _released(recorded: Recorded) -> Iterator[None]:
    yield
    recorded.go.set()
