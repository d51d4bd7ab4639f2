"""Run a cell: a raw row after each task, a state to resume from, and the record at the end.

After each task the rows so far and the method's state are written atomically as one file, `NAME.unfinished`. A run that
is killed resumes from it and ends with the record that an uninterrupted one would have written, times aside. After the
last task the rows become the record, `NAME.json`, and the other file is deleted.

A record has what was measured and nothing derived from it: after each task the accuracy on every task so far, what is
stored, and the time and memory to learn it. Tables are computed from records, never the other way round.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from halrp.errors import HalrpError, WriteError
from halrp.lab import backbones, methods, streams
from halrp.lab.records import schema
from halrp.lab.records.schema import UNFINISHED, read, without_times
from halrp.lab.run import memory
from halrp.lab.run.cell import Cell
from halrp.lab.run.environment import environment
from halrp.store import atomic
from halrp.store.tensors import copy_of
from halrp.training.progress import Notify, Progress

__all__ = [
    "UNFINISHED",
    "WAIT",
    "CachedAccuracy",
    "Record",
    "Row",
    "RunState",
    "StreamDiffers",
    "accuracy",
    "environment",
    "execute",
    "read",
    "record",
    "run",
    "without_times",
    "write",
]

WAIT = 2.0
"""Seconds to wait for a process that may be about to finish the same cell."""

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
    on_row: Callable[[Row], None] = lambda row: None,
) -> Record:
    """Run a cell, or the rest of it, write its record to `folder` and return it; the record of a finished cell is read.

    A cell that another process runs for the same folder is a `LockedError`.
    """
    folder = Path(folder)
    target = folder / f"{cell.name}.json"
    if target.exists():
        return read(target)
    _check_writable(folder)
    state = RunState(folder, cell)
    with state.locked():
        if target.exists():  # another process has finished it meanwhile
            finished = read(target)
        else:
            rows = []
            for row in run(cell, data=data, device=device, progress=progress, state=state):
                rows.append(row)
                on_row(row)
            finished = record(cell, rows)
            write(folder, finished)
        state.delete()
    return finished


def run(
    cell: Cell,
    *,
    data: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: Notify | None = None,
    state: RunState | None = None,
) -> Iterator[Row]:
    """Run a cell, yielding one raw row after each task; rows of a `state` are yielded without learning again."""
    device = torch.device(device)
    stream = streams.load(cell.stream, cell.order, cell.seed, cell.fraction, data)
    if stream.name != cell.stream:
        raise StreamDiffers(
            f"the data at hand make the stream {stream.name!r}, not {cell.stream!r}; use that name, or get all "
            "of the data"
        )
    stream = stream[: cell.tasks]
    stages: dict[str, float] = {}

    def notify(event: Progress) -> None:
        if event.loss is not None:
            stages[event.stage] = event.seconds
        if progress is not None:
            progress(event)

    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build(cell.backbone, classes, seed=seed, shape=stream.shape, **cell.network).to(device)

    work = None if state is None else state.work
    context = methods.Context(build, cell.make_recipe(), cell.seed, len(stream), cell.order, notify, work)
    method = cell.make_method(context)
    rows = [] if state is None else state.restore(method)
    accuracies: list[CachedAccuracy] = []
    for position in range(len(stream)):
        task = stream[position]
        accuracies.append(CachedAccuracy(stream, position, task))
        if position < len(rows):
            yield rows[position]
            continue
        stages.clear()
        costs = _learn(method, task, device, stages)
        last = position == len(stream) - 1
        ready = last or not method.joint
        rows.append(_row(position, task) | (_measure(method, accuracies, task) if ready else {}) | costs)
        if state is not None and ready and not last:
            state.save(method, rows)
        yield rows[position]


def _learn(method: methods.Method, task: streams.Task, device: torch.device, stages: dict[str, float]) -> Row:
    """Learn a task, and return what it cost; `stages` are filled with seconds meanwhile."""
    memory.reset_peak(device)
    began = time.perf_counter()
    method.learn(task)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 3),
        "stages": {name: round(spent, 3) for name, spent in stages.items()},
        "peak_bytes": memory.peak(device),
    }


def _row(position: int, task: streams.Task) -> Row:
    """A row about a task, without measurements: a method that learns tasks jointly has none before the last one."""
    return {
        "position": position,
        "identity": task.identity,
        "task": task.name,
        "classes": task.classes,
        "examples": len(task.train.y),
        "val": [None] * (position + 1),
        "test": [None] * (position + 1),
    }


def _measure(method: methods.Method, accuracies: list[CachedAccuracy], newest: streams.Task) -> Row:
    """The accuracy on every task so far, and what is stored."""
    last = len(accuracies) - 1
    shares = [accuracy.measure(method, newest if i == last else None) for i, accuracy in enumerate(accuracies)]
    size = method.stored()
    return {
        "val": [val for val, _ in shares],
        "test": [test for _, test in shares],
        "parameters": size.parameters,
        "bytes": size.bytes,
        "counted": method.counted(),
        **method.details(),
    }


class CachedAccuracy:
    """The accuracy on one task, which is measured again only if the method's logits for it have changed.

    The logits of a few rows are computed every time. If they are bit-identical to those of the last measurement, the
    task's network has not changed and the measurement is valid. Only these rows are held in memory; a measurement
    loads the task's other examples again, so that the memory of a run does not grow with its tasks' data.
    """

    ROWS = 8

    def __init__(self, stream: streams.Stream, position: int, task: streams.Task) -> None:
        """Hold a few rows of the task at a position of a stream."""
        self.stream, self.position = stream, position
        step = max(1, len(task.test.x) // self.ROWS)  # rows of several classes, if they are sorted by class
        self.rows = task.test.x[::step][: self.ROWS].clone()
        self.logits: Tensor | None = None
        self.accuracies = (0.0, 0.0)

    def measure(self, method: methods.Method, task: streams.Task | None = None) -> tuple[float, float]:
        """The accuracies on validation and test data, as shares; `task`, if it is loaded already."""
        logits = method.predict(self.rows, self.position)
        if self.logits is None or not torch.equal(logits, self.logits):
            self.logits, task = logits, task or self.stream[self.position]
            self.accuracies = accuracy(method, task.val, self.position), accuracy(method, task.test, self.position)
        return self.accuracies


def accuracy(method: methods.Method, split: streams.Split, task: int) -> float:
    """The share of a split's examples whose largest logit is that of the correct class."""
    predicted = method.predict(split.x, task).argmax(1)
    return round(float((predicted == split.y.to(predicted.device)).float().mean()), 6)


class RunState:
    """The files from which an interrupted run of one cell resumes."""

    def __init__(self, folder: Path, cell: Cell) -> None:
        """Set the paths; nothing is read or written yet."""
        self.cell = cell
        self.path = folder / f"{cell.name}{UNFINISHED}"
        self.work = folder / f".{cell.name}.work"
        """A folder for checkpoints of the task that is being learned."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that runs this cell, for a block."""
        with atomic.locked(self.work, wait=WAIT):
            try:
                yield
            finally:
                if all(path.name == "lock" for path in self.work.glob("*")):
                    shutil.rmtree(self.work, ignore_errors=True)

    def save(self, method: methods.Method, rows: list[Row]) -> None:
        """Write rows and the method's state, in place of earlier ones."""
        state = method.state()
        metadata = json.dumps({"cell": self.cell.canonical(), "rows": rows, "facts": state.values})
        content = safetensors.torch.save({n: copy_of(t) for n, t in state.tensors.items()}, {"facts": metadata})
        atomic.write(self.path, content, durable=False)
        for folder in self.work.glob("*"):  # checkpoints of the task just learned; HALRP's store deletes its own
            if folder.name != "store":
                shutil.rmtree(folder, ignore_errors=True)

    def restore(self, method: methods.Method) -> list[Row]:
        """Restore a method from the saved state, if there is one of this very cell, and return its rows."""
        try:
            with safetensors.safe_open(self.path, "pt") as file:
                metadata = json.loads(file.metadata()["facts"])
                if metadata["cell"] != json.loads(json.dumps(self.cell.canonical())):
                    return []
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError):
            return []
        method.restore(methods.State(tensors, metadata["facts"]))
        rows: list[Row] = metadata["rows"]
        return rows

    def delete(self) -> None:
        """Delete the state of a finished run."""
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


def write(folder: str | os.PathLike[str], record: Record) -> Path:
    """Write a record atomically."""
    path = Path(folder) / f"{Cell.of(record['cell']).name}.json"
    atomic.write(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def _check_writable(folder: Path) -> None:
    """Check that records can be written to a folder, before hours are spent on one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WriteError(
            f"results cannot be written to {folder}: {error.strerror or error}; choose another folder"
        ) from error
