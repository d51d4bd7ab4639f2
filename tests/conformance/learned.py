"""One case of the matrix, learned once and shared by all its checks: `learned`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from halrp import FromProbe, Halrp, Learner, Recipe, explain
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.tools.explain import Explanation
from tests.conformance.models import FAMILIES, Family
from tests.conformance.tasks import Task, task

RECIPE = Recipe(epochs=2, batch=8, lr=5e-3)
FIRST = "first"
NAMES = (FIRST, "second", "third", "fourth")
WIDTHS = (3, 2, 4, 3)
"""Classes, labels or values of the tasks, where an objective leaves that open."""


@dataclass(frozen=True)
class Case:
    """A family and the objective of its first task."""

    family_name: str
    objective: str

    @property
    def family(self) -> Family:
        """The entry of the matrix."""
        return FAMILIES[self.family_name]

    def __str__(self) -> str:
        return f"{self.family_name}-{self.objective.replace(' ', '-')}"

    def tasks(self) -> dict[str, Task]:
        """Four tasks: the first has the objective of the case, and the others the family's objectives in turn."""
        every = self.family.objectives
        start = every.index(self.objective)
        return {
            name: task(self.family.inputs, every[(start + number) % len(every)], number, WIDTHS[number])
            for number, name in enumerate(NAMES)
        }

    def learner(self, **settings: Any) -> Learner:
        """A learner on the model as it is given, with the default method; it trains also where that does not help."""
        method = replace(Halrp.budget(), start=FromProbe(held_out=0))
        options: dict[str, Any] = {"method": method, "recipe": RECIPE, "base": "given", "progress": None}
        return Learner(self.family.model(), **(options | self.family.settings | settings))

    def explanation(self) -> Explanation:
        """What `explain` says about the model and the first task."""
        settings, first = self.family.settings, self.tasks()[FIRST]
        objective = first.objective.fitted([first.y], FIRST)
        return explain(
            self.family.model(), settings.get("head"), Halrp.budget().precision, objective, settings.get("output")
        )

    def learn_first(self, learner: Learner) -> None:
        """Learn the first task."""
        first = self.tasks()[FIRST]
        learner.learn(FIRST, first.data, objective=first.objective)


CASES = tuple(Case(name, objective) for name, family in FAMILIES.items() for objective in family.objectives)
QUICK = tuple(
    Case(name, family.objectives[number % len(family.objectives)])
    for number, (name, family) in enumerate(FAMILIES.items())
)
"""Of every family one case, with objectives in turn: those of `make test`."""


@dataclass(frozen=True)
class Learned:
    """Four tasks on one base, and what was seen on the way."""

    case: Case
    learner: Learner
    tasks: dict[str, Task]
    probe: Batch
    """Inputs that no task was trained on."""
    before: Tensor
    """Outputs of the first task for the probe, when it was the only one."""

    @property
    def rows(self) -> Sequence[str | None]:
        """A task for each row of the probe; among them is the base's own, if tasks keep its outputs."""
        names: tuple[str | None, ...] = (*NAMES, None) if self.learner.head == "" else NAMES
        return [names[number % len(names)] for number in range(tree.rows(self.probe))]

    def outputs(self, module: torch.nn.Module, x: Batch) -> Tensor:
        """What a module of the learner gives for inputs."""
        with torch.no_grad():
            return self.learner._committed.body.call(module, x)

    @property
    def reason(self) -> str:
        """Why a mixed batch is computed task by task; empty if it is one pass."""
        self.learner.predict(self.probe, self.rows)
        mixed = self.learner._committed.predictor._mixed
        assert mixed is not None
        return mixed.reason


@cache
def learned(case: Case) -> Learned:
    """The four tasks of a case."""
    learner, tasks = case.learner(), case.tasks()
    probe = task(case.family.inputs, case.objective, 200).x
    case.learn_first(learner)
    before = learner.predict(probe, FIRST)
    for name in NAMES[1:]:
        learner.learn(name, tasks[name].data, objective=tasks[name].objective)
    return Learned(case, learner, tasks, probe, before)
