"""Running a cell: raw rows as they come, a state to go on from, and the record at the end.

After each task the rows so far and all that the method has learned are moved into place as one file, `NAME.unfinished`.
A run that is killed goes on from there and ends with the record that an uninterrupted one would have written, times
aside. When the last task is learned the rows become the record, `NAME.json`, and the other file goes.

A record holds what was measured and nothing derived from it: after each task the accuracy on every task seen so far,
what is stored, the seconds and the memory it took. Tables are computed from records, never the other way round.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from halrp import __version__
from halrp.errors import HalrpError, WriteError
from halrp.lab import backbones, methods, streams
from halrp.lab.records import schema
from halrp.lab.records.schema import UNFINISHED, read, without_times
from halrp.lab.run import memory
from halrp.lab.run.cell import Cell
from halrp.store import atomic
from halrp.training.progress import Notify, Progress

__all__ = [
    "UNFINISHED", "WAIT", "Kept", "Record", "Row", "StreamDiffers", "Watched", "accuracy", "environment", "execute",
    "read", "record", "run", "without_times", "write",
]  # fmt: skip

WAIT = 2.0
"""Seconds to wait for a process that may be about to end its run of the same cell."""

Row = dict[str, Any]
Record = dict[str, Any]


class StreamDiffers(HalrpError, ValueError):  # noqa: N818  (reads as what it says)
    """The data at hand make another stream than the cell names."""


def execute(
    cell: Cell,
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: Notify | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Record:
    """Run a cell, or what is left of it, and return its record, which is then in `folder`; a finished one is read.

    A cell that another process runs for the same folder is a `LockedError`.
    """
    folder = Path(folder)
    target = folder / f"{cell.name}.json"
    if target.exists():
        return read(target)
    _writable(folder)
    kept = Kept(folder, cell)
    with kept.alone():
        if target.exists():  # another process has run it meanwhile
            found = read(target)
        else:
            rows = []
            for row in run(cell, data=data, device=device, progress=progress, kept=kept):
                rows.append(row)
                if on_row is not None:
                    on_row(row)
            found = record(cell, rows)
            write(folder, found)
        kept.clear()
    return found


def run(
    cell: Cell,
    *,
    data: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: Notify | None = None,
    kept: Kept | None = None,
) -> Iterator[Row]:
    """Run a cell, yielding one raw row after each task; with `kept`, rows that it knows are yielded and not run."""
    device = torch.device(device)
    stream = streams.load(cell.stream, cell.order, cell.seed, cell.fraction, data)
    if stream.name != cell.stream:
        raise StreamDiffers(
            f"the data at hand make the stream {stream.name!r}, not {cell.stream!r}; name it so, or get the whole data"
        )
    stream = stream[: cell.tasks]
    stages: dict[str, float] = {}

    def tell(event: Progress) -> None:
        if event.loss is not None:
            stages[event.stage] = event.seconds
        if progress is not None:
            progress(event)

    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build(cell.backbone, classes, seed=seed, shape=stream.shape, **cell.network).to(device)

    context = methods.Context(
        build, cell.make_recipe(), cell.seed, len(stream), cell.order, tell, None if kept is None else kept.work
    )
    method = cell.make_method(context)
    known = [] if kept is None else kept.restore(method)
    watched: list[Watched] = []
    for position in range(len(stream)):
        task = stream[position]
        watched.append(Watched(stream, position, task))
        if position < len(known):
            yield known[position]
            continue
        stages.clear()
        memory.forget_peak(device)
        began = time.perf_counter()
        method.learn(task)
        _wait(device)
        seconds = time.perf_counter() - began
        highest = memory.peak(device)
        ready = not method.joint or position == len(stream) - 1
        row: Row = {
            "position": position,
            "identity": task.identity,
            "task": task.name,
            "classes": task.classes,
            "examples": len(task.train.y),
            "val": [None] * (position + 1),
            "test": [None] * (position + 1),
        }
        if ready:
            for i, watch in enumerate(watched):
                row["val"][i], row["test"][i] = watch.accuracies(method, task if i == position else None)
            size = method.stored()
            row |= {"parameters": size.parameters, "bytes": size.bytes, "counted": method.counted(), **method.details()}
        row |= {
            "seconds": round(seconds, 3),
            "stages": {name: round(spent, 3) for name, spent in stages.items()},
            "peak_bytes": highest,
        }
        known.append(row)
        if kept is not None and ready and position < len(stream) - 1:
            kept.save(method, known)
        yield row


class Watched:
    """A task whose accuracy is told again and again, and measured again when its logits have changed.

    The logits of a few rows are computed every time. Where not one bit of them differs from those that the last
    measurement began with, the task's network has not changed and the measurement stands. Only these rows are held; a
    measurement makes the task's other examples anew, so that what a run needs does not grow with them.
    """

    ROWS = 8

    def __init__(self, stream: streams.Stream, position: int, task: streams.Task) -> None:
        """Hold a few rows of the task at a position of a stream."""
        self.stream, self.position = stream, position
        apart = max(1, len(task.test.x) // self.ROWS)  # rows of several classes, should they lie in their order
        self.rows = task.test.x[::apart][: self.ROWS].clone()
        self.seen: Tensor | None = None
        self.measured = (0.0, 0.0)

    def accuracies(self, method: methods.Method, task: streams.Task | None = None) -> tuple[float, float]:
        """The shares of validation and of test examples that a method tells right; `task`, if it is at hand."""
        probe = method.predict(self.rows, self.position)
        if self.seen is None or not torch.equal(probe, self.seen):
            self.seen, task = probe, task or self.stream[self.position]
            self.measured = accuracy(method, task.val, self.position), accuracy(method, task.test, self.position)
        return self.measured


def accuracy(method: methods.Method, split: streams.Split, task: int) -> float:
    """The share of a split's examples for which the largest logit is the right one."""
    guess = method.predict(split.x, task).argmax(1)
    return round(float((guess == split.y.to(guess.device)).float().mean()), 6)


class Kept:
    """Where an interrupted run of one cell stood."""

    def __init__(self, folder: Path, cell: Cell) -> None:
        """Name the place; nothing is read or written yet."""
        self.cell = cell
        self.path = folder / f"{cell.name}{UNFINISHED}"
        self.work = folder / f".{cell.name}.work"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only process that runs this cell, for a block."""
        with atomic.locked(self.work, wait=WAIT):
            try:
                yield
            finally:
                if all(path.name == "lock" for path in self.work.glob("*")):
                    shutil.rmtree(self.work, ignore_errors=True)

    def save(self, method: methods.Method, rows: list[Row]) -> None:
        """Keep rows and state in place of earlier ones."""
        state = method.state()
        facts = json.dumps({"cell": self.cell.canonical(), "rows": rows, "facts": state.values})
        content = safetensors.torch.save({n: atomic.copy_of(t) for n, t in state.tensors.items()}, {"facts": facts})
        atomic.write(self.path, content, durable=False)
        for folder in self.work.glob("*"):  # trainings of the task just learned; HALRP's store clears its own
            if folder.name != "store":
                shutil.rmtree(folder, ignore_errors=True)

    def restore(self, method: methods.Method) -> list[Row]:
        """Give a method the state that was kept, if there is one of this very cell, and return the rows before it."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                facts = json.loads(file.metadata()["facts"])
                if facts["cell"] != json.loads(json.dumps(self.cell.canonical())):
                    return []
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
            return []
        method.restore(methods.State(tensors, facts["facts"]))
        rows: list[Row] = facts["rows"]
        return rows

    def clear(self) -> None:
        """Forget the run."""
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.work, ignore_errors=True)


def record(cell: Cell, rows: list[Row]) -> Record:
    """A finished cell as one JSON object: see `halrp.lab.records.schema`."""
    return schema.seal(
        {
            "cell": cell.canonical(),
            "resolved": cell.resolved(),
            "method": cell.method_properties(),
            "environment": environment(),
            "rows": rows,
        }
    )


@cache
def environment() -> dict[str, Any]:
    """What a run's numbers may depend on besides its configuration."""
    return {
        "halrp": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the sources, with a mark when they differ from it; None outside a repository."""
    where = Path(__file__).resolve().parent
    try:
        ask = ["git", "-C", str(where), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write(folder: str | os.PathLike[str], found: Record) -> Path:
    """Write a record, atomically."""
    path = Path(folder) / f"{Cell.of(found['cell']).name}.json"
    atomic.write(path, (json.dumps(found, indent=1) + "\n").encode())
    return path


def _writable(folder: Path) -> None:
    """See that records can be written to a folder, before hours are spent on one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WriteError(
            f"results cannot be written to {folder}: {error.strerror or error}; choose another folder"
        ) from error


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
