"""Run a cell: a raw row after each task, a state to resume from, and the record at the end.

After each task the rows so far and the method's state are written atomically as one file, `NAME.unfinished` (see
`halrp.lab.run.state`). A run that is killed resumes from it and ends with the record that an uninterrupted one would
have written, times aside. After the last task the rows become the record, `NAME.json`, and the other file is deleted.

A record has what was measured and nothing derived from it: after each task the accuracy on every task so far, what is
stored, and the time and memory to learn it. Tables are computed from records, never the other way round.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halrp.errors import DamagedError, HalrpError, SettingError, StoreError, WriteError
from halrp.lab import backbones, methods, registry, streams
from halrp.lab.methods.features import Saved
from halrp.lab.records import schema
from halrp.lab.records.schema import UNFINISHED, read, without_times
from halrp.lab.run import inferred, memory
from halrp.lab.run.cell import Cell
from halrp.lab.run.environment import environment
from halrp.lab.run.state import Row, RunState, fingerprint
from halrp.store import atomic
from halrp.training.progress import Notify, Progress

__all__ = [
    "UNFINISHED",
    "CachedAccuracy",
    "Record",
    "Row",
    "RunState",
    "StreamDiffers",
    "check_sent",
    "environment",
    "execute",
    "read",
    "read_finished",
    "record",
    "run",
    "score",
    "tidy",
    "without_times",
    "write",
]

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
        tidy(cell, folder)
        return read_finished(cell, target)
    _check_writable(folder)
    state = RunState(folder, cell)
    with state.locked():
        if target.exists():  # another process has finished it meanwhile
            finished = read_finished(cell, target)
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

    def make() -> methods.Method:
        return cell.make_method(context)

    work = None if state is None else state.checkpoints
    given = registry.backbone(cell.backbone).pretrained
    context = methods.Context(build, cell.make_recipe(), cell.seed, len(stream), cell.order, notify, work, given)
    resumed = None if state is None else _resume(state, stream, make)
    method, rows, fingerprints, accuracies = resumed or (make(), [], [], [])
    yield from rows[:]
    for position in range(len(rows), len(stream)):
        task = stream[position]
        accuracies.append(CachedAccuracy(stream, position, task))
        fingerprints.append("" if state is None else fingerprint(task))
        stages.clear()
        costs = _learn(method, task, device, stages)
        last = position == len(stream) - 1
        ready = last or not method.joint
        rows.append(_row(position, task) | (_measure(method, accuracies, task) if ready else {}) | costs)
        if last:
            rows[-1] |= inferred.measure(method, stream, task)
        if state is not None and ready and not last:
            state.save(method, rows, fingerprints)
        yield rows[position]


def _resume(
    state: RunState, stream: streams.Stream, make: Callable[[], methods.Method]
) -> tuple[methods.Method, list[Row], list[str], list[CachedAccuracy]] | None:
    """What a saved state gives a run to start with; None if there is no state that fits."""
    saved = state.load(len(stream))
    if saved is None:
        return None
    accuracies = []
    for position, expected in enumerate(saved.data):
        task = stream[position]
        if fingerprint(task) != expected:
            state.set_aside(f"of other data: the examples of {task.name!r} are not those that were learned")
            return None
        accuracies.append(CachedAccuracy(stream, position, task))
    method = state.restore(saved, make)
    return None if method is None else (method, [*saved.rows], [*saved.data], accuracies)


def _learn(method: methods.Method, task: streams.Task, device: torch.device, stages: dict[str, float]) -> Row:
    """Learn a task, and return what it cost; `stages` are filled with seconds meanwhile."""
    memory.reset_peak(device)
    began, saved = time.perf_counter(), Saved.seconds
    method.learn(task)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began + Saved.seconds - saved  # as if features had not been cached
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
            self.accuracies = (
                score(method, task, task.val, self.position),
                score(method, task, task.test, self.position),
            )
        return self.accuracies


def score(method: methods.Method, task: streams.Task, split: streams.Split, position: int) -> float:
    """The score of a split by the task's objective: for classification, the share of correct examples."""
    outputs = method.predict(split.x, position).float()
    return round(float(task.objective.score(outputs, task.objective.check(split.y, task.name).to(outputs.device))), 6)


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


def read_finished(cell: Cell, path: Path) -> Record:
    """Read the record of a finished cell; one of another run under the cell's name is a `DamagedError`."""
    return check_finished(cell, read(path), str(path))


def check_finished(cell: Cell, raw: Record, where: str) -> Record:
    """The record, once it is known to be one of this cell: the same configuration, and no value resolved otherwise."""
    try:
        same = Cell.of(raw["cell"]).canonical() == cell.canonical()
    except (SettingError, TypeError, ValueError):
        same = False
    if not same:
        raise DamagedError(f"{where} is the record of another cell than {cell.name}; move it away")
    stored, expected = raw.get("resolved") or {}, json.loads(json.dumps(cell.resolved()))
    for part in ("settings", "recipe", "network"):
        for name, value in (stored.get(part) or {}).items():  # a setting that one of both lacks is newer than the other
            if name in expected[part] and expected[part][name] != value:
                raise DamagedError(
                    f"{where} is of a run with {part}.{name}={value!r}, where {cell.name} has "
                    f"{expected[part][name]!r}; move it away"
                )
    return raw


def check_sent(cell: Cell, raw: Any) -> Record:
    """A record that another process sent, once it is known to be a complete one of this cell."""
    where = f"what a worker sent for {cell.name}"
    try:
        content = json.dumps(raw)
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"{where} is not a record ({type(error).__name__}: {error})") from error
    if len(content) > schema.LARGEST:
        raise DamagedError(f"{where} is not a record: it has {len(content):,} characters")
    record = schema.complete(json.loads(content), Path(where))
    if "checksum" not in record:
        raise DamagedError(f"{where} is not a record of this version: it has no checksum")
    schema.check(record)
    return check_finished(cell, record, where)


def serialise(record: Record) -> bytes:
    """The content of a record's file."""
    return (json.dumps(record, indent=1) + "\n").encode()


def write(folder: str | os.PathLike[str], record: Record) -> Path:
    """Write a record atomically; it is on the disk before the state of its run is deleted."""
    path = Path(folder) / f"{Cell.of(record['cell']).name}.json"
    atomic.write(path, serialise(record))
    atomic.flush_folder(path.parent)
    return path


def tidy(cell: Cell, folder: str | os.PathLike[str]) -> None:
    """Delete what a run left that was killed after it had written its record; what cannot be deleted stays."""
    state = RunState(Path(folder), cell)
    if state.path.exists() or state.work.exists():
        with suppress(StoreError), state.locked():
            state.delete()


def _check_writable(folder: Path) -> None:
    """Check that records can be written to a folder, before hours are spent on one."""
    try:
        atomic.make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WriteError(
            f"results cannot be written to {folder}: {error.strerror or error}; choose another folder"
        ) from error
