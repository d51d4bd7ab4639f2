"""Outputs of rows for the task of each, in the fastest way: `Computing`."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.model import batch as tree
from halrp.model.base import MOST_KINDS, Base
from halrp.model.batch import Batch
from halrp.model.by_task import task_by_task
from halrp.model.inference import batched_logits, inference_batches, task_logits
from halrp.model.precision import forward_precision
from halrp.serve.checks import naming_inputs
from halrp.serve.costs import Costs, bucket
from halrp.serve.loaded import LoadedTask
from halrp.serve.rosters import Rosters

Mixed = Literal["fastest", "one pass", "task by task"]
"""How rows of different tasks are computed."""


class Computing:
    """Computes batches of rows. It keeps nothing of a batch, so threads may call it at the same time."""

    def __init__(
        self, base: Base, module_of: Callable[[LoadedTask], nn.Module], mixed: Mixed, stack_limit: int
    ) -> None:
        """Take what gives the module of a task, and bound the bytes of what is stacked for mixed batches."""
        if mixed not in get_args(Mixed):
            raise SettingError(f"mixed={mixed!r} is unknown; choose one of {', '.join(map(repr, get_args(Mixed)))}")
        self.costs, self.rosters = Costs(), Rosters(base, self._module, stack_limit)
        self._base, self._module_of, self._mixed = base, module_of, mixed

    def __call__(self, given: Batch, rows: Sequence[LoadedTask], batch: int) -> Tensor:
        """Outputs of N rows of x for the task of each, about `batch` rows at a time, (N, ...)."""
        x = self._base.prepare_inputs(given)
        tasks = list(dict.fromkeys(rows))
        with torch.no_grad(), naming_inputs(x):
            if len(tasks) == 1:
                return batched_logits(self._module(tasks[0]), self._base.call, x, tasks[0].delta, batch)
            if self._mixed == "one pass":
                return self._one_pass(x, tasks, rows, batch)
            if self._mixed == "task by task":
                return self._task_by_task(x, tasks, rows, batch)
            return self._fastest(x, tasks, rows, batch)

    def _fastest(self, x: Batch, tasks: Sequence[LoadedTask], rows: Sequence[LoadedTask], batch: int) -> Tensor:
        size = _size(x, len(tasks), min(len(rows), batch))
        way = self.costs.choose(size)
        before, start = self._built(), time.perf_counter()
        compute = self._one_pass if way == "one pass" else self._task_by_task
        outputs = compute(x, tasks, rows, batch)
        if self._built() == before:  # what is done once says nothing about the next call
            self.costs.add(size, way, time.perf_counter() - start)
        return outputs

    def _built(self) -> tuple[int, int]:
        """How often something was done that need not be done again: a first pass of its kind, and a larger roster."""
        return len(self.rosters.compared), self.rosters.enlarged

    def _one_pass(self, x: Batch, tasks: Sequence[LoadedTask], rows: Sequence[LoadedTask], batch: int) -> Tensor:
        if len(self.rosters.compared) > MOST_KINDS:
            self.rosters.compared.clear()
        roster = self.rosters.over(tasks)
        return roster.network.batched(x, roster.indices(rows, tree.device_of(x)), batch)

    def _task_by_task(self, x: Batch, tasks: Sequence[LoadedTask], rows: Sequence[LoadedTask], batch: int) -> Tensor:
        positions = {task: number for number, task in enumerate(tasks)}
        indices = torch.tensor([positions[task] for task in rows])

        def one_task(part: Batch, number: int) -> Tensor:
            return task_logits(self._module(tasks[number]), self._base.call, part, tasks[number].delta)

        with forward_precision(None, tree.device_of(x)):
            return task_by_task(x, indices, lambda n: inference_batches(self._base.module, n, batch), one_task)

    def _module(self, task: LoadedTask) -> nn.Module:
        return task.module() if task.delta.is_base else self._module_of(task)


def _size(x: Batch, tasks: int, rows: int) -> Hashable:
    """What batches have in common that take about the same time."""
    shapes = ((path, tuple(map(bucket, leaf.shape[1:])), leaf.dtype) for path, leaf in tree.named_leaves(x))
    return tuple(shapes), bucket(tasks), bucket(rows)
