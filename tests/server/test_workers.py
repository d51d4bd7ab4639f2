"""Several processes of one server: they share memory and connections, are replaced, and none is left behind."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from halrp import Learner
from halrp.server.board import Board
from halrp.server.metrics import Metrics
from tests.server.asking import X, infer_body, server
from tests.server.loading import Load, children, is_running, outputs_of
from tests.timing import PATIENCE

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc, as Linux has it")
DESCRIPTORS = 190


def until(condition: object) -> None:
    """Wait for an event of other processes."""
    end = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def figure(address: str, name: str) -> float:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_a_worker_that_dies_under_load_is_replaced_and_none_outlives_its_supervisor(
    store: Path, learner: Learner
) -> None:
    expected = outputs_of(learner._committed.ready, list(learner.tasks.values()))
    with server(store, "--workers", "2", "--pin", "t1", descriptors=DESCRIPTORS) as (address, process):
        first = children(process.pid)
        assert len(first) == 2
        load = Load(address, expected, ["t0", "t1", "t2"], threads=3)
        load.wait(20)
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(children(process.pid)) == 2 and first[0] not in children(process.pid))
        load.wait(20)
        # More connections that send nothing, or half a request, than a worker may have open.
        host, _, port = address.partition(":")
        idle = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(2 * DESCRIPTORS)]
        for number, connection in enumerate(idle[::2]):
            connection.sendall(b"POST /v2/models/t1/infer HTTP/1.1\r\nContent-Le"[: number % 40])
        load.wait(20)
        for connection in idle:
            connection.close()
        load.stop()
        assert load.statuses[200] >= 60
        assert set(load.statuses) <= {0, 200}
        # Counts are those of both workers, whichever is asked, up to what the dead one had not reported.
        total = 'halrp_requests_total{endpoint="infer",status="200"}'
        until(lambda: figure(address, total) >= load.statuses[200] / 2)
        assert figure(address, "halrp_tasks") == len(learner.tasks)
        workers = children(process.pid)
        process.kill()
        until(lambda: not any(map(is_running, workers)))


def test_ctrl_c_ends_all_workers_after_the_requests_under_way(store: Path) -> None:
    with server(store, "--workers", "2", "--delay", "600000", "--timeout", "600") as (address, process):
        workers = children(process.pid)
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        connection.request("POST", "/v2/models/t1/infer", infer_body(X[:2]))  # it waits for others to share its batch
        until(lambda: figure(address, "halrp_queue") == 1)
        for each in (process.pid, *workers):  # a terminal's Ctrl-C reaches them all
            os.kill(each, signal.SIGINT)
        assert connection.getresponse().status == 200
        connection.close()
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert not any(map(is_running, workers))
        assert "Traceback" not in error


def test_figures_are_those_of_all_processes_and_outlive_one_of_them() -> None:
    board = Board(3)
    first, second = Metrics(board, 0), Metrics(board, 1)
    first.add("infer", 200, 0.002)
    second.add("infer", 200, 0.3)
    second.add("infer", 429, 0.0)
    second.share({"halrp_queue": ("", 2), "halrp_tasks": ("", 7)}, {"halrp_rows_total": ("", 10)})
    lines = first.text({"halrp_queue": ("", 1), "halrp_tasks": ("", 7)}, {"halrp_rows_total": ("", 5)}).splitlines()
    assert 'halrp_requests_total{endpoint="infer",status="200"} 2' in lines
    assert 'halrp_infer_seconds_bucket{le="0.0025"} 2' in lines
    assert 'halrp_infer_seconds_bucket{le="+Inf"} 3' in lines
    assert {"halrp_queue 3", "halrp_tasks 7", "halrp_rows_total 15"} <= set(lines)
    replacing = Metrics(board, 1)
    replacing.add("infer", 200, 0.002)
    replacing.share({}, {"halrp_rows_total": ("", 1)})
    text = first.text({}, {"halrp_rows_total": ("", 5)})
    assert 'halrp_requests_total{endpoint="infer",status="200"} 3' in text
    assert "halrp_rows_total 16" in text


def test_a_slot_that_is_written_to_is_not_read() -> None:
    board = Board(1)
    assert board.read(0) is None
    board.write(0, {"a": 1})
    assert board.read(0) == {"a": 1}
    board._memory[8:9] = b"["
    assert board.read(0) is None
    board.write(0, {"a": "x" * (1 << 17)})
    assert board.read(0) is None
