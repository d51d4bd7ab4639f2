"""Rows of different tasks in one pass: `MixedModule`.

A copy of the base's tree of modules is made in which every layer that some task changes computes each row as its own
task would (`mixed_layers`); everything else, layers and the code between them, runs as it is, once for the batch.

That is right only if the model treats the rows of a batch independently and keeps them in the first dimension, which
cannot be read off its modules. So it is refused where it is known to be wrong, and otherwise tried: the first mixed
batch is computed a second time, task by task, and the results are compared. Where the one pass is refused, fails or
differs, every batch goes task by task through the tasks' own views from then on, which is always right and slower.
`one_pass` tells which way is used, `reason` why.

A model that normalises by the statistics of the batch always goes task by task: the rows of a task are normalised by
the rows of that task, as if they had been passed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from halrp.errors import DataError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.inference import inference_batches, task_logits, uses_batch_statistics
from halrp.model.layers.mixed import (
    CHANNEL_NORMS,
    LAST_NORMS,
    RECURRENT,
    ROW_WISE,
    MixedConv,
    MixedGroups,
    MixedHead,
    MixedLinear,
    MixedNorm,
    Weights,
)
from halrp.model.layers.registry import rule_for
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
        """The first index of each task: the base may stand for several, and its rows are one group."""
        self._views: dict[int, nn.Module] = {}
        self._net: nn.Module | None = None
        self._compared = False
        self.reason = ""
        """Why batches go task by task; empty as long as they go in one pass."""
        try:
            self._net = self._mixed()
        except NotRowWise as reason:
            self.reason = str(reason)

    @property
    def one_pass(self) -> bool:
        """Whether rows of different tasks go through the network together."""
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
            logits = self._sorted(x[positions], Rows(sorted(tasks), x.device))
            return logits[positions.argsort()]

    def batched(self, x: Tensor, rows: Tensor, batch: int) -> Tensor:
        """The same for any number of rows, at most about `batch` of them at a time.

        In one pass a batch is as many rows as come next. Task by task it is as many rows of one task, so that they meet
        the same rows as if they had been passed alone.
        """
        if self.one_pass:
            pairs = zip(x.split(batch), rows.split(batch), strict=True)
            return _as_wide([self(part, index) for part, index in pairs])
        tasks = torch.tensor(self._tasks(x, rows), device=x.device)
        groups = [(tasks == task).nonzero().flatten() for task in tasks.unique()]
        parts = [part for group in groups for part in group.split(inference_batches(self._model, len(group), batch))]
        logits = _as_wide([self(x[part], rows[part]) for part in parts])
        return logits[torch.cat(parts).argsort()]

    def _tasks(self, x: Tensor, rows: Tensor) -> list[int]:
        """The task of each row, checked."""
        if rows.shape != x.shape[:1] or not len(rows) or rows.dtype not in (torch.int64, torch.int32):
            raise DataError(
                f"rows of shape {tuple(rows.shape)} and type {rows.dtype} for inputs of shape {tuple(x.shape)}: "
                "give the index of a task, an integer, for each of one row or more"
            )
        named = rows.tolist()
        if min(named) < 0 or max(named) >= len(self._deltas):
            wrong = next(index for index in named if not 0 <= index < len(self._deltas))
            raise DataError(f"rows names task {wrong}, but there are {len(self._deltas)}: 0 … {len(self._deltas) - 1}")
        return [self._same[index] for index in named]

    # ---- rows sorted by task ----------------------------------------------------------------------------------

    def _sorted(self, x: Tensor, rows: Rows) -> Tensor:
        if self._net is None or self.reason:
            return self._by_task(x, rows)
        if self._compared:
            try:
                return self._at_once(self._net, x, rows)
            except Exception as error:  # whatever it was: the tasks' own views tell whether the input is at fault
                logits = self._by_task(x, rows)
                self.reason = _sentence(error)
                return logits
        logits = self._by_task(x, rows)
        try:
            reason = _difference(self._at_once(self._net, x, rows), logits)
        except Exception as error:  # the input is not at fault, or the line before would have failed
            reason = _sentence(error)
        # Another thread may compare at the same time; only ever set, a reason it found is not lost.
        if reason:
            self.reason = reason
        self._compared = True
        return logits

    def _at_once(self, net: nn.Module, x: Tensor, rows: Rows) -> Tensor:
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

    def _by_task(self, x: Tensor, rows: Rows) -> Tensor:
        """One pass for each task that is present."""
        return _as_wide([self._one_task(x[members.start : members.stop], task) for task, members in rows.groups])

    def _one_task(self, x: Tensor, task: int) -> Tensor:
        return task_logits(self._view(task), x, self._deltas[task])

    def _view(self, task: int) -> nn.Module:
        if task not in self._views:
            self._views[task] = self._base.view(self._deltas[task])
        return self._views[task]

    # ---- the network for mixed rows ---------------------------------------------------------------------------

    def _mixed(self) -> nn.Module:
        """A copy of the base in which every layer that some task changes is replaced by its mixed form."""
        net = views.shared_copy(self._model).eval()
        for path, module in net.named_modules():
            if uses_batch_statistics(module):
                raise NotRowWise(f"{path} normalises by the statistics of the batch, which mixes its rows")
            if isinstance(module, nn.TransformerEncoderLayer):
                # Its fused form reads the weights of its layers instead of calling them; this is how it is declined.
                module.activation_relu_or_gelu = 0
        for path, leaves in self._changed().items():
            layer = net.get_submodule(path)
            if layer._forward_hooks or layer._forward_pre_hooks:
                raise NotRowWise(f"{path} has hooks")
            mixed = self._mixed_layer(path, layer, leaves)
            layer.__dict__["forward"] = mixed
            if not isinstance(mixed, MixedGroups):
                # Code that reads a tensor of the layer would get the base's; without it, it fails and is noticed.
                for leaf in leaves:
                    (layer._parameters if leaf in layer._parameters else layer._buffers).pop(leaf)
        return net

    def _changed(self) -> dict[str, set[str]]:
        """For every layer that some task changes, the names of the tensors it changes there."""
        holders = dict(self._model.named_modules(remove_duplicate=False))
        names = aliases(
            chain(*(f(remove_duplicate=False) for f in (self._model.named_parameters, self._model.named_buffers)))
        )
        changed: dict[str, set[str]] = {}
        for delta in self._deltas:
            for name in (*delta.factors, *delta.owned):
                path, _, leaf = name.rpartition(".")
                if len({id(holders[alias.rpartition(".")[0]]) for alias in names.get(name, ())}) > 1:
                    raise NotRowWise(f"{' and '.join(names[name])} are tied")
                for outer in _outer(path):
                    if type(holders[outer]) is nn.MultiheadAttention:
                        path, leaf = outer, name[len(outer) + 1 :]
                changed.setdefault(path, set()).add(leaf)
        return changed

    def _mixed_layer(
        self, path: str, layer: nn.Module, leaves: set[str]
    ) -> MixedLinear | MixedConv | MixedHead | MixedNorm | MixedGroups:
        kind = type(layer)
        if path == self._plan.head:
            return self._mixed_head(path, layer)
        if rule_for(layer) is not None and leaves <= {"weight", "bias"}:
            weights = Weights(
                layer.get_parameter("weight").detach(),
                [delta.factors.get(f"{path}.weight") for delta in self._deltas],
                self._owned(f"{path}.weight"),
            )
            bias = self._stack(path, layer, "bias")
            if kind is nn.Linear:
                return MixedLinear(path, weights, bias)
            if kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
                return MixedConv(path, layer, weights, bias)
        statistics = ("weight", "bias", "running_mean", "running_var")
        if kind in (*CHANNEL_NORMS, *LAST_NORMS) and leaves <= {*statistics, "num_batches_tracked"}:
            stacks = {leaf: self._stack(path, layer, leaf) for leaf in statistics}
            return MixedNorm(path, layer, {leaf: stack for leaf, stack in stacks.items() if stack is not None})
        batch_first = kind not in (*RECURRENT, nn.MultiheadAttention) or layer.batch_first
        if kind in ROW_WISE and batch_first:
            return MixedGroups(path, layer, lambda task: self._view(task).get_submodule(path))
        raise NotRowWise(f"{path or 'the model itself'} ({kind.__name__}) is not known to treat rows independently")

    def _mixed_head(self, path: str, layer: nn.Module) -> MixedHead | MixedConv:
        """Heads padded to one width; the bias of a class that a task does not have is −inf."""
        own = layer.get_parameter("weight")
        weight = own.new_zeros(len(self._deltas), max(self._classes), *own.shape[1:])
        bias = own.new_full(weight.shape[:2], -torch.inf)
        for task, (delta, classes) in enumerate(zip(self._deltas, self._classes, strict=True)):
            tensors: Mapping[str, Tensor] = (
                {f"{path}.{leaf}": tensor for leaf, tensor in layer.named_parameters()}
                if delta.is_base
                else delta.owned
            )
            weight[task, :classes] = tensors[f"{path}.weight"]
            bias[task, :classes] = tensors.get(f"{path}.bias", own.new_zeros(classes))
        if isinstance(layer, nn.Linear):
            return MixedHead(path, weight, bias)
        return MixedConv(path, layer, Weights(own.detach(), [None] * len(weight), dict(enumerate(weight))), bias)

    def _owned(self, name: str) -> dict[int, Tensor]:
        return {t: d.owned[name] for t, d in enumerate(self._deltas) if name in d.owned}

    def _stack(self, path: str, layer: nn.Module, leaf: str) -> Tensor | None:
        """A tensor of a layer as each task has it, (T, ...); None if the layer has none."""
        shared: Tensor | None = getattr(layer, leaf, None)
        if shared is None:
            return None
        owned = self._owned(f"{path}.{leaf}")
        return torch.stack([owned.get(task, shared.detach()) for task in range(len(self._deltas))])


def _as_wide(parts: Sequence[Tensor]) -> Tensor:
    """Parts of a result below each other, as wide as the widest, filled up with −inf."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([nn.functional.pad(part, (0, width - part.shape[1]), value=-torch.inf) for part in parts])


def _outer(path: str) -> Iterator[str]:
    """The paths of the modules around a module and of itself, from the inside out."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, NotRowWise) else f"the one pass failed ({type(error).__name__}: {error})"


def _difference(got: Tensor, expected: Tensor) -> str:
    """Say how the logits of the one pass differ from those of the tasks' own passes; empty if they agree.

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
