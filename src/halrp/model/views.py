"""A task as an `nn.Module` that shares the base's tensors, and as one that shares nothing.

A view is a copy of the model's tree of modules whose parameters and buffers *are* the base's tensors, except for those
that the task owns or adapts. Building one costs no memory beyond the delta. Writing to it would change the base, so
views are for the library alone; `share` makes one for users, from tensors that only read the base's memory.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halrp import seeding
from halrp.errors import ModelError
from halrp.model.factors import Factors
from halrp.model.layers.head import new_head, reset
from halrp.model.layers.merged import Merged, adapt_merged
from halrp.model.layers.registry import adapt
from halrp.model.plan import Plan, aliases
from halrp.model.sharing import modules_to_copy


def clone(model: nn.Module, share: Mapping[int, Any] | None = None) -> nn.Module:
    """Copy a model; for tensors and modules whose id is in `share`, what stands there is used.

    Tensors that a forward pass left in attributes (activations, attention maps) belong to a graph that cannot be
    copied; the copy has their values.
    """
    attributes = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in attributes if not tensor.is_leaf}
    try:
        return copy.deepcopy(model, memo | dict(share or {}))
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied ({type(error).__name__}: {error}); it must support copy.deepcopy"
        ) from error


Share = Callable[[Tensor], Tensor]
"""What stands for a tensor of the base in a copy of its modules."""


def itself(tensor: Tensor) -> Tensor:
    """The base's own tensor."""
    return tensor


def shared_copy(model: nn.Module, share: Share = itself, changed: Collection[str] | None = None) -> nn.Module:
    """Copy a model's tree of modules; every parameter and buffer is what `share` makes of the model's own.

    With `changed` only the modules with these paths are copied, those around them, and those that may keep something
    of what they compute (`sharing`); the others are the model's own.
    """
    same: dict[int, Any] = {id(tensor): share(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if changed is not None:
        copied = modules_to_copy(model, changed)
        same |= {id(module): module for module in model.modules() if id(module) not in copied}
    return clone(model, same)


def trainable_copy(
    base: nn.Module, plan: Plan, classes: int, others: Mapping[int, Tensor] = types.MappingProxyType({})
) -> nn.Module:
    """Copy the base with a new head, for training. Shared parameters stay frozen and shared.

    `others` are used in place of the base's tensors with these ids. The head is drawn from the global generator;
    callers isolate it.
    """
    share = {id(p): p for name, p in base.named_parameters() if plan.parameters[name].kind == "shared"}
    net = clone(base, {**share, **others})
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(plan.parameters[name].kind != "shared")
    if plan.head:
        for path, layer in list(net.get_submodule(plan.head).named_modules(prefix=plan.head)):
            if path == plan.output:
                replace_output(net, base, plan, classes)
            elif any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
                reset(layer)
    return net


def redrawn_buffers(base: nn.Module, plan: Plan) -> frozenset[str]:
    """The buffers of a new head that are not the base's, such as the statistics of a norm in it that have been run."""
    names = set()
    for path, layer in base.get_submodule(plan.head).named_modules(prefix=plan.head) if plan.head else ():
        old = {n: b for n, b in layer.named_buffers(recurse=False) if not (b.is_meta or is_lazy(b))}
        if path == plan.output or not old:
            continue
        new = clone(layer)
        with seeding.isolated("buffers", device=next(iter(old.values())).device):
            reset(new)
        names |= {f"{path}.{name}" for name, buffer in old.items() if not torch.equal(buffer, new.get_buffer(name))}
    return frozenset(names)


def replace_output(
    net: nn.Module, base: nn.Module, plan: Plan, classes: int, device: torch.device | None = None
) -> None:
    """Give a copy of the base an output layer of another width, unless tasks keep the base's outputs."""
    if plan.head:
        replace_module(net, plan.output, new_head(base.get_submodule(plan.output), classes, device))


def task_view(
    base: nn.Module,
    plan: Plan,
    factors: Mapping[str, Factors],
    owned: Mapping[str, Tensor],
    classes: int | None = None,
    private_buffers: bool = False,
    share: Share = itself,
    reuse: bool = False,
) -> nn.Module:
    """Build a task's module over the base from its factors and owned tensors, which are used as they are.

    With `classes` the head is replaced by one of that width before the owned tensors are set. With
    `private_buffers` buffers are copied, so that training may write to them. With `reuse` modules that the task does
    not change are the base's own, which must then stay in evaluation mode.
    """
    net = shared_copy(base, share, _holders(base, plan, (*factors, *owned)) if reuse else None)
    if private_buffers:
        copies: dict[int, Tensor] = {}
        for name, buffer in list(net.named_buffers(remove_duplicate=False)):
            set_tensor(net, name, copies.setdefault(id(buffer), buffer.clone()))
    if classes is not None:
        replace_output(net, base, plan, classes, torch.device("meta"))
    _set_owned(net, base, plan, owned)
    for name, part in factors.items():
        if plan.parameters[name].by_rule:
            adapt(net.get_submodule(name.rpartition(".")[0]), part)
        else:
            _merge_tied(net, plan.parameters[name].aliases, Merged(part))
    return net.eval()


def _holders(base: nn.Module, plan: Plan, names: Iterable[str]) -> set[str]:
    """The paths of the modules that hold tensors with these names, and of the layer that makes the outputs."""
    buffers = aliases(base.named_buffers(remove_duplicate=False))
    known = {name: parameter.aliases for name, parameter in plan.parameters.items()}
    held = chain.from_iterable(known.get(name) or buffers.get(name, (name,)) for name in names)
    return {plan.output, *(name.rpartition(".")[0] for name in held)}


def _set_owned(net: nn.Module, base: nn.Module, plan: Plan, owned: Mapping[str, Tensor]) -> None:
    """Set a task's private tensors under every name of each."""
    buffer_names = aliases(base.named_buffers(remove_duplicate=False))
    for name, tensor in owned.items():
        parameter = plan.parameters.get(name)
        if parameter is not None and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=False)  # one object, so that tied weights stay tied
        for alias in parameter.aliases if parameter is not None else buffer_names.get(name, (name,)):
            set_tensor(net, alias, tensor)


def _merge_tied(net: nn.Module, names: Sequence[str], merged: Merged) -> None:
    """Make a weight read as its merged form in every layer that holds it, once in each."""
    holders = {(id(net.get_submodule(path)), leaf): path for path, _, leaf in (name.rpartition(".") for name in names)}
    for (_, leaf), path in holders.items():
        adapt_merged(net.get_submodule(path), leaf, merged)


def merged_view(
    base: nn.Module,
    plan: Plan,
    factors: Mapping[str, Factors],
    owned: Mapping[str, Tensor],
    classes: int,
    factored: Container[str] = (),
) -> nn.Module:
    """A task's module with merged weights, of the model's own classes, for calls in evaluation mode.

    It shares all that the task does not change, modules as well as tensors. Weights that are named in `factored` keep
    their factors.
    """
    weights = dict(base.named_parameters())
    merged = {name: _merged(weights[name].detach(), part) for name, part in factors.items() if name not in factored}
    rest = {name: part for name, part in factors.items() if name in factored}
    return task_view(base, plan, rest, {**owned, **merged}, classes, reuse=True)


def _merged(weight: Tensor, part: Factors) -> Tensor:
    """A merged weight in the memory format of the base's."""
    merged = part.merged(weight)
    return merged if merged.stride() == weight.stride() else torch.empty_like(weight).copy_(merged)


def replace_module(net: nn.Module, path: str, module: nn.Module) -> None:
    """Replace a module by another under every name that the model has for it."""
    old = net.get_submodule(path)
    for parent in list(net.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, module)


def set_tensor(net: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or buffer of a model; a parameter stays one."""
    path, _, leaf = name.rpartition(".")
    owner = net.get_submodule(path)
    if leaf in owner._parameters and not isinstance(tensor, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
    setattr(owner, leaf, tensor)


def get_tensor(net: nn.Module, name: str) -> Tensor:
    """The parameter or buffer with this name."""
    path, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(net.get_submodule(path), leaf)
    return tensor
