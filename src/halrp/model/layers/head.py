"""The head: the layer that makes the logits, replaced for every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.errors import HeadError
from halrp.model.layers.conv import MixedConv
from halrp.model.layers.stacks import LayerTasks, WeightStack, scale_and_shift
from halrp.model.rows import rows_of

HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layer types that can serve as a head."""


def find_head(model: nn.Module, name: str | None = None) -> str:
    """The name of the classifier head: the one given, if it can serve, or else the last layer of the model.

    A head that the model holds under several names is called by the first.
    """
    modules = {path: module for path, module in model.named_modules() if path}
    candidates = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
    advice = f"layers that could serve: {', '.join(candidates) or 'none'}"
    if name is not None:
        named = dict(model.named_modules(remove_duplicate=False)).get(name)
        name = next((path for path, module in modules.items() if module is named), name)
        if name not in modules:
            raise HeadError(f"the model has no module named {name!r} to be its head; {advice}")
        if type(modules[name]) not in HEADS or getattr(modules[name], "groups", 1) != 1:
            raise HeadError(
                f"the head {name!r} is a {type(modules[name]).__name__}; it must be an nn.Linear or an ungrouped "
                f"convolution, so that it can be built for each number of classes; {advice}"
            )
        return name
    layers = [path for path, module in modules.items() if any(True for _ in module.parameters(recurse=False))]
    last: str | None = layers[-1] if layers else None
    if last is not None and type(modules[last]) is nn.Linear:
        return last
    raise HeadError(
        f"no head found: the last layer with parameters, {last!r}, is not an nn.Linear; "
        f"name it with Learner(..., head=...); {advice}"
    )


def new_head(head: nn.Module, classes: int, device: torch.device | None = None) -> nn.Module:
    """A fresh head of the same kind with one output per class, drawn from the global generator."""
    weight = cast(Tensor, head.weight)
    like: dict[str, Any] = {"device": device or weight.device, "dtype": weight.dtype}
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


class MixedHead:
    """y_n = W_t x_n + b_t for linear heads padded to one width: W (T, widest, I) and b (T, widest)."""

    def __init__(self, path: str, weight: Tensor, bias: Tensor) -> None:
        self.path, self.weight, self.bias = path, weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the heads to x (N, ..., I)."""
        rows = rows_of(x, self.path)
        return scale_and_shift(rows.times(x, self.weight), None, rows.last(self.bias, x))


def mixed_head(tasks: LayerTasks, classes: Sequence[int]) -> MixedHead | MixedConv:
    """The heads of all tasks as one layer, padded to the widest; `classes` are those of each task.

    The bias of a class that a task does not have is −inf, so that a softmax after the head does not see it.
    """
    shared = dict(tasks.layer.named_parameters())
    base_weight = shared["weight"].detach()
    weight = base_weight.new_zeros(len(classes), max(classes), *base_weight.shape[1:])
    bias = base_weight.new_full(weight.shape[:2], -torch.inf)
    for task, (owned, width) in enumerate(zip(tasks.owned, classes, strict=True)):
        private = {leaf: owned[f"{tasks.path}.{leaf}"] for leaf in shared if f"{tasks.path}.{leaf}" in owned}
        tensors = private or shared
        weight[task, :width] = tensors["weight"]
        bias[task, :width] = tensors.get("bias", base_weight.new_zeros(width))
    if isinstance(tasks.layer, nn.Linear):
        return MixedHead(tasks.path, weight, bias)
    stack = WeightStack(base_weight, [None] * len(weight), dict(enumerate(weight)))
    return MixedConv(tasks, stack, bias)
