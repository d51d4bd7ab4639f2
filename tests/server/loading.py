"""Clients of a server process that compare every answer with its version's module, and processes of a process."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from halrp import Delta
from halrp.model.base import Base
from halrp.store import atomic, task_file
from tests.server.asking import TOLERANCE, X, infer_body
from tests.timing import PATIENCE

Versions = Mapping[tuple[str, str], Tensor]
"""What the module of each version of a task gives for X, by the task's name and the checksum of its file."""


def outputs_of(base: Base, deltas: Sequence[Delta]) -> Versions:
    """By the modules with merged weights, without any of the code that serves."""
    outputs = {}
    with torch.no_grad():
        for delta in deltas:
            outputs[delta.task, atomic.checksum(task_file.write(delta))] = base.merged(delta)(base.prepare_inputs(X))
    return outputs


class Load:
    """Threads that ask for rows of random tasks until they are stopped; a lost connection is made again."""

    def __init__(self, address: str, expected: Versions, names: Sequence[str], threads: int = 4) -> None:
        self.address, self.expected, self.names = address, expected, names
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        """Of the answers so far; 0 where there was none."""
        self._ended = threading.Event()
        self._answered = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(threads)]
        for thread in self._threads:
            thread.start()

    def wait(self, answers: int) -> None:
        """Wait for a number of further answers with status 200."""
        with self._answered:
            wanted = self.statuses[200] + answers
            assert self._answered.wait_for(lambda: self.statuses[200] >= wanted, PATIENCE), self.statuses

    def stop(self) -> None:
        """Stop, and raise if an answer was wrong."""
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self.wrong == []

    def _ask(self, seed: int) -> None:
        draw, connection = random.Random(seed), None
        while not self._ended.is_set():
            name, row = draw.choice(self.names), draw.randrange(len(X))
            if connection is None:
                connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
            try:
                connection.request("POST", f"/v2/models/{name}/infer", infer_body(X[row : row + 1]))
                reply = connection.getresponse()
                status, content = reply.status, reply.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                connection, status, content = None, 0, b""
            if status == 200:
                self._compare(name, row, json.loads(content))
            with self._answered:
                self.statuses[status] += 1
                self._answered.notify_all()
        if connection is not None:
            connection.close()

    def _compare(self, name: str, row: int, answer: dict[str, object]) -> None:
        version = answer["model_version"]
        known = self.expected.get((name, str(version)))
        outputs = torch.tensor(answer["outputs"][0]["data"])  # type: ignore[index]
        if known is None or not torch.allclose(outputs, known[row], rtol=TOLERANCE, atol=TOLERANCE):
            self.wrong.append(f"{name} {version}, row {row}: {outputs}")


def children(process: int) -> list[int]:
    """The processes that a process has forked."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
