"""The head: the layer that makes the logits, replaced for every task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.errors import HeadError
from halrp.model.layers.conv import MixedConv
from halrp.model.layers.stacks import LayerTasks, WeightStack, scale_and_shift
from halrp.model.rows import ROWS, rows_of

HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layer types that can serve as a head, and whose subclasses can if they have no tensors of their own."""


def find_head(model: nn.Module, name: str | None = None) -> str:
    """The name of the classifier head: the one given, if it can serve, or else the last layer of the model.

    A head that the model holds under several names is called by the first.
    """
    modules = {path: module for path, module in model.named_modules() if path}
    candidates = [path for path, module in modules.items() if isinstance(module, nn.Linear) and not unfit(module)]
    advice = f"layers that could serve: {', '.join(candidates) or 'none'}"
    if name is not None:
        named = dict(model.named_modules(remove_duplicate=False)).get(name)
        name = next((path for path, module in modules.items() if module is named), name)
        if name not in modules:
            raise HeadError(f"the model has no module named {name!r} to be its head; {advice}")
        if reason := unfit(modules[name]):
            raise HeadError(f"the head {name!r} {reason}; {advice}")
        return name
    layers = [path for path, module in modules.items() if any(True for _ in module.parameters(recurse=False))]
    last: str | None = layers[-1].partition(".parametrizations.")[0] if layers else None
    if last is not None and last in candidates:
        return last
    reason = "no layer has parameters" if last is None else f"the last layer with parameters, {last!r}, "
    if last is not None:
        reason += unfit(modules[last]) or f"is a {type(modules[last]).__name__}, not an nn.Linear"
    raise HeadError(f"no head found: {reason}; name it with Learner(..., head=...); {advice}")


def unfit(layer: nn.Module) -> str:
    """Why a layer cannot serve as a head, since it cannot be built for each number of classes; empty if it can."""
    kind = type(layer).__name__
    if not isinstance(layer, HEADS) or getattr(layer, "groups", 1) != 1:
        return (
            f"is a {kind}; it must be an nn.Linear or an ungrouped convolution, so that it can be built for each "
            "number of classes"
        )
    tensors = {name for name, _ in (*layer.named_parameters(), *layer.named_buffers())}
    if extra := sorted(tensors - {"weight", "bias"}) or ["no weight"] * ("weight" not in tensors):
        return (
            f"is a {kind} with {', '.join(extra[:3])} besides weight and bias, so it cannot be built for each number "
            "of classes; give a layer with weight and bias alone (torch.nn.utils.parametrize.remove_parametrizations)"
        )
    return ""


def new_head(head: nn.Module, classes: int, device: torch.device | None = None) -> nn.Module:
    """A fresh head of the same kind with one output per class, drawn from the global generator."""
    weight = cast(Tensor, head.weight)
    like: dict[str, Any] = {"device": device or weight.device, "dtype": weight.dtype}
    if type(head) not in HEADS:
        return _new_subclass_head(head, classes, like)
    if isinstance(head, nn.Linear):
        return nn.Linear(head.in_features, classes, bias=head.bias is not None, **like)
    conv = cast(nn.Conv2d, head)
    return type(conv)(
        conv.in_channels,
        classes,
        cast(Any, conv.kernel_size),
        stride=cast(Any, conv.stride),
        padding=cast(Any, conv.padding),
        dilation=cast(Any, conv.dilation),
        bias=conv.bias is not None,
        padding_mode=cast(Any, conv.padding_mode),
        **like,
    )


def _new_subclass_head(head: nn.Module, classes: int, like: dict[str, Any]) -> nn.Module:
    """A copy of a head of a user's class, with all its settings, and new parameters of another width."""
    new = {
        id(parameter): nn.Parameter(torch.empty(classes, *parameter.shape[1:], **like))
        for parameter in head.parameters()
    }
    fresh = copy.deepcopy(head, dict(new))
    setattr(fresh, "out_features" if isinstance(head, nn.Linear) else "out_channels", classes)
    if like["device"].type != "meta":
        cast(nn.Linear, fresh).reset_parameters()
    return fresh


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


def mixed_head(tasks: LayerTasks, classes: Sequence[int]) -> MixedHeads:
    """The heads of all tasks as one layer; `classes` are those of each task.

    The bias of a class that a task does not have is −inf, so that a softmax after the head does not see it.
    """
    if type(tasks.layer) not in HEADS:  # its forward may be another
        raise tasks.not_row_wise()
    shared = dict(tasks.layer.named_parameters())
    base_weight = shared["weight"].detach()
    weight = base_weight.new_zeros(len(classes), max(classes), *base_weight.shape[1:])
    bias = base_weight.new_full(weight.shape[:2], -torch.inf)
    for task, (owned, width) in enumerate(zip(tasks.owned, classes, strict=True)):
        private = {leaf: owned[f"{tasks.path}.{leaf}"] for leaf in shared if f"{tasks.path}.{leaf}" in owned}
        tensors = private or shared
        weight[task, :width] = tensors["weight"]
        bias[task, :width] = tensors.get("bias", base_weight.new_zeros(width))

    def form(width: int) -> Callable[[Tensor], Tensor]:
        if isinstance(tasks.layer, nn.Linear):
            return MixedHead(tasks.path, weight[:, :width], bias[:, :width])
        dense = {task: filters[:width].contiguous() for task, filters in enumerate(weight)}
        return MixedConv(tasks, WeightStack(base_weight, [None] * len(weight), dense), bias[:, :width])

    return MixedHeads(form, classes)
