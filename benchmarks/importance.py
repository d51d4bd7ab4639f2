"""Whether importance predicts: what dropping a part of a warmed-up layer costs the loss, predicted and measured.

A network is trained on the first task of a stream, and each later task warms it up for an epoch. There the residual
of one layer at a time is cut to a share of its components (none, a tenth, three tenths), in both views of
convolutions, and the change of the loss is measured on the validation data, all else being as warm-up left it. It is
predicted by

- the paper: ‖g‖² · ‖E‖² / 2, with g the gradient of the mean loss and E the error in the weight (`GradientNorm`);
- the released code: h · ‖E‖² / 2, with h the mean diagonal entry of the Fisher (`MeanSquare`);
- Kronecker factors: tr(G E A Eᵀ) / 2 (`curvature`).

Batch norms have the statistics of warm-up's moving average, or exact ones, which are taken again for each cut. The
table has Spearman's rank correlation over the layers of a task that are dropped completely, and over all cuts of all
layers, as means over tasks and views with their standard errors over tasks, and the median of predicted over measured.

    python -m benchmarks.importance --data DIR [--tasks 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.worth import correlation
from halrp import Halrp, Learner, Recipe
from halrp.lab import backbones
from halrp.lab.streams import load
from halrp.method import decompose
from halrp.method.importance import GradientNorm, MeanSquare, curvature
from halrp.method.protocols import Importance
from halrp.method.scales import Exact, scaled
from halrp.store import atomic
from halrp.training.batches import Data, loss_of
from halrp.training.evaluate import evaluate
from halrp.training.exact_statistics import ExactStatistics

STREAMS = (
    ("digits", "digits-net", 1.0),
    ("cifar100-split", "lenet", 0.05),
    ("cifar100-split", "lenet", 0.25),
    ("cifar100-superclass", "lenet", 0.05),
    ("cifar100-superclass", "lenet", 0.25),
)
"""Stream, network and share of the training images."""
SHARES = (0.0, 0.1, 0.3)
"""Shares of a layer's components that a cut leaves."""
STATISTICS = ("moving average", "exact")
RECIPE = Recipe(epochs=20)
BATCH = 512
ESTIMATES = ("paper", "released", "kronecker")


class MeasuredError(Exception):
    """Ends the learning of a task when all has been measured."""


@dataclass
class Measuring:
    """An importance that measures what it would only predict, and then ends the learning."""

    base: Mapping[str, Tensor]
    rows: list[dict[str, Any]] = field(default_factory=list)
    counts_kernel = True

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        """Measure every cut of every weight, under both kinds of statistics."""
        for kind in STATISTICS:
            net = copy.deepcopy(module)
            adapted = {name: parameter for name, parameter in net.named_parameters() if name in self.base}
            if kind == "exact":
                exactly(net, data)
            scalars: dict[str, Importance] = {"paper": GradientNorm(), "released": MeanSquare()}
            predicted = {name: rule(net, adapted, data, batch) for name, rule in scalars.items()}
            moments, before = curvature(net, adapted, data, batch), evaluate(net, data, BATCH)[0]
            for view, name, share, error in cuts(adapted, self.base):
                row = {"view": view, "weight": name, "kept": share, "statistics": kind}
                square = float(error.square().sum())
                row |= {estimate: 0.5 * float(values[name]) * square for estimate, values in predicted.items()}
                if (factors := moments.get(name)) is not None:
                    flat = error.flatten(1)
                    row["kronecker"] = 0.5 * float((factors.G @ flat @ factors.A * flat).sum())
                self.rows.append(row | {"measured": after(net, name, error, data, kind) - before})
        raise MeasuredError


def exactly(net: nn.Module, data: Data) -> None:
    """Give the batch norms of a network in evaluation mode their exact statistics over some data."""
    ExactStatistics(net, data, partial(loss_of, data), Recipe(batch=BATCH), "importance").measure()


def cuts(free: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> Iterator[tuple[str, str, float, Tensor]]:
    """View, weight, share of the components that stay, and the error (of the weight's shape) that this makes."""
    for view in decompose.VIEWS:
        for name, weight in free.items():
            with torch.no_grad():
                r, s = Exact()(weight, base[name])
                residual = weight - scaled(base[name], r, s)
                matrix = decompose.matrix(residual, view)
                u, sigma, v = decompose.plain(matrix)
                for share in SHARES:
                    rank = round(share * len(sigma))
                    low = (u[:, :rank] * sigma[:rank]) @ v[:, :rank].mT
                    spread = low.reshape(*low.shape, *(1 for _ in residual.shape[2:])) if view == "mean" else low
                    yield view, name, share, residual - (spread if view == "mean" else low.reshape(residual.shape))


def after(net: nn.Module, name: str, error: Tensor, data: Data, kind: str) -> float:
    """The loss of a network with an error in one of its weights."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net.get_parameter(name).sub_(error)
    if kind == "exact":
        exactly(net, data)
    return evaluate(net, data, BATCH)[0]


def measured(stream_name: str, network: str, fraction: float, tasks: int, data: Path | None) -> list[dict[str, Any]]:
    """A row for each cut of each layer of each task."""
    stream = load(stream_name, "A", 0, fraction, data)
    model = backbones.build(network, stream[0].classes, seed=0, shape=stream.shape)
    learner = Learner(model, method=Halrp.budget(), recipe=RECIPE, progress=None)
    learner.learn(stream[0].name, stream[0].train, val=stream[0].val)
    base = {name: weight.clone() for name, weight in learner._committed.ready.adapted_weights().items()}
    rows = []
    for task in list(stream)[1 : 1 + tasks]:
        measuring = Measuring(base)
        learner.method = replace(Halrp.budget(), importance=measuring)
        try:
            learner.learn(task.name, task.train, val=task.val)
        except MeasuredError:
            rows += [{"task": task.name} | row for row in measuring.rows]
        print(f"{stream_name} {fraction:g} {task.name}", flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each estimate and kind of statistics: correlations, as means over tasks with their errors, and a ratio."""
    lines = []
    for kind in STATISTICS:
        for estimate in ESTIMATES:
            mine = [row for row in rows if row["statistics"] == kind and estimate in row]
            line: dict[str, Any] = {"statistics": kind, "estimate": estimate}
            for title, shares in (("dropped", SHARES[:1]), ("all cuts", SHARES)):
                by_task = [
                    statistics.fmean(_agreement(mine, estimate, task, view, shares) for view in decompose.VIEWS)
                    for task in dict.fromkeys(row["task"] for row in mine)
                ]
                error = statistics.stdev(by_task) / math.sqrt(len(by_task)) if len(by_task) > 1 else None
                line |= {title: statistics.fmean(by_task), f"{title}, error": error}
            # A layer whose loss does not rise when it is dropped has nothing that a ratio could be taken of.
            ratios = [row[estimate] / row["measured"] for row in mine if row["kept"] == 0 and row["measured"] > 1e-3]
            lines.append(line | {"ratio": statistics.median(ratios) if ratios else None})
    return lines


def _agreement(rows: list[dict[str, Any]], estimate: str, task: str, view: str, shares: tuple[float, ...]) -> float:
    chosen = [row for row in rows if row["task"] == task and row["view"] == view and row["kept"] in shares]
    return correlation([row[estimate] for row in chosen], [row["measured"] for row in chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the data sets; without it only digits are measured")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"torch": torch.__version__, "tasks": options.tasks, "rows": [], "cuts": []}
    for stream, network, fraction in STREAMS if options.data else STREAMS[:1]:
        rows = measured(stream, network, fraction, options.tasks, options.data)
        about = {"stream": stream, "network": network, "fraction": fraction}
        record["cuts"] += [about | row for row in rows]
        record["rows"] += [about | line for line in summary(rows)]
        for line in record["rows"][-len(STATISTICS) * len(ESTIMATES) :]:
            shown = (math.nan if line[key] is None else line[key] for key in ("dropped", "all cuts", "ratio"))
            numbers = "".join(f"{number:10.2f}" for number in shown)
            print(f"{stream:<22}{fraction:6g}  {line['statistics']:<16}{line['estimate']:<12}{numbers}", flush=True)
        if options.json:
            atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
