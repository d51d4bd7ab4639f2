"""The head: what makes a task's outputs, and is replaced for every task.

A head is a layer, or a module with several: then the last one that can be built for each number of outputs makes the
outputs, and all the others are drawn again for every task, since nothing of a task starts from what the model has
there. Layers whose pretrained values should count are left out of the head: whoever names the last layer alone has the
others adapted. A model whose outputs stay as they are, such as a language model, keeps its head ("").
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from halrp.errors import HeadError
from halrp.model.layers.registry import family_for

HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layer types that can serve as a head, and whose subclasses can if they have no tensors of their own.

So can linear layers with a transposed weight, which a rule declares (`inputs_first`): transformers' Conv1D.
"""
HeadName = str | Literal[False] | None
"""The name of a head; False keeps the model's own for every task, and None means the last layer."""
APPENDED = ("halrp_linear", "halrp_head")
"""Names of heads that are put on top of a model (`appended`), which no module of a user's model may have."""


# ---- which part of a model is its head --------------------------------------------------------------------------


def find_head(model: nn.Module, name: HeadName = None) -> str:
    """The name of the head: the one given, if it can serve, or else the last layer; "" if the model's own is kept.

    A head that the model holds under several names is called by the first.
    """
    if name is False:
        return ""
    modules = {path: module for path, module in model.named_modules() if path}
    candidates = [path for path, module in modules.items() if _is_linear(module) and not _unfit_layer(module)]
    last = _last_layer(model)
    by_name = [last] if last is not None and last not in candidates and not _unfit_layer(modules[last]) else []
    advice = f"layers that could serve: {', '.join(candidates + by_name) or 'none'}"
    if name is not None:
        named = dict(model.named_modules(remove_duplicate=False)).get(name)
        first: str = next((path for path, module in modules.items() if module is named), name)
        if first not in modules:
            raise HeadError(f"the model has no module named {first!r} to be its head; {advice}")
        if reason := unfit(modules[first]):
            raise HeadError(f"the head {first!r} {reason}; {advice}")
        return first
    if last is not None and last in candidates:
        return last
    reason = "no layer has parameters" if last is None else f"the last layer with parameters, {last!r}, "
    if last is not None:
        reason += _unfit_layer(modules[last]) or f"is a {type(modules[last]).__name__}, not an nn.Linear"
    raise HeadError(
        f"no head found: {reason}; name it with Learner(..., head=...), put one on top with head=nn.Linear(...), or "
        f"keep the model's outputs with head=False; {advice}"
    )


def output_layer(model: nn.Module, head: str) -> str:
    """The name of the layer that makes the outputs: the head, the last such layer in it, or the model's last layer."""
    if head:
        module = model.get_submodule(head)
        return head if not _unfit_layer(module) else f"{head}.{_output_in(module)}"
    last = _last_layer(model)
    if last is None or outputs_of(model.get_submodule(last)) is None:
        kind = "" if last is None else f", a {type(model.get_submodule(last)).__name__},"
        raise HeadError(
            f"head=False: how many outputs the model has does not show in its last layer with parameters, {last!r}"
            f"{kind} which has no out_features, out_channels or num_features; give it that attribute, or name a head"
        )
    return last


def _last_layer(model: nn.Module) -> str | None:
    """The last module that has parameters of its own; one that is parametrized counts itself."""
    layers = [path for path, module in model.named_modules() if path and _has_parameters(module)]
    return layers[-1].partition(".parametrizations.")[0] if layers else None


def _output_in(module: nn.Module) -> str:
    """The last layer inside a module that can be built for each number of outputs; "" if there is none."""
    return next(
        (path for path, layer in reversed(list(module.named_modules())) if path and not _unfit_layer(layer)), ""
    )


def outputs_of(layer: nn.Module) -> int | None:
    """How many outputs a layer makes, or None if that does not show."""
    if _is_layer(layer):
        return int(cast(Tensor, layer.weight).shape[output_axis(layer, "weight")])
    names = ("out_features", "out_channels", "num_features", "num_channels", "embedding_dim")
    known = (getattr(layer, name, None) for name in names)
    shape = getattr(layer, "normalized_shape", ())
    return next((width for width in known if isinstance(width, int)), int(shape[-1]) if shape else None)


def output_axis(layer: nn.Module, leaf: str) -> int:
    """The dimension of a parameter of an output layer that counts the outputs."""
    return 1 if leaf == "weight" and family_for(layer).inputs_first else 0


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or family_for(layer).inputs_first


def _is_layer(layer: nn.Module) -> bool:
    return isinstance(layer, HEADS) or family_for(layer).inputs_first


# ---- whether it can serve ---------------------------------------------------------------------------------------


def unfit(module: nn.Module) -> str:
    """Why a module cannot serve as a head, since it cannot be built for each task; empty if it can."""
    inner = [(path, layer) for path, layer in module.named_modules() if _has_parameters(layer)]
    if _is_layer(module) or not [path for path, _ in inner if path]:
        return _unfit_layer(module)
    kind, output = type(module).__name__, _output_in(module)
    if not output:
        return f"is a {kind} without an nn.Linear or an ungrouped convolution that could be built for each task"
    for path, layer in inner:
        if path != output and _reset_of(layer) is None:
            where = f"with {path!r}, a {type(layer).__name__}" if path else "with parameters of its own"
            return (
                f"is a {kind} {where}, which has no reset_parameters, so it cannot be drawn for each task; give the "
                f"class that method, or name the last layer alone ({output!r} in it)"
            )
    return ""


def _unfit_layer(layer: nn.Module) -> str:
    """Why a layer cannot be built for each number of outputs; empty if it can."""
    kind = type(layer).__name__
    if not _is_layer(layer) or getattr(layer, "groups", 1) != 1:
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


# ---- a new one for a task ---------------------------------------------------------------------------------------


def new_head(head: nn.Module, classes: int, device: torch.device | None = None) -> nn.Module:
    """A fresh layer of the same kind with one output per class, drawn from the global generator."""
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
    """A copy of a head of another class, with all its settings, and new parameters of another width."""
    new = {}
    for leaf, parameter in head.named_parameters():
        shape, axis = list(parameter.shape), output_axis(head, leaf)
        shape[axis] = classes
        new[id(parameter)] = nn.Parameter(torch.empty(shape, **like))
    fresh = copy.deepcopy(head, dict(new))
    names = [name for name in ("out_features", "out_channels", "nf") if hasattr(head, name)]
    for name in names:
        setattr(fresh, name, classes)
    if like["device"].type != "meta":
        reset(fresh)
    return fresh


def reset(layer: nn.Module) -> None:
    """Draw a layer's own parameters from the global generator, as its class does; norms become the identity."""
    draw = _reset_of(layer)
    if draw is not None:
        draw()


def _reset_of(layer: nn.Module) -> Callable[[], Any] | None:
    """What draws the parameters of a layer, or None if nothing does."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(method := getattr(layer, name, None)):
            return cast(Callable[[], Any], method)
    return partial(_reset_transposed, layer) if family_for(layer).inputs_first else None


def _reset_transposed(layer: nn.Module) -> None:
    """Draw as transformers' Conv1D does, which has no method for it."""
    nn.init.normal_(cast(Tensor, layer.weight), std=0.02)
    if getattr(layer, "bias", None) is not None:
        nn.init.zeros_(cast(Tensor, layer.bias))
