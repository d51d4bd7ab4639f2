"""A cell: one run of a method on a stream, and its raw record.

A record holds what was measured and nothing derived from it: after each task the accuracy on every task seen so far,
what is stored, the seconds it took, the ranks. Tables are computed from records, never the other way round.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from halrp import Recipe, __version__, draws
from halrp.lab import backbones, methods, streams
from halrp.lab.methods.halrp import HalrpMethod
from halrp.train import Notify


@dataclass(frozen=True)
class Cell:
    """What one run is made of."""

    method: str
    stream: str
    backbone: str
    order: str = "A"
    seed: int = 0
    fraction: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the method's preset."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Settings of `Recipe` that differ from its defaults."""
    tasks: int | None = None
    """Learn only so many tasks of the stream; None means all."""

    @property
    def name(self) -> str:
        """A file name that says what the cell is, with a hash of everything it is made of."""
        digest = format(draws.seed_of(json.dumps(asdict(self), sort_keys=True)) % 16**6, "06x")
        share = f"{100 * self.fraction:g}"
        return f"{self.stream}-{self.backbone}-{share}-{self.method}-{self.order}{self.seed}-{digest}"


def run(
    cell: Cell, data: str | os.PathLike[str] | None = None, progress: Notify | None = None
) -> Iterator[dict[str, Any]]:
    """Run a cell, yielding one raw row after each task."""
    stream = streams.load(cell.stream, cell.order, cell.seed, cell.fraction, data)[: cell.tasks]
    context = methods.Context(
        build=lambda classes, seed: backbones.build(cell.backbone, classes=classes, seed=seed),
        recipe=Recipe(**cell.recipe),
        seed=cell.seed,
        progress=progress,
    )
    method = methods.make(cell.method, context, **cell.settings)
    tests = []
    for position in range(len(stream)):
        task = stream[position]
        tests.append(task.test)
        began = time.perf_counter()
        method.learn(task)
        seconds = time.perf_counter() - began
        accuracies = [_accuracy(method, split, index) for index, split in enumerate(tests)]
        size = method.stored()
        row: dict[str, Any] = {
            "position": position,
            "identity": task.identity,
            "task": task.name,
            "classes": task.classes,
            "examples": len(task.train.y),
            "test": accuracies,
            "parameters": size.parameters,
            "bytes": size.bytes,
            "seconds": round(seconds, 3),
        }
        if isinstance(method, HalrpMethod) and method.learner is not None:
            delta = method.learner.tasks[task.name]
            row |= {
                "ranks": delta.ranks,
                "view": delta.view,
                "delta_parameters": delta.parameters,
                "paper_count": delta.paper_count(),
                "paper_count_all": sum(d.paper_count() for d in method.learner.tasks.values() if d.owned),
                "base_parameters": method.learner.base_parameters,
            }
        yield row


def record(cell: Cell, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A finished cell as one JSON object: its configuration, where it ran, and its raw rows."""
    return {
        "cell": asdict(cell),
        "environment": {
            "halrp": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
        "rows": rows,
    }


def write(folder: str | os.PathLike[str], cell: Cell, rows: list[dict[str, Any]]) -> Path:
    """Write a finished cell's record under a temporary name and move it into place."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{cell.name}.json"
    handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record(cell, rows), file, indent=1)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def _accuracy(method: methods.Method, split: streams.Split, task: int) -> float:
    guess = method.predict(split.x, task).argmax(1)
    hits = guess == split.y.to(guess.device)
    return round(float(hits.float().mean()), 6)
