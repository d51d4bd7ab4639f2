"""Two stores side by side: the tasks of both, their bytes, ranks and scores, and whether they are the same bits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from halrp.committed import digest_of
from halrp.model.delta import Delta
from halrp.model.description import described
from halrp.report import Report, TaskReport, of_store
from halrp.store.store import Store

Bits: TypeAlias = Literal["same file", "same numbers", "other numbers", "other base", "unreadable"]
"""Of a task in two stores; files with the same numbers differ in a name or in how the task was learned."""


@dataclass(frozen=True)
class Pair:
    """A task that two stores have."""

    first: TaskReport
    second: TaskReport
    bits: Bits

    @property
    def name(self) -> str:
        """The name that the task has in both."""
        return self.first.name

    @property
    def difference(self) -> float | None:
        """The second score minus the first, if both are known."""
        scores = self.first.score, self.second.score
        return None if scores[0] is None or scores[1] is None else scores[1] - scores[0]


@dataclass(frozen=True)
class StoresCompared:
    """What two stores have in common, and what one of them has alone."""

    first: Report
    second: Report
    same_base: bool
    pairs: tuple[Pair, ...]
    """In the order of the first."""

    @property
    def only_first(self) -> tuple[str, ...]:
        """Tasks that the second store lacks."""
        return _without(self.first.tasks, self.second.tasks)

    @property
    def only_second(self) -> tuple[str, ...]:
        """Tasks that the first store lacks."""
        return _without(self.second.tasks, self.first.tasks)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "same_base": self.same_base,
            "tasks": [
                {"name": pair.name, "bits": pair.bits, "first": pair.first.to_json(), "second": pair.second.to_json()}
                for pair in self.pairs
            ],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
        }


def compare(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> StoresCompared:
    """Compare two stores by their files; no model is needed."""
    stores = Store(first), Store(second)
    manifests = stores[0].manifest(), stores[1].manifest()
    reports = of_store(stores[0]), of_store(stores[1])
    same_base = manifests[0].fingerprint == manifests[1].fingerprint
    others = {task.name: task for task in reports[1].tasks}
    pairs = []
    for task in reports[0].tasks:
        if (other := others.get(task.name)) is not None:
            same_file = manifests[0].tasks[task.name].sha256 == manifests[1].tasks[task.name].sha256
            pairs.append(Pair(task, other, _bits(task.delta, other.delta, same_file, same_base)))
    return StoresCompared(*reports, same_base, tuple(pairs))


def _bits(first: Delta | None, second: Delta | None, same_file: bool, same_base: bool) -> Bits:
    if first is None or second is None:
        return "unreadable"
    if not same_base:
        return "other base"
    if same_file:
        return "same file"
    same_width = first.classes == second.classes and first.layout.digest == second.layout.digest
    renamed = replace(second, **described(first)) if same_width and first.format == second.format else second
    return "same numbers" if digest_of(renamed) == digest_of(first) else "other numbers"


def _without(tasks: Sequence[TaskReport], others: Sequence[TaskReport]) -> tuple[str, ...]:
    present = {task.name for task in others}
    return tuple(task.name for task in tasks if task.name not in present)
