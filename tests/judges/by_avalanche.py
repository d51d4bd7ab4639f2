"""Avalanche: its forgetting, backward transfer and accuracy, for our learner on its benchmark.

Its benchmark holds the digits of our stream `digits`; its metrics are fed with the predictions of our learner after
every experience.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation.metrics import Accuracy
from avalanche.evaluation.metrics.forgetting_bwt import BWT, Forgetting

from halrp import Recipe
from halrp.lab import backbones, streams
from halrp.lab.methods import Context, make
from halrp.lab.records import metrics
from tests.judges.comparison import Comparison

TASKS = 4


def compare() -> Iterator[Comparison]:
    """Learn a few tasks with `halrp`, and let both measure it."""
    stream = streams.load("digits")[:TASKS]
    tasks = list(stream)
    benchmark = tensors_benchmark(
        train_tensors=[tuple(task.train) for task in tasks],
        test_tensors=[tuple(task.test) for task in tasks],
        task_labels=list(range(TASKS)),
    )
    yield Comparison("experiences of its benchmark", TASKS, len(benchmark.train_stream))

    def build(classes: int, seed: int) -> torch.nn.Module:
        return backbones.build("digits-net", classes, seed=seed, shape=stream.shape)

    method = make("halrp", Context(build, Recipe(epochs=3, batch=32), tasks=TASKS))
    forgetting, transfer = Forgetting(), BWT()
    rows: list[dict[str, Any]] = []
    for position, (task, experience) in enumerate(zip(tasks, benchmark.train_stream, strict=True)):
        yield Comparison(f"examples of experience {position}", len(task.train.y), len(experience.dataset))
        method.learn(task)
        shares, theirs = [], []
        for other in range(position + 1):
            x, y = _tensors(benchmark.test_stream[other].dataset)
            answers = method.predict(x, other)
            measure = Accuracy()
            measure.update(answers, y)
            theirs.append(float(measure.result()))
            mine = method.predict(tasks[other].test.x, other).argmax(1)
            shares.append(float((mine == tasks[other].test.y).double().mean()))
            for metric in (forgetting, transfer):
                metric.update(other, theirs[-1], initial=other == position)
        rows.append({"test": shares})
        yield Comparison(f"accuracy after task {position}", sum(shares), sum(theirs), 1e-6)
    a = metrics.accuracy_matrix(rows)
    ours = metrics.forgetting(a), metrics.backward_transfer(a)
    for name, value, metric in zip(("forgetting", "backward transfer"), ours, (forgetting, transfer), strict=True):
        values = [v for v in metric.result().values() if v is not None]
        yield Comparison(name, value, sum(values) / len(values))
        yield Comparison(f"{name} is zero", 0, sum(map(abs, values)))


def _tensors(dataset: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [dataset[i] for i in range(len(dataset))]
    return torch.stack([row[0] for row in rows]), torch.tensor([int(row[1]) for row in rows])


__all__ = ["compare"]
