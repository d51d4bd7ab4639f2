"""What ranks by another estimate of importance are worth after fine-tuning, at the same bytes.

The first task of a CIFAR-100 stream trains LeNet with the default recipe; each later task is learned from the same base
with each estimate and each bound in bytes. Accuracy is that on training images which none of the tasks uses, so that a
default may be chosen by it. Differences to the default are paired over tasks, ± their standard error.

- `default`: the mean diagonal entry of the Fisher, as the released code has it;
- `kronecker`: the same components, scored by tr(G E A Eᵀ) of each (`Scored`);
- `whitened`: components that are optimal in that metric (`Whitened`);
- `convolutions × 4`: the default, with convolutions valued four times as high.

    python -m benchmarks.ranks --data DIR [--fraction 0.05] [--tasks 9] [--seeds 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, MeanSquare, Recipe, Whitened
from halrp.lab import backbones
from halrp.lab.streams import Stream, load
from halrp.method.decompose import damped, plain
from halrp.store import atomic
from halrp.training.batches import Data

STREAM = "cifar100-split"
BOUNDS = (40_000, 78_000, 156_000, 312_000)
DEFAULT = "default"
HELD_OUT = 100
"""Images of each class that no task trains on."""
DAMPING = 1e-2


@dataclass(frozen=True)
class Scored:
    """The paper's components, each scored by what dropping it alone costs under the layer's Kronecker factors."""

    needs_curvature: ClassVar[bool] = True

    def __call__(
        self, matrix: Tensor, curvature: tuple[Tensor, Tensor] | None = None, rank: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (u, sigma, v) with sigma² the predicted loss, descending, and u scaled so that their product stays."""
        u, sigma, v = plain(matrix, rank)
        if curvature is None:
            return u, sigma, v
        A, G = (damped(moment, DAMPING) for moment in curvature)
        cost = (sigma.square() * (u * (G @ u)).sum(0) * (v * (A @ v)).sum(0)).clamp(min=0).sqrt()
        order = cost.argsort(descending=True, stable=True)
        u = u * torch.where(cost > 0, sigma / torch.where(cost > 0, cost, 1), 0)
        return u[:, order], cost[order], v[:, order]

    def dropped_loss(self, matrix: Tensor, curvature: tuple[Tensor, Tensor]) -> Tensor:
        """tr(G B A Bᵀ)."""
        A, G = (damped(moment, DAMPING) for moment in curvature)
        return ((G @ matrix @ A) * matrix).sum()


@dataclass(frozen=True)
class Times:
    """The default's importance, with convolutions valued `factor` times as high."""

    factor: float
    counts_kernel: ClassVar[bool] = True

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        """Return a scalar tensor for each weight."""
        measured = MeanSquare()(module, weights, data, batch)
        return {name: value * (self.factor if weights[name].dim() > 2 else 1) for name, value in measured.items()}


def methods(bound: int) -> dict[str, Halrp]:
    """The estimates that are compared."""
    default = Halrp.budget(bytes_per_task=bound)
    return {
        DEFAULT: default,
        "kronecker": replace(default, decompose=Scored()),
        "whitened": replace(default, decompose=Whitened()),
        "convolutions × 4": replace(default, importance=Times(4.0)),
    }


def held_out(stream: Stream, complete: Stream, number: int) -> tuple[Tensor, Tensor]:
    """Images of a task and their labels that are neither among its training nor among its validation images."""
    task, images = stream[number], complete[number].train
    parts = [task.train] if task.val is None else [task.train, task.val]
    known = {image.numpy().tobytes() for part in parts for image in part.x}
    free = [i for i, image in enumerate(images.x) if image.numpy().tobytes() not in known]
    chosen = torch.tensor(free[-HELD_OUT * task.classes :])
    return images.x[chosen], images.y[chosen]


def measured(fraction: float, tasks: int, seed: int, data: Path) -> list[dict[str, Any]]:
    """A row for each task, bound and estimate."""
    stream, complete = load(STREAM, "A", seed, fraction, data), load(STREAM, "A", seed, 1.0, data)
    model = backbones.build("lenet", stream[0].classes, seed=seed, shape=stream.shape)
    learner = Learner(model, recipe=Recipe.auto(epochs=20), seed=seed, progress=None)
    learner.learn(stream[0].name, stream[0].train, val=stream[0].val)
    rows = []
    for number in range(1, 1 + tasks):
        x, y = held_out(stream, complete, number)
        for bound in BOUNDS:
            for estimate, learner.method in methods(bound).items():
                task = stream[number]
                delta = learner.learn(task.name, task.train, val=task.val)
                accuracy = 100 * float((learner.predict(x, task.name).argmax(1) == y).double().mean())
                learner.remove(task.name)
                row = {"seed": seed, "task": task.name, "bound": bound, "estimate": estimate, "accuracy": accuracy}
                rows.append(row | {"bytes": delta.bytes, "view": delta.view, "ranks": delta.ranks})
                print(f"{seed} {task.name} {bound:,} {estimate}: {accuracy:.1f}", flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each bound and estimate: accuracy, and its paired difference to the default."""
    by_fit = {(row["bound"], row["estimate"], row["seed"], row["task"]): row["accuracy"] for row in rows}
    lines = []
    for bound, estimate in dict.fromkeys((row["bound"], row["estimate"]) for row in rows):
        fits = [(row["seed"], row["task"]) for row in rows if (row["bound"], row["estimate"]) == (bound, estimate)]
        gains = [by_fit[bound, estimate, *fit] - by_fit[bound, DEFAULT, *fit] for fit in fits]
        line = {"bound": bound, "estimate": estimate, "fits": len(fits)}
        line["accuracy"] = statistics.fmean(by_fit[bound, estimate, *fit] for fit in fits)
        several = estimate != DEFAULT and len(gains) > 1
        line["gain"] = statistics.fmean(gains) if several else None
        line["error"] = statistics.stdev(gains) / math.sqrt(len(gains)) if several else None
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--tasks", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fits = [
        row for seed in range(options.seeds) for row in measured(options.fraction, options.tasks, seed, options.data)
    ]
    rows = summary(fits)
    for row in rows:
        gain = "" if row["gain"] is None else f"{row['gain']:+.2f} ± {row['error']:.2f}"
        print(f"{row['bound']:>9,}  {row['estimate']:<18}{row['accuracy']:6.2f}  {gain}")
    if options.json:
        record = {"torch": torch.__version__, "stream": STREAM, "fraction": options.fraction, "rows": rows}
        atomic.write(options.json, (json.dumps(record | {"fits": fits}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
