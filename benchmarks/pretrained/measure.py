"""One fit measured, and the choice of a method's setting on the validation data of the dev tasks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pretrained import records
from benchmarks.pretrained.domain import Domain, Part, Task
from benchmarks.pretrained.features import Saved
from benchmarks.pretrained.methods import Method, Setting
from benchmarks.pretrained.records import Row
from halrp.errors import BudgetTooSmall
from halrp.lab.run.environment import environment
from halrp.model.batch import Batch

TUNED_ON = 0
"""The seed of the fits that choose a setting."""


def fit(domain: Domain, name: str, method: Method, setting: Setting, task: Task) -> Row:
    """Learn a task and measure every form of what is stored."""
    start, saved = time.process_time(), Saved.seconds
    seconds, files = 0.0, {}
    for stored in method.fit(domain, task, setting):
        seconds = seconds or time.process_time() - start + Saved.seconds - saved
        accuracy, _ = scores(stored.predict, task.test)
        on_validation, loss = scores(stored.predict, task.val)
        files[stored.form] = {
            "bytes": stored.bytes,
            "accuracy": accuracy,
            "val_accuracy": on_validation,
            "val_loss": loss,
        }
    return {
        "kind": "fit",
        "network": domain.network,
        "method": name,
        "setting": dict(setting),
        "task": task.name,
        "shots": task.shots,
        "seed": task.seed,
        "rows": {"train": len(task.train.y), "val": len(task.val.y), "test": len(task.test.y)},
        "data": task.fingerprint[:16],
        "files": files,
        "seconds": round(seconds, 2),
        "versions": _versions(),
        "commit": environment()["commit"],
    }


def scores(predict: Callable[[Batch], Tensor], part: Part) -> tuple[float, float]:
    """The share of correct labels, in percent, and the mean cross-entropy."""
    logits = predict(part.x)
    right = (logits.argmax(1) == part.y).double().mean()
    return round(100 * float(right), 4), round(float(nn.functional.cross_entropy(logits, part.y)), 6)


class Run:
    """Fits of one domain, each made unless its record is there."""

    def __init__(self, domain: Domain, methods: dict[str, Method], path: Path) -> None:
        self.domain, self.methods, self.path = domain, methods, path

    def all(self, names: Iterable[str], tasks: Sequence[str], shots: int, seeds: Sequence[int]) -> Iterator[Row]:
        """The missing fits of methods on tasks, each appended to the records before the next begins."""
        for name in names:
            yield from self._choose(name, shots)
            setting = self.setting(name, shots)
            for seed in seeds:
                for task in tasks:
                    yield from self._missing(name, setting, task, shots, seed)

    def setting(self, name: str, shots: int) -> Setting:
        """The setting that was chosen, or the only one there is."""
        grid = self.methods[name].grid(self.domain, shots)
        if len(grid) == 1:
            return grid[0]
        row = records.choice(records.read(self.path), self.domain.network, name, shots)
        assert row is not None, "a choice is made before it is used"
        setting: Setting = row["setting"]
        return setting

    def _choose(self, name: str, shots: int) -> Iterator[Row]:
        """Fit every setting on the dev tasks, and append the best one, unless that was done with the same grid."""
        grid = self.methods[name].grid(self.domain, shots)
        before = records.choice(records.read(self.path), self.domain.network, name, shots)
        if len(grid) == 1 or (before is not None and [outcome["setting"] for outcome in before["grid"]] == list(grid)):
            return
        for setting in grid:
            for task in self.domain.dev:
                yield from self._missing(name, setting, task, shots, TUNED_ON)
        row = chosen(records.read(self.path), self.domain, name, shots, grid)
        records.append(self.path, row)
        yield row

    def _missing(self, name: str, setting: Setting, task: str, shots: int, seed: int) -> Iterator[Row]:
        fields = {"network": self.domain.network, "method": name, "setting": dict(setting)}
        wanted = records.key(fields | {"task": task, "shots": shots, "seed": seed})
        if wanted not in {records.key(row) for row in records.fits(records.read(self.path))}:
            try:
                row = fit(self.domain, name, self.methods[name], setting, self.domain.task(task, shots, seed))
            except BudgetTooSmall as error:  # no record, so that another version tries again
                yield {"kind": "refused", **fields, "task": task, "shots": shots, "seed": seed, "reason": str(error)}
                return
            records.append(self.path, row)
            yield row


def chosen(rows: Sequence[Row], domain: Domain, name: str, shots: int, grid: Sequence[Setting]) -> Row:
    """The outcome of a grid: each setting's mean on validation data, and the best; equal ones by the lower loss."""
    outcomes: list[dict[str, Any]] = []
    for setting in grid:
        fields = {"network": domain.network, "method": name, "setting": dict(setting), "shots": shots, "seed": TUNED_ON}
        mine = [row for row in records.fits(rows) if fields.items() <= row.items() and row["task"] in domain.dev]
        first = [next(iter(row["files"].values())) for row in mine]
        means = {field: statistics.fmean(file[field] for file in first) for field in ("val_accuracy", "val_loss")}
        outcomes.append({"setting": dict(setting), **{field: round(mean, 4) for field, mean in means.items()}})
    best = max(outcomes, key=lambda outcome: (outcome["val_accuracy"], -outcome["val_loss"]))
    fields = {"kind": "choice", "network": domain.network, "method": name, "shots": shots, "seed": TUNED_ON}
    return fields | {"tasks": list(domain.dev), "grid": outcomes, "setting": best["setting"]}


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for package in ("peft", "transformers", "halrp"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
