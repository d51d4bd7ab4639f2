"""A method that waits in the middle of a run until its process is ended, and a pipe that shows where it is.

A test waits for the pipe's line, which means that the method waits in its second task, and for the pipe's end, which
means that no process of it is left: the system closes a pipe with its last writer. So nothing depends on how fast
anything runs.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.timing import PATIENCE

MODULE = '''
"""Methods that wait at a gate in their second task, if there is one beside this file."""

import os
import threading
from pathlib import Path

from halrp import Halrp
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.stl import Separate

GATE = Path(__file__).with_name("gate")


def wait_for_ever():
    pipe = GATE.open("w")
    pipe.write(f"{os.getpid()}\\n")
    pipe.flush()
    threading.Event().wait()


class Gated(Separate):
    """Single-task learning."""

    def learn(self, task):
        if len(self.nets) == 1 and GATE.exists():
            wait_for_ever()
        super().learn(task)


class GatedHalrp(HalrpMethod):
    """HALRP."""

    def __init__(self, context):
        super().__init__(context, Halrp.budget(growth_per_task=0.2))

    def learn(self, task):
        if self.learner is not None and len(self.learner.tasks) == 1 and GATE.exists():
            wait_for_ever()
        super().learn(task)
'''


class Gate:
    """The pipe of one gate, and what was read from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self.handle = self._opened()

    def reached(self, sweep: subprocess.Popen[str] | None = None) -> int:
        """Wait until the method waits; return its process. A sweep that ends before that is a failure."""
        text = b""
        while not text.endswith(b"\n"):
            text += (read := self._read(sweep))
            if not read:  # an earlier writer has gone; only a handle without a history waits for the next one
                before, self.handle = self.handle, self._opened()
                os.close(before)
        return int(text)

    def left(self) -> None:
        """Wait until no process has the pipe open any more."""
        while self._read():
            pass

    def open(self) -> None:
        """Let methods that come to the gate from now on pass."""
        self.path.unlink(missing_ok=True)

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def _read(self, sweep: subprocess.Popen[str] | None = None) -> bytes:
        deadline = time.monotonic() + PATIENCE
        while not select.select([self.handle], [], [], 1.0)[0]:
            assert time.monotonic() < deadline, "the gate is not reached, or not left"
            assert sweep is None or sweep.poll() is None, "the sweep has ended"
        return os.read(self.handle, 4096)


@contextmanager
def gated(folder: Path, module: str) -> Iterator[Gate]:
    """Write the method's module to a folder, with a gate that is open after the block."""
    (folder / f"{module}.py").write_text(MODULE)
    gate = Gate(folder / "gate")
    try:
        yield gate
    finally:
        os.close(gate.handle)
        gate.open()
