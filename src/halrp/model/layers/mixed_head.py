"""The heads of all tasks as one layer, for rows of different tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model.layers.conv import MixedConv
from halrp.model.layers.head import HEADS, new_head
from halrp.model.layers.registry import rule_for
from halrp.model.layers.stacks import LayerTasks, WeightStack, scale_and_shift
from halrp.model.rows import ROWS, rows_of


def output_dimension(layer: nn.Module, outputs: Tensor) -> int:
    """Which dimension of a model's outputs counts the classes: (N, classes, *space) or (N, ..., classes)."""
    return 1 if isinstance(layer, HEADS[1:]) else outputs.dim() - 1


class MixedHead:
    """y_n = W_t x_n + b_t for linear heads padded to one width: W (T, widest, I) and b (T, widest)."""

    def __init__(self, path: str, weight: Tensor, bias: Tensor) -> None:
        self.path, self.weight, self.bias = path, weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the heads to x (N, ..., I)."""
        rows = rows_of(x, self.path)
        return scale_and_shift(rows.times(x, self.weight), None, rows.last(self.bias, x))


class MixedHeads:
    """The heads of all tasks as one layer, as wide as the widest task among the rows.

    A width that depends on other tasks would change the last bits of the logits when a wider task is learned later.
    """

    def __init__(self, form: Callable[[int], Callable[[Tensor], Tensor]], classes: Sequence[int]) -> None:
        """Take what makes the layer of a width, and the classes of each task."""
        self.form, self.classes = cache(form), classes

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the heads to x."""
        width = max(self.classes[task] for task, _ in ROWS.get().groups)
        return self.form(width)(x)


class HeadsApart:
    """Heads of a class whose forward is its own: each computes the rows of its task."""

    def __init__(self, tasks: LayerTasks, classes: Sequence[int]) -> None:
        """Take the layer as it is now: it may be changed later."""
        self.path, self.owned, self.classes = tasks.path, tasks.owned, classes
        self.layer = copy.copy(tasks.layer)
        self.layer._parameters = dict(tasks.layer._parameters)
        self.of_task = cache(self._of_task)

    def _of_task(self, task: int) -> nn.Module:
        shared = dict(self.layer.named_parameters())
        owned = {leaf: self.owned[task].get(f"{self.path}.{leaf}") for leaf in shared}
        head = new_head(self.layer, self.classes[task], torch.device("meta"))
        for leaf, parameter in shared.items():
            private = owned[leaf]
            head._parameters[leaf] = parameter if private is None else nn.Parameter(private, requires_grad=False)
        return head

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the heads to x, and give them the width of the widest; a class that a task does not have is −inf."""
        rows = rows_of(x, self.path)
        parts = [self.of_task(task)(x[members.start : members.stop]) for task, members in rows.groups]
        dimension = output_dimension(self.layer, parts[0])
        after = (0, 0) * (parts[0].dim() - dimension - 1)
        width = max(part.shape[dimension] for part in parts)
        missing = [(*after, 0, width - part.shape[dimension]) for part in parts]
        return torch.cat([F.pad(part, pad, value=-torch.inf) for part, pad in zip(parts, missing, strict=True)])


def mixed_head(tasks: LayerTasks, classes: Sequence[int]) -> MixedHeads | HeadsApart:
    """The heads of all tasks as one layer; `classes` are those of each task.

    The bias of a class that a task does not have is −inf, so that a softmax after the head does not see it.
    """
    rule = rule_for(tasks.layer)
    transposed = rule is not None and rule.inputs_first
    if type(tasks.layer) not in HEADS and not transposed:
        return HeadsApart(tasks, classes)
    shared = dict(tasks.layer.named_parameters())
    base_weight = shared["weight"].detach().mT if transposed else shared["weight"].detach()
    weight = base_weight.new_zeros(len(classes), max(classes), *base_weight.shape[1:])
    bias = base_weight.new_full(weight.shape[:2], -torch.inf)
    for task, (owned, width) in enumerate(zip(tasks.owned, classes, strict=True)):
        private = {leaf: owned[f"{tasks.path}.{leaf}"] for leaf in shared if f"{tasks.path}.{leaf}" in owned}
        tensors = private or shared
        weight[task, :width] = tensors["weight"].mT if transposed else tensors["weight"]
        bias[task, :width] = tensors.get("bias", base_weight.new_zeros(width))

    def form(width: int) -> Callable[[Tensor], Tensor]:
        if transposed or isinstance(tasks.layer, nn.Linear):
            return MixedHead(tasks.path, weight[:, :width], bias[:, :width])
        dense = {task: filters[:width].contiguous() for task, filters in enumerate(weight)}
        return MixedConv(tasks, WeightStack(base_weight, [None] * len(weight), dense), bias[:, :width])

    return MixedHeads(form, classes)
