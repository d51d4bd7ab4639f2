"""What each start of a delta is worth on a given base: accuracy at the probe, from a warm-up, and without components.

A network is trained on the first task of a stream and given as the base of the next ones, each learned by itself with
20 epochs. "probe" and "warm-up" have the same bound in bytes; "no components" trains head, norms, biases and scales
and nothing else. All of them see the same base, data and seeds, so differences to "no components" are paired: their
error is the standard error over seeds, each of which is another base, other images and the mean over its tasks.

    python -m benchmarks.starts [--data DIR] [--seeds 5] [--json FILE]

Without `--data` only the digits that come with scikit-learn are learned.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from halrp import Halrp, Learner, Recipe
from halrp.lab import backbones
from halrp.lab.streams import Stream, Task, load
from halrp.method.from_probe import OFFERS, FromProbe
from halrp.method.warm_up import WarmUp
from halrp.store import atomic

RECIPE = Recipe(epochs=20, batch=32)
"""For bases and warm-ups; tasks that start at the probe have the same epochs and batch, and rates by curvature."""
BOUND = 0.03
"""Bytes of a task's file, as a share of the base's."""
NONE = "no components"
TASKS = 3
STREAMS: Mapping[str, tuple[str, float]] = {"digits": ("digits-net", 1.0), "cifar100-split": ("lenet", 0.05)}
"""By stream, the network and the share of the training images."""


def methods(base_bytes: int) -> dict[str, Halrp]:
    """The starts that are compared."""
    bound = Halrp.budget(bytes_per_task=max(20_000, int(BOUND * base_bytes)))
    return {
        "probe": replace(bound, start=FromProbe()),
        "warm-up": replace(bound, start=WarmUp()),
        NONE: replace(bound, start=FromProbe(parts=tuple(part for part in OFFERS if part != "components"))),
    }


def accuracy(learner: Learner, name: str, task: Task) -> float:
    """The share of test images, in percent, that a learned task labels correctly."""
    return 100 * float((learner.predict(task.test.x, name).argmax(1) == task.test.y).float().mean())


def pretrained(name: str, shape: Any, first: Task, seed: int) -> nn.Module:
    """A network that was trained on the first task."""
    learner = Learner(
        backbones.build(name, first.classes, seed=seed, shape=shape), recipe=RECIPE, seed=seed, progress=None
    )
    learner.learn("first", first.train, val=first.val)
    return learner.export("first").requires_grad_(True)


def learned(model: nn.Module, stream: Stream, method: Halrp, seed: int) -> dict[str, float]:
    """The mean accuracy and the mean size of the tasks after the first, on a model that is given as their base."""
    recipe = RECIPE if isinstance(method.start, WarmUp) else Recipe.auto(epochs=RECIPE.epochs, batch=RECIPE.batch)
    learner = Learner(model, method=method, recipe=recipe, seed=seed, base="given", progress=None)
    rows = []
    for position in range(1, 1 + TASKS):
        task = stream[position]
        delta = learner.learn(str(position), task.train, val=task.val, classes=task.classes)
        rows.append((accuracy(learner, str(position), task), delta.bytes))
    return {"accuracy": statistics.fmean(r[0] for r in rows), "bytes": statistics.fmean(r[1] for r in rows)}


def measure(stream_name: str, seed: int, data: str | None) -> dict[str, dict[str, float]]:
    """By start, the mean accuracy and the mean size of the tasks after the first."""
    backbone, fraction = STREAMS[stream_name]
    stream = load(stream_name, "A", seed, fraction, data)
    model = pretrained(backbone, stream.shape, stream[0], seed)
    results: dict[str, dict[str, float]] = {}
    for name, method in methods(sum(p.numel() * 4 for p in model.parameters())).items():
        results[name] = learned(model, stream, method, seed)
        print(f"{stream_name}, seed {seed}, {name}: {results[name]['accuracy']:.2f} %", flush=True)
    return results


def rows_of(stream: str, seeds: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """One row for each start: accuracies by seed, their mean, the paired gain over no components, and its error."""
    rows = []
    for name in seeds[0]:
        values = [seed[name]["accuracy"] for seed in seeds]
        gains = [seed[name]["accuracy"] - seed[NONE]["accuracy"] for seed in seeds]
        row: dict[str, Any] = {"stream": stream, "name": name, "accuracies": [round(value, 3) for value in values]}
        row |= {"accuracy": round(statistics.fmean(values), 3), "gain": round(statistics.fmean(gains), 3)}
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        size = statistics.fmean(seed[name]["bytes"] for seed in seeds)
        rows.append(row | {"error": round(error, 3), "bytes": round(size)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for stream in STREAMS if options.data else ("digits",):
        rows += rows_of(stream, [measure(stream, seed, options.data) for seed in range(options.seeds)])
    for row in rows:
        print(f"{row['stream']:<16}{row['name']:<16}{row['accuracy']:7.2f} %  {row['gain']:+.2f} ± {row['error']:.2f}")
    if options.json:
        setting = {
            "epochs": RECIPE.epochs,
            "batch": RECIPE.batch,
            "tasks": TASKS,
            "seeds": options.seeds,
            "bound": BOUND,
        }
        record = {"torch": torch.__version__, "what": setting, "rows": rows}
        atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
