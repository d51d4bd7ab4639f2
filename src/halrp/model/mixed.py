"""Rows of different tasks in one pass: `MixedModule`.

In a copy of the base's tree of modules, every layer that some task changes computes each row as that row's task would
(the mixed forms in `layers`). Everything else, layers and the code between them, runs as it is, once for the batch.

That is right only if the model treats the rows of a batch independently and keeps them in the first dimension. Its
structure decides that, before the first batch of a kind is computed (`row_trace`), so the same call takes the same way
every time, whatever was computed before. As a second net the first batch is also computed task by task and the results
are compared. Where one pass is refused, fails or differs, batches are computed task by task through the tasks' own
modules, which is always right and slower. `one_pass` says which way is used, `reason` why. A task that changes a layer
without a mixed form is computed alone, and the others as if it were not there.

A model that normalises by the statistics of the batch is always computed task by task: the rows of a task are
normalised by the rows of that task, as if they had been passed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from halrp.errors import DataError
from halrp.model import batch as tree
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.by_task import concatenate, task_by_task
from halrp.model.delta import Delta
from halrp.model.inference import inference_batches, task_logits
from halrp.model.layers.mixed_head import output_dimension
from halrp.model.mixed_network import mixed_network
from halrp.model.per_task import Structure, mixed_pass
from halrp.model.precision import forward_precision, rounding_unit
from halrp.model.rows import NotRowWise, Rows


class MixedModule:
    """The tasks of one base as a function of inputs and of each row's task.

    It shares the base's tensors, holds the deltas stacked once (padded to the largest rank of each layer), and keeps
    nothing between calls but whether the one pass is right, so threads may call it at the same time.
    """

    def __init__(
        self,
        base: Base,
        deltas: Sequence[Delta],
        module_of: Callable[[Delta], nn.Module] | None = None,
        compared: set[Hashable] | None = None,
    ) -> None:
        """Take the tasks in the order in which rows refer to them, and what gives the own module of each.

        Without `module_of` modules are built when they are first needed, and reused. `compared` are the kinds of
        batches of which the one pass has been compared already, with other tasks of the base; more are added to it.
        """
        self._base, self._model, self._plan = base, base.module, base.plan
        self._deltas = tuple(deltas)
        self._classes = [delta.classes for delta in self._deltas]
        first: dict[object, int] = {}
        keys = [("base", delta.autocast) if delta.is_base else id(delta) for delta in self._deltas]
        self._same = [first.setdefault(key, number) for number, key in enumerate(keys)]
        """The first index of each task: several indices may mean the base's own task, and its rows are one group."""
        self._module_of = cache(base.serving_view) if module_of is None else module_of
        self._net: nn.Module | None = None
        self._compared: set[Hashable] = set() if compared is None else compared
        self._reasons: dict[object, str] = {}
        """Why batches are computed task by task, by the kind of batch; under None for every kind."""
        self._alone: dict[int, str] = {}
        """Why a task shares no pass, by its index."""
        try:
            self._net = mixed_network(base, self._deltas, self._view)
        except NotRowWise as reason:
            self._alone = self._refusals()
            sharing = [base.task if number in self._alone else delta for number, delta in enumerate(self._deltas)]
            if all(delta.is_base for delta in sharing):
                self._reasons[None] = str(reason)
            else:
                self._net = mixed_network(base, sharing, self._view)

    @property
    def one_pass(self) -> bool:
        """Whether rows of different tasks have been computed in one pass so far."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why some batches are computed task by task; empty as long as one pass serves."""
        return next(chain(self._reasons.values(), self._alone.values()), "")

    def __call__(self, x: Batch, rows: Tensor) -> Tensor:
        """Logits of N rows of x, where rows (N,) holds the index of each row's task.

        The result is as wide as the widest task among the rows, and −inf where a row's task has no such class. Classes
        are the second dimension if a convolution makes them, (N, classes, H, W), and otherwise the last.
        """
        return self.batched(x, rows, tree.rows(x))

    def batched(self, x: Batch, rows: Tensor, batch: int) -> Tensor:
        """The same for any number of rows, about `batch` of them at a time.

        In one pass a batch is the next rows whose tasks have the same precision. Task by task it is the next rows of
        one task, so that a row is in the same batch as if its task had been passed alone.
        """
        tasks, device = torch.tensor(self._tasks(x, rows)), tree.device_of(x)
        with torch.no_grad(), forward_precision(None, device):
            kinds = [(self._deltas[task].autocast, task in self._alone) for task in tasks.tolist()]
            groups = [
                torch.tensor([n for n, each in enumerate(kinds) if each == kind]) for kind in dict.fromkeys(kinds)
            ]
            if len(groups) == 1:
                return self._one_precision(x, tasks, batch)
            logits = [self._one_precision(tree.take(x, group.to(device)), tasks[group], batch) for group in groups]
            return concatenate(logits)[torch.cat(groups).argsort().to(device)]

    def _tasks(self, x: Batch, rows: Tensor) -> list[int]:
        """The index of each row's task, checked."""
        if rows.shape != (tree.rows(x),) or not len(rows) or rows.dtype not in (torch.int64, torch.int32):
            raise DataError(
                f"rows of shape {tuple(rows.shape)} and type {rows.dtype} for inputs of {tree.describe(x)}: "
                "give the index of a task, an integer, for each of one row or more"
            )
        indices = rows.tolist()
        if min(indices) < 0 or max(indices) >= len(self._deltas):
            wrong = next(index for index in indices if not 0 <= index < len(self._deltas))
            raise DataError(f"rows names task {wrong}, but there are {len(self._deltas)}: 0 … {len(self._deltas) - 1}")
        return [self._same[index] for index in indices]

    # ---- rows whose tasks have one precision --------------------------------------------------------------------

    def _one_precision(self, x: Batch, tasks: Tensor, batch: int) -> Tensor:
        """Logits of rows (N,) of tasks that compute in the same precision: in one pass if that is right."""
        precision = self._deltas[int(tasks[0])].autocast
        kind = tree.kind(x), precision
        alone = self._net is None or int(tasks[0]) in self._alone
        if alone or kind in self._reasons or len(tasks.unique()) == 1:
            return self._task_by_task(x, tasks, batch)
        structure = self._base.structure(x, precision)
        reason = structure.reason
        if not reason:
            try:
                with forward_precision(precision, tree.device_of(x)):
                    return self._in_one_pass(structure, kind, x, tasks, batch)
            except Exception as error:  # of any kind: the tasks' own modules show whether the input is at fault
                reason = _reason(error)
        logits = self._task_by_task(x, tasks, batch)
        self._reasons[kind] = reason
        return logits

    def _in_one_pass(self, structure: Structure, kind: Hashable, x: Batch, tasks: Tensor, batch: int) -> Tensor:
        """Batch after batch of rows; of the first of its kind the result is compared with that of the tasks' modules.

        The comparison only decides: what is returned is the one pass, as in every later call.
        """
        device, parts = tree.device_of(x), []
        for part, of in zip(tree.split(x, batch), tasks.split(batch), strict=True):
            order = of.argsort(stable=True)
            rows, positions = Rows(of[order].tolist(), device), order.to(device)
            if len(rows.groups) == 1:
                parts.append(self._one_task(part, rows.groups[0][0]))
                continue
            logits = self._one_pass(structure, tree.take(part, positions), rows)[positions.argsort()]
            if kind not in self._compared:
                expected = self._task_by_task(part, of, batch)
                reason = _disagreement(logits, expected, self._deltas[int(of[0])].autocast)
                if reason:
                    raise NotRowWise(reason)
                self._compared.add(kind)
            parts.append(logits)
        return concatenate(parts)

    def _one_pass(self, structure: Structure, x: Batch, rows: Rows) -> Tensor:
        """All rows, sorted by task, in one pass."""
        with mixed_pass(rows, structure):
            logits = self._base.call(cast(nn.Module, self._net), x)
        widths = [self._classes[task] for task, _ in rows.groups]
        if min(widths) == max(widths):
            return logits
        dimension = output_dimension(self._model.get_submodule(self._plan.output), logits)
        if logits.shape[dimension] < max(widths):
            raise NotRowWise(f"the one pass gives outputs of shape {tuple(logits.shape)} for {max(widths)} classes")
        logits = logits.narrow(dimension, 0, max(widths))
        classes = torch.tensor(self._classes, device=logits.device)[rows.tasks]
        absent = torch.arange(max(widths), device=logits.device) >= classes[:, None]
        ones = [1] * (logits.dim() - 2)
        shape = [len(rows), *ones, max(widths)] if dimension > 1 else [len(rows), max(widths), *ones]
        return logits.masked_fill(absent.view(shape), -torch.inf)

    def _task_by_task(self, x: Batch, tasks: Tensor, batch: int) -> Tensor:
        """Batches of rows of one task after another."""
        return task_by_task(x, tasks, lambda rows: inference_batches(self._model, rows, batch), self._one_task)

    def _one_task(self, x: Batch, task: int) -> Tensor:
        return task_logits(self._view(task), self._base.call, x, self._deltas[task])

    def _view(self, task: int) -> nn.Module:
        return self._module_of(self._deltas[task])

    # ---- the network for mixed rows ---------------------------------------------------------------------------

    def _refusals(self) -> dict[int, str]:
        """Why tasks cannot share a pass, by their indices. It depends on the names of what a task changes alone."""
        reasons: dict[frozenset[str], str] = {}
        refused = {}
        for number, delta in enumerate(self._deltas):
            names = frozenset(delta.changed)
            if names not in reasons:
                try:
                    mixed_network(self._base, [delta], self._view)
                    reasons[names] = ""
                except NotRowWise as reason:
                    reasons[names] = str(reason)
            if reasons[names]:
                refused[number] = reasons[names]
        return refused


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotRowWise) else f"the one pass failed ({type(error).__name__}: {error})"


def _disagreement(got: Tensor, expected: Tensor, autocast: str | None) -> str:
    """How the logits of one pass differ from those of the tasks' own modules; empty if they agree.

    They agree if no two differ by more than the square root of the rounding unit times the largest logit: 3e-4 in
    float32, where rounding makes about 1e-6 and a row that met another task's layer is off by far more.
    """
    if got.shape != expected.shape:
        return f"the one pass gives logits of shape {tuple(got.shape)}, the tasks' own {tuple(expected.shape)}"
    largest = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else expected.new_ones(())
    tolerance = rounding_unit(autocast, expected.dtype) ** 0.5 * float(largest)
    if torch.allclose(got.to(expected.dtype), expected, rtol=0.0, atol=tolerance, equal_nan=True):
        return ""
    off = float((got - expected).nan_to_num(0.0).abs().max())
    return (
        f"the logits of the one pass differed from the tasks' own by {off:.1e} (tolerance {tolerance:.1e}): "
        "rows are not independent, or not in the first dimension everywhere"
    )
