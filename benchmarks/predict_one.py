"""What `predict` costs for one task, as a ratio to the exported module, which is plain and merged.

LeNet, ResNet18 and the architecture of MiniLM-L6 (sequences of 32 tokens), at one row and at 32, on one thread. A task
adapts every layer that can be adapted.

    python -m benchmarks.predict_one [--rounds 40] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks import networks
from benchmarks.interleaved import Row, arguments, measure, report
from halrp import Halrp, Learner, Recipe

CLASSES = 4
ROWS = (1, 32)


def learned(name: str) -> Learner:
    """A learner with one task on a given network."""
    method = Halrp.budget(growth_per_task=0.1)
    learner = Learner(networks.build(name, CLASSES), head="head", method=method, recipe=Recipe(epochs=2), base="given")
    learner.learn("a", (networks.inputs(name, 16), torch.arange(16) % CLASSES))
    return learner


def calls(learner: Learner, exported: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """Several predictions of each kind: a single one of a small network is shorter than the clock's noise."""
    repeats = 20 if len(x) == 1 else 2

    def plain() -> None:
        with torch.no_grad():
            for _ in range(repeats):
                exported(x)

    def predict() -> None:
        for _ in range(repeats):
            learner.predict(x, "a")

    return {"exported": plain, "predict": predict}


def main() -> None:
    options = arguments(__doc__, rounds=40)
    rows: list[Row] = []
    for name in networks.NETWORKS:
        learner = learned(name)
        exported = learner.export("a")
        for count in ROWS:
            variants = calls(learner, exported, networks.inputs(name, count))
            timed = measure(variants, "exported", options.rounds)
            rows += [replace(row, name=f"{name}, {count} rows: {row.name}") for row in timed]
    report(rows, options.json)


if __name__ == "__main__":
    main()
