"""Where the bytes of a task's file go: on a pretrained network, from a warm-up in float32 and from the probe.

The task is the first dev task of `benchmarks.pretrained` with 30 images a class. "from the probe" is the file of that
task with a bound. "from a warm-up" is the least that a file can be which stores all that a task trains there: both
scales of every weight, norms with their statistics, biases and head, in the type of the model, without a component;
its numbers do not matter for its size.

    python -m benchmarks.bytes --data DIR [--bound 60000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from benchmarks.pretrained.domain import Task
from benchmarks.pretrained.training import EPOCHS
from benchmarks.pretrained.vision import Vision
from halrp import Delta, Halrp, Learner, Recipe
from halrp.model.description import Description
from halrp.model.factors import identity_factors
from halrp.store import atomic
from halrp.tools import file_parts

SHOTS = 30


def learner_of(vision: Vision, task: Task, bound: int) -> Learner:
    """A learner of tasks on the pretrained network."""
    return Learner(
        vision.base(),
        head=nn.Linear(vision.width, task.classes),
        base="given",
        method=Halrp.budget(bytes_per_task=bound),
        recipe=Recipe.auto(epochs=EPOCHS, batch=vision.batch(SHOTS)),
        progress=None,
    )


def least_of_a_warm_up(learner: Learner, like: Delta) -> Delta:
    """The smallest delta that owns everything a warm-up trains."""
    base = learner._committed.ready
    net = base.trainable(like.classes, "bytes")
    with torch.no_grad():
        for buffer in net.buffers():
            buffer.add_(1)  # as training would, so that they are owned
    factors = {name: identity_factors(weight) for name, weight in base.adapted_weights().items()}
    description = Description(task=like.task, classes=like.classes, view="mean", provenance=like.provenance)
    return Delta.pack(description, base.layout, factors, base.owned_tensors(net), like.recovered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--bound", type=int, default=60_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    vision = Vision(options.data)
    task = vision.task(vision.dev[0], SHOTS, 0)
    learner = learner_of(vision, task, options.bound)
    delta = learner.learn(task.name, task.train, val=task.val)
    files = {"from a warm-up, without a component": least_of_a_warm_up(learner, delta), "from the probe": delta}
    rows = [
        {"name": name, "bytes": file.bytes, "groups": {g: p.bytes for g, p in file_parts.groups(file).items()}}
        for name, file in files.items()
    ]
    for row in rows:
        print(f"{row['name']}: {row['bytes']:,} bytes: {row['groups']}")
    if options.json:
        setting = {"network": vision.network, "task": task.name, "shots": SHOTS, "bound": options.bound}
        record = {"torch": torch.__version__, "what": setting, "rows": rows}
        atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
