"""The state from which an interrupted run of a cell resumes, and the folder of its checkpoints.

A state is used by the run that it belongs to and by no other: same cell, same resolved configuration, same versions of
the library and torch, same examples, and a method that gives the saved state back when it has restored it. Any other
file is set aside with a warning, and the cell starts again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from halrp import __version__
from halrp.errors import HalrpError, RunStateWarning, WriteError
from halrp.lab import methods, streams
from halrp.lab.methods.comparison import deserialised, same_state, serialised
from halrp.lab.records import state_file
from halrp.lab.records.schema import UNFINISHED
from halrp.lab.records.state_file import Saved
from halrp.lab.run.cell import Cell
from halrp.store import atomic
from halrp.store.tensors import copy_of

WAIT = 2.0
"""Seconds to wait for a process that may be about to finish the same cell."""
SET_ASIDE = ".set-aside"
"""Ending of the name of a state that was not used."""

Row = dict[str, Any]


class RunState:
    """The files from which an interrupted run of one cell resumes."""

    def __init__(self, folder: Path, cell: Cell) -> None:
        """Set the paths; nothing is read or written yet."""
        self.cell = cell
        self.path = folder / f"{cell.name}{UNFINISHED}"
        self.work = folder / f".{cell.name}.work"
        """The folder of the lock and of checkpoints."""
        self.origin = origin_of(cell)
        digest = hashlib.sha256(json.dumps(self.origin, sort_keys=True).encode()).hexdigest()
        self.checkpoints = self.work / digest[:16]
        """A folder for checkpoints of the task that is being learned; runs of another origin have another."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that runs this cell, for a block."""
        with atomic.locked(self.work, wait=WAIT):
            for path in self.work.iterdir():
                if path.is_dir() and path != self.checkpoints:
                    shutil.rmtree(path, ignore_errors=True)
            try:
                yield
            finally:
                with suppress(OSError):  # checkpoints that a later run needs
                    self.checkpoints.rmdir()
                if not self.checkpoints.exists():  # the lock is still ours: whoever waits for it makes another
                    shutil.rmtree(self.work, ignore_errors=True)

    def save(self, method: methods.Method, rows: list[Row], data: list[str]) -> None:
        """Write rows, the fingerprints of the tasks' examples and the method's state, in place of earlier ones."""
        state = method.state()
        tensors = safetensors.torch.save({n: copy_of(t) for n, t in state.tensors.items()})
        atomic.write(self.path, state_file.pack(Saved(self.origin, data, rows, state.values, tensors)))
        if self.checkpoints.is_dir():
            for folder in self.checkpoints.iterdir():  # of the task just learned; HALRP's store deletes its own
                if folder.name != "store":
                    shutil.rmtree(folder, ignore_errors=True)

    def load(self, tasks: int) -> Saved | None:
        """The saved state, if there is one that fits this run of a stream of `tasks`; any other is set aside."""
        if not os.path.lexists(self.path):
            return None
        try:
            saved = state_file.read(self.path)
        except HalrpError as error:
            self.set_aside(str(error).removeprefix(f"{self.path} is "))
            return None
        if other := [name for name in self.origin if saved.origin.get(name) != self.origin[name]]:
            self.set_aside(f"of another run: it differs in {', '.join(other)}")
        elif len(saved.rows) >= tasks:
            self.set_aside(f"of another stream: it has {len(saved.rows)} rows before the last of {tasks} tasks")
        else:
            return saved
        return None

    def restore(self, saved: Saved, make: Callable[[], methods.Method]) -> methods.Method | None:
        """A method that continues from a saved state; None if it cannot, and the state is set aside."""
        method = make()
        try:
            state = methods.State(safetensors.torch.load(saved.tensors), saved.values)
            method.restore(state)
            if same_state(state, deserialised(serialised(method.state()))):
                return method
            reason = "the restored method has another state"
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise  # of this machine, not of the file
        except Exception as error:  # whatever a method raises on a state that is not its own
            reason = f"{type(error).__name__}: {error}"
        self.set_aside(f"not one that the method {self.cell.method!r} can continue from ({reason})")
        return None

    def set_aside(self, reason: str) -> None:
        """Rename a state that cannot be used, so that the cell starts again, and warn."""
        aside = self.path.with_name(f"{self.path.name}{SET_ASIDE}")
        try:
            os.replace(self.path, aside)
        except OSError as error:
            raise WriteError(
                f"{self.path} is {reason}, and could not be renamed to {aside.name}: {error.strerror or error}; "
                "move it away"
            ) from error
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        warnings.warn(
            f"{self.path.name} is {reason}; it was renamed to {aside.name}, and the cell starts again",
            RunStateWarning,
            stacklevel=2,
        )

    def delete(self) -> None:
        """Delete the state and the checkpoints of a finished run; what cannot be deleted stays, the record is there."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def origin_of(cell: Cell) -> dict[str, Any]:
    """What a state must share with the run that uses it, as JSON has it."""
    origin: dict[str, Any] = json.loads(
        json.dumps(
            {
                "cell": cell.canonical(),
                "resolved": cell.resolved(),
                "halrp": __version__,
                "torch": torch.__version__,
            }
        )
    )
    return origin


def fingerprint(task: streams.Task) -> str:
    """A hash of a task's name and examples: a task that is learned and the one at hand are the same data."""
    digest = hashlib.sha256(json.dumps([task.name, task.identity, task.classes]).encode())
    for split in (task.train, task.val, task.test):
        for tensor in split:
            digest.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
