"""continuum: its metrics on random predictions, and its scenarios against our splits.

Its backward transfer is a mean over all positions, and leaves out the task just before each; ours is that of the final
row. So it is compared with its own formula on our matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from continuum import ClassIncremental, Permutations
from continuum.datasets import InMemoryDataset
from continuum.metrics.metrics import accuracy, accuracy_A, backward_transfer

from halrp.lab.records import metrics
from halrp.lab.streams import split_by_class
from tests.judges.comparison import Comparison

TASKS, CLASSES, ROWS = 6, 4, 50


def compare() -> Iterator[Comparison]:
    """Metrics, then scenarios."""
    for seed in range(3):
        yield from _metrics(seed)
    yield from _scenarios()


def _metrics(seed: int) -> Iterator[Comparison]:
    random = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(TASKS), ROWS)
    targets = random.integers(CLASSES, size=TASKS * ROWS)
    answers = [np.where(random.random(len(targets)) < 0.6, targets, 0) for _ in range(TASKS)]
    shares = [[float((a == targets)[tasks == j].mean()) for j in range(i + 1)] for i, a in enumerate(answers)]
    a = metrics.accuracy_matrix([{"test": row} for row in shares])
    seen = [(x, targets, tasks) for x in answers]
    final = accuracy(answers[-1], targets)
    yield Comparison(f"average accuracy, seed {seed}", metrics.average_accuracy(a), 100 * float(final), 1e-6)
    lower = float(np.nanmean(a[np.tril_indices(TASKS)]))
    everywhere = 100 * float(accuracy_A(*zip(*seen, strict=True)))
    yield Comparison(f"accuracy over all positions, seed {seed}", lower, everywhere, 1e-6)
    formula = sum(a[i, j] - a[j, j] for i in range(1, TASKS) for j in range(i - 1)) / (TASKS * (TASKS - 1) / 2)
    theirs = 100 * float(backward_transfer(*zip(*seen, strict=True)))
    yield Comparison(f"backward transfer by its formula, seed {seed}", float(formula), theirs, 1e-6)


def _scenarios() -> Iterator[Comparison]:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 20)
    x = random.integers(0, 256, size=(200, 8, 8, 3)).astype(np.uint8)
    theirs = ClassIncremental(InMemoryDataset(x, y), increment=2)
    ours = split_by_class((x.transpose(0, 3, 1, 2) / 255, y), classes_per_task=2, validation=0.2, test_share=0.2)
    yield Comparison("tasks of a class-incremental scenario", len(ours), theirs.nb_tasks)
    for position, taskset in enumerate(theirs):
        task = ours[position]
        pixels = {tuple(np.asarray(image).ravel()) for image in taskset._x}
        mine = {
            tuple(np.rint(255 * image.permute(1, 2, 0).numpy()).astype(np.uint8).ravel())
            for part in (task.train, task.val, task.test)
            for image in part.x
        }
        yield Comparison(f"images of task {position} that both have", len(pixels & mine), len(pixels | mine))
    flat = Permutations(InMemoryDataset(x, y), nb_tasks=3, seed=0, shared_label_space=True)
    yield Comparison("tasks of a scenario of permutations", 3, flat.nb_tasks)


__all__ = ["compare"]
