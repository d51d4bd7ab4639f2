"""Regression, several labels and segmentation, as streams on real data, beside what one would do instead.

The first task of a stream trains the base. Every later one is learned by each method from the same data, split by the
seed, and measured on unseen examples by the score of its objective. Learning rates and epochs are the same for all
networks; heads and ridge regression are solved, with a penalty that is chosen on the validation data.

    python -m benchmarks.any_task --json results/benchmarks/any_task.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sklearn
import torch
from torch import Tensor, nn

from benchmarks.kinds_of_tasks import STREAMS, Stream, Task
from halrp import Halrp, Learner
from halrp.objectives import Objective

Scored = tuple[float, int]
"""The score of a method on unseen examples, and the bytes that the task adds."""
METHODS = {
    "halrp": "halrp",
    "copy": "a fine-tuned copy of the base",
    "network": "a network per task",
    "probe": "a fitted head on the base's features",
    "ridge": "ridge regression on the columns",
    "constant": "the mean of the training targets",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--streams", nargs="*", default=list(STREAMS), choices=list(STREAMS), help="only these")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in options.streams for seed in range(options.seeds) for row in measure(name, seed)]
    print(table(rows))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "scikit-learn": sklearn.__version__, "threads": 1, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def measure(name: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one stream and seed: a score for each later task and each method."""
    stream = STREAMS[name]
    first, *later = stream.tasks(seed)
    torch.manual_seed(seed)
    method = Halrp.budget(bytes_per_task=stream.bytes_per_task)
    learner = Learner(stream.network(), head="head", method=method, recipe=stream.recipe, seed=seed, progress=None)
    learner.learn(first.name, first.train, first.val, objective=stream.objective)
    rows = []
    for task in later:
        objective = stream.objective.fitted([stream.objective.check(task.train[1], task.name)], task.name)
        delta = learner.learn(task.name, task.train, task.val, objective=stream.objective)
        whole = learner.base_size.bytes
        results: dict[str, Scored] = {
            "halrp": (_score(objective, learner.predict(task.test[0], task.name), task), delta.bytes),
            "copy": (_alone(stream, task, learner.export(first.name), objective, seed), whole),
            "network": (_alone(stream, task, None, objective, seed), whole),
            "probe": _probe(stream, task, learner.export(first.name), objective, seed),
            "constant": _constant(objective, task),
        }
        if name == "regression":
            results["ridge"] = _ridge(objective, task)
        for rival, (score, size) in results.items():
            rows.append(
                {"stream": name, "task": task.name, "seed": seed, "method": rival, "score": score, "bytes": size}
            )
        print(name, seed, task.name, {rival: round(score, 3) for rival, (score, _) in results.items()}, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per stream and method: the mean over tasks and seeds, and halrp's lead, paired, with its error.

    Tasks of one seed share a base, so a lead is averaged over them first; the error is that of the mean over seeds.
    """
    lines = ["| stream | method | score | halrp's lead | bytes per task |", "| --- | --- | ---: | ---: | ---: |"]
    for name, stream in STREAMS.items():
        scores = {method: _by_seed(rows, name, method) for method in METHODS}
        present = [method for method in METHODS if scores[method]]
        if not present:
            continue
        title = f"{name}: {stream.title} ({stream.score})"
        for method in sorted(present, key=lambda method: -statistics.fmean(scores[method])):
            lead = [ours - theirs for ours, theirs in zip(scores["halrp"], scores[method], strict=True)]
            error = statistics.stdev(lead) / math.sqrt(len(lead)) if len(lead) > 1 else math.nan
            shown = "" if method == "halrp" else f"{statistics.fmean(lead):+.3f} ± {error:.3f}"
            size = statistics.fmean(r["bytes"] for r in rows if r["stream"] == name and r["method"] == method)
            label = f"**{METHODS[method]}**" if method == "halrp" else METHODS[method]
            lines.append(f"| {title} | {label} | {statistics.fmean(scores[method]):.3f} | {shown} | {size:,.0f} |")
            title = ""
    return "\n".join(lines)


def _by_seed(rows: list[dict[str, Any]], stream: str, method: str) -> list[float]:
    chosen = [row for row in rows if row["stream"] == stream and row["method"] == method]
    seeds = sorted({row["seed"] for row in chosen})
    return [statistics.fmean(row["score"] for row in chosen if row["seed"] == seed) for seed in seeds]


# ---- what one would do instead --------------------------------------------------------------------------------------


def _score(objective: Objective, outputs: Tensor, task: Task) -> float:
    return float(objective.score(outputs, objective.check(task.test[1], task.name)))


def _alone(stream: Stream, task: Task, start: nn.Module | None, objective: Objective, seed: int) -> float:
    """A whole network for the task, from new weights or from the base's, by the same recipe."""
    torch.manual_seed(1000 + seed)
    network = stream.network() if start is None else start.requires_grad_(True)
    learner = Learner(network, head="head", recipe=stream.recipe, seed=seed, progress=None)
    learner.learn(task.name, task.train, task.val, objective=stream.objective)
    return _score(objective, learner.predict(task.test[0], task.name), task)


def _probe(stream: Stream, task: Task, base: nn.Module, objective: Objective, seed: int) -> Scored:
    """A head on features that the base gives, fitted to the optimum; its penalty is chosen on the validation data."""
    head: Any = base.head
    base.head = nn.Identity()
    base.eval()
    with torch.no_grad():
        features = {name: base(getattr(task, name)[0]) for name in ("train", "val", "test")}
    targets = {name: objective.check(getattr(task, name)[1], task.name) for name in features}
    best, best_score = 0.0, -math.inf
    for power in range(-4, 3):
        torch.manual_seed(1000 + seed)
        head.reset_parameters()
        _fit(head.requires_grad_(True), 10.0**power, lambda: objective.loss(head(features["train"]), targets["train"]))
        with torch.no_grad():
            on_validation = float(objective.score(head(features["val"]), targets["val"]))
            if on_validation > best_score:
                best_score, best = on_validation, _score(objective, head(features["test"]), task)
    return best, sum(parameter.numel() * parameter.element_size() for parameter in head.parameters())


def _fit(head: nn.Module, penalty: float, loss: Callable[[], Tensor]) -> None:
    weights = [parameter for parameter in head.parameters() if parameter.dim() > 1]
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        total = loss() + penalty * sum(weight.square().sum() for weight in weights)
        total.backward()
        return float(total.detach())

    optimiser.step(closure)


def _ridge(objective: Objective, task: Task) -> Scored:
    """Ridge regression on the columns in float64, its penalty chosen on the validation data."""
    mean, deviation = (torch.tensor(getattr(objective, name), dtype=torch.float64) for name in ("mean", "deviation"))
    x = nn.functional.pad(task.train[0].double(), (0, 1), value=1.0)
    y = (task.train[1].double().unsqueeze(1) - mean) / deviation
    penalised = torch.eye(x.shape[1], dtype=torch.float64)
    penalised[-1, -1] = 0  # not the intercept

    def outputs(weights: Tensor, part: Tensor) -> Tensor:
        return nn.functional.pad(part.double(), (0, 1), value=1.0) @ weights

    def on_validation(weights: Tensor) -> float:
        return float(objective.score(outputs(weights, task.val[0]), objective.check(task.val[1], task.name)))

    fits = [torch.linalg.solve(x.T @ x + 10.0**power * penalised, x.T @ y) for power in range(-2, 5)]
    best = max(fits, key=on_validation)
    return _score(objective, outputs(best, task.test[0]), task), 4 * best.numel()


def _constant(objective: Objective, task: Task) -> Scored:
    """The same outputs for every example: those that the training targets have on average."""
    y, count = objective.check(task.train[1], task.name), len(task.test[0])
    means: dict[str, Callable[[], Tensor]] = {
        "regression": lambda: torch.zeros(1),
        "multi-label": lambda: y.mean(0).logit(),
        "segmentation": lambda: nn.functional.one_hot(y, 2).float().mean(0).movedim(-1, 0),
    }
    mean = means[objective.name]()
    return _score(objective, mean.expand(count, *mean.shape), task), 4 * mean.numel()


if __name__ == "__main__":
    main()
