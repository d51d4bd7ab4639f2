"""Rows of different tasks in one pass: `MixedModule`.

In a copy of the base's tree of modules, every layer that some task changes computes each row as that row's task would
(the mixed forms in `layers`). Everything else, layers and the code between them, runs as it is, once for the batch.

That is right only if the model treats the rows of a batch independently and keeps them in the first dimension, which
its modules do not show. So one pass is refused where it is known to be wrong, and otherwise checked: the first mixed
batch is computed a second time, task by task, and the results are compared. Where one pass is refused, fails or
differs, every later batch is computed task by task through the tasks' own modules, which is always right and slower.
`one_pass` says which way is used, `reason` why.

A model that normalises by the statistics of the batch is always computed task by task: the rows of a task are
normalised by the rows of that task, as if they had been passed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from halrp.errors import DataError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.inference import inference_batches, task_logits
from halrp.model.layers.head import mixed_head
from halrp.model.layers.registry import family_for, rule_for
from halrp.model.layers.stacks import LayerTasks
from halrp.model.plan import aliases
from halrp.model.rows import ROWS, NotRowWise, Rows


class MixedModule:
    """The tasks of one base as a function of inputs and of each row's task.

    It shares the base's tensors, holds the deltas stacked once (padded to the largest rank of each layer), and keeps
    nothing between calls but whether the one pass is right, so threads may call it at the same time.
    """

    def __init__(self, base: Base, deltas: Sequence[Delta]) -> None:
        """Take the tasks in the order in which rows refer to them."""
        self._base, self._model, self._plan = base, base.module, base.plan
        self._deltas = tuple(base.task if delta.is_base else delta for delta in deltas)
        self._classes = [delta.classes for delta in self._deltas]
        first: dict[int, int] = {}
        self._same = [first.setdefault(id(delta), index) for index, delta in enumerate(self._deltas)]
        """The first index of each task: several indices may mean the base's own task, and its rows are one group."""
        self._views: dict[int, nn.Module] = {}
        self._net: nn.Module | None = None
        self._compared = False
        self.reason = ""
        """Why batches are computed task by task; empty as long as one pass serves."""
        try:
            self._net = self._mixed_network()
        except NotRowWise as reason:
            self.reason = str(reason)

    @property
    def one_pass(self) -> bool:
        """Whether rows of different tasks are computed in one pass."""
        return not self.reason

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        """Logits of x (N, ...), where rows (N,) holds the index of each row's task.

        The result is as wide as the widest task among the rows, and −inf where a row's task has no such class.
        """
        tasks = self._tasks(x, rows)
        with torch.no_grad():
            if len(set(tasks)) == 1:
                return self._one_task(x, tasks[0])
            order = sorted(range(len(tasks)), key=tasks.__getitem__)
            positions = torch.tensor(order, device=x.device)
            logits = self._predict_sorted(x[positions], Rows(sorted(tasks), x.device))
            return logits[positions.argsort()]

    def batched(self, x: Tensor, rows: Tensor, batch: int) -> Tensor:
        """The same for any number of rows, about `batch` of them at a time.

        In one pass a batch is the next rows. Task by task it is the next rows of one task, so that a row is in the same
        batch as if its task had been passed alone.
        """
        if self.one_pass:
            pairs = zip(x.split(batch), rows.split(batch), strict=True)
            return _concatenate([self(part, index) for part, index in pairs])
        tasks = torch.tensor(self._tasks(x, rows), device=x.device)
        groups = [(tasks == task).nonzero().flatten() for task in tasks.unique()]
        parts = [part for group in groups for part in group.split(inference_batches(self._model, len(group), batch))]
        logits = _concatenate([self(x[part], rows[part]) for part in parts])
        return logits[torch.cat(parts).argsort()]

    def _tasks(self, x: Tensor, rows: Tensor) -> list[int]:
        """The index of each row's task, checked."""
        if rows.shape != x.shape[:1] or not len(rows) or rows.dtype not in (torch.int64, torch.int32):
            raise DataError(
                f"rows of shape {tuple(rows.shape)} and type {rows.dtype} for inputs of shape {tuple(x.shape)}: "
                "give the index of a task, an integer, for each of one row or more"
            )
        indices = rows.tolist()
        if min(indices) < 0 or max(indices) >= len(self._deltas):
            wrong = next(index for index in indices if not 0 <= index < len(self._deltas))
            raise DataError(f"rows names task {wrong}, but there are {len(self._deltas)}: 0 … {len(self._deltas) - 1}")
        return [self._same[index] for index in indices]

    # ---- rows sorted by task ----------------------------------------------------------------------------------

    def _predict_sorted(self, x: Tensor, rows: Rows) -> Tensor:
        if self._net is None or self.reason:
            return self._task_by_task(x, rows)
        if self._compared:
            try:
                return self._one_pass(self._net, x, rows)
            except Exception as error:  # of any kind: the tasks' own modules show whether the input is at fault
                logits = self._task_by_task(x, rows)
                self.reason = _reason(error)
                return logits
        logits = self._task_by_task(x, rows)
        try:
            reason = _disagreement(self._one_pass(self._net, x, rows), logits)
        except Exception as error:  # the input is not at fault, or the line before would have failed
            reason = _reason(error)
        # Another thread may compare at the same time: a reason that it has set must stay.
        if reason:
            self.reason = reason
        self._compared = True
        return logits

    def _one_pass(self, net: nn.Module, x: Tensor, rows: Rows) -> Tensor:
        """All rows in one pass."""
        token = ROWS.set(rows)
        try:
            logits: Tensor = net(x)
        finally:
            ROWS.reset(token)
        widths = [self._classes[task] for task, _ in rows.groups]
        logits = logits[:, : max(widths)]
        if min(widths) == max(widths):
            return logits
        classes = torch.tensor(self._classes, device=x.device)[rows.tasks]
        absent = torch.arange(max(widths), device=x.device) >= classes[:, None]
        return logits.masked_fill(absent, -torch.inf)

    def _task_by_task(self, x: Tensor, rows: Rows) -> Tensor:
        """One pass for each task that is present."""
        return _concatenate([self._one_task(x[members.start : members.stop], task) for task, members in rows.groups])

    def _one_task(self, x: Tensor, task: int) -> Tensor:
        return task_logits(self._view(task), x, self._deltas[task])

    def _view(self, task: int) -> nn.Module:
        if task not in self._views:
            self._views[task] = self._base.view(self._deltas[task])
        return self._views[task]

    # ---- the network for mixed rows ---------------------------------------------------------------------------

    def _mixed_network(self) -> nn.Module:
        """A copy of the base in which every layer that some task changes has its mixed forward pass."""
        net = views.shared_copy(self._model).eval()
        for path, module in net.named_modules():
            family_for(module).prepare_mixed(path, module)
        for path, leaves in self._changed().items():
            layer = net.get_submodule(path)
            if layer._forward_hooks or layer._forward_pre_hooks:
                raise NotRowWise(f"{path} has hooks")
            layer.__dict__["forward"] = self._mixed_forward(path, layer, leaves)
            rule = rule_for(layer)
            for leaf in leaves if rule is None or rule.hides_tensors else ():
                (layer._parameters if leaf in layer._parameters else layer._buffers).pop(leaf)
        return net

    def _changed(self) -> dict[str, set[str]]:
        """For every layer that some task changes, the names of the tensors it changes there."""
        holders = dict(self._model.named_modules(remove_duplicate=False))
        listings = self._model.named_parameters, self._model.named_buffers
        names = aliases(chain.from_iterable(listing(remove_duplicate=False) for listing in listings))
        changed: dict[str, set[str]] = {}
        for name in dict.fromkeys(chain.from_iterable((*d.factors, *d.owned) for d in self._deltas)):
            if len({id(holders[alias.rpartition(".")[0]]) for alias in names.get(name, ())}) > 1:
                raise NotRowWise(f"{' and '.join(names[name])} are tied")
            path = name.rpartition(".")[0]
            for outer in _enclosing(path):
                rule = rule_for(holders[outer])
                if rule is not None and rule.reads_children:
                    path = outer
            changed.setdefault(path, set()).add(name[len(path) + 1 :] if path else name)
        return changed

    def _mixed_forward(self, path: str, layer: nn.Module, leaves: set[str]) -> Callable[..., Any]:
        tasks = LayerTasks(
            path,
            layer,
            frozenset(leaves),
            [delta.factors for delta in self._deltas],
            [delta.owned for delta in self._deltas],
            lambda task: self._view(task).get_submodule(path),
        )
        if path == self._plan.head:
            return mixed_head(tasks, self._classes)
        rule = rule_for(layer)
        if rule is None:
            raise tasks.not_row_wise()
        if "mixed" in rule.lacks:
            raise tasks.not_row_wise(f"the layer rule for {type(layer).__name__} has no mixed form")
        return rule.mixed(tasks)


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate logits of batches, padded with −inf to the widest."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([nn.functional.pad(part, (0, width - part.shape[1]), value=-torch.inf) for part in parts])


def _enclosing(path: str) -> Iterator[str]:
    """The path of a module, then those of the modules around it, from the inside out."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotRowWise) else f"the one pass failed ({type(error).__name__}: {error})"


def _disagreement(got: Tensor, expected: Tensor) -> str:
    """How the logits of one pass differ from those of the tasks' own modules; empty if they agree.

    They agree if no two differ by more than the square root of the rounding unit times the largest logit: 3e-4 in
    float32, where rounding makes about 1e-6 and a row that met another task's layer is off by far more.
    """
    if got.shape != expected.shape:
        return f"the one pass gives logits of shape {tuple(got.shape)}, the tasks' own {tuple(expected.shape)}"
    device = expected.device.type
    precise = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else expected.dtype
    largest = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else expected.new_ones(())
    tolerance = torch.finfo(precise).eps ** 0.5 * float(largest)
    if torch.allclose(got.to(expected.dtype), expected, rtol=0.0, atol=tolerance, equal_nan=True):
        return ""
    off = float((got - expected).nan_to_num(0.0).abs().max())
    return (
        f"the logits of the one pass differed from the tasks' own by {off:.1e} (tolerance {tolerance:.1e}): "
        "rows are not independent, or not in the first dimension everywhere"
    )
