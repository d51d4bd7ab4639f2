"""Logits of the tasks of one base: `Predictor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from halrp.errors import DataError, UnknownTaskError
from halrp.model import batch as tree
from halrp.model import prototypes
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.inference import batched_logits
from halrp.model.mixed import MixedModule
from halrp.model.prototypes import TaskPrototypes
from halrp.serve.base_task import as_learned
from halrp.serve.identify import Asked, Identified, Identifier, chosen_names, refuse_other_objectives
from halrp.serve.resident import ResidentModules


class Predictor:
    """Predicts for the tasks of a base, through modules that are built when they are first needed (`resident`)."""

    def __init__(self, base: Base, tasks: Mapping[str, Delta], earlier: Predictor | None = None) -> None:
        """Take a base and its tasks; an earlier predictor of the base hands its modules over."""
        self._base, self._tasks = base, tasks
        self._base_task = as_learned(base, next((delta for delta in tasks.values() if delta.is_base), None))
        self._mixed: MixedModule | None = None
        self._residents: ResidentModules = ResidentModules(base) if earlier is None else earlier._residents
        self._residents.forget_all_but([*tasks.values(), self._base_task])
        self._identifier: Identifier = Identifier(base) if earlier is None else earlier._identifier
        self._prototypes: dict[str, TaskPrototypes | None] = {}

    def delta(self, task: str | None) -> Delta:
        """The delta of a task; None means the base's own task, with its precision and class names if it was learned."""
        if task is None:
            return self._base_task
        if task not in self._tasks:
            known = ", ".join(map(repr, self._tasks)) or "none yet"
            raise UnknownTaskError(f"no task named {task!r} has been learned; learned: {known}")
        return self._tasks[task]

    def predict(self, x: Batch, task: str | None, batch: int) -> Tensor:
        """Outputs (N, ...) of N rows of x for one task."""
        delta = self.delta(task)
        return batched_logits(self._residents.module(delta), self._base.call, x, delta, batch)

    def predict_mixed(self, x: Batch, tasks: Sequence[str | None], batch: int) -> Tensor:
        """Outputs of N rows of x for the task of each, as wide as the widest of them, (N, ...)."""
        if len(tasks) != tree.rows(x):
            raise DataError(f"predict: {len(tasks)} tasks for {tree.rows(x)} rows; name one for each row")
        for name in dict.fromkeys(tasks):
            self.delta(name)
        names = [None, *self._tasks]
        if self._mixed is None:
            self._mixed = MixedModule(self._base, [self.delta(name) for name in names], self._residents.module)
        position = {name: index for index, name in enumerate(names)}
        rows = torch.tensor([position[name] for name in tasks], device=tree.device_of(x))
        return self._mixed.batched(x, rows, batch)

    def identify(self, x: Batch, tasks: Sequence[str] | None, asked: Asked, batch: int) -> Identified:
        """The tasks of N rows of x, among those with prototypes, or those of them that are named."""
        names = chosen_names(tasks, list(self._tasks))
        for name in (name for name in names if name not in self._prototypes):
            self._prototypes[name] = prototypes.read(held(self._tasks[name].statistics))
        stored = {name: self._prototypes[name] for name in names}
        models = {name: model for name, model in stored.items() if model is not None}
        if asked.rerank:
            refuse_other_objectives(self._tasks[name] for name in models)
        asked = replace(asked, left_out=tuple(name for name in names if name not in models))

        def logits_of(name: str, rows: Batch) -> Tensor:
            with torch.no_grad():
                return self.predict(rows, name, batch)

        return self._identifier(x, models, asked, logits_of, batch)
