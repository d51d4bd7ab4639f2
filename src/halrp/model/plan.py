"""What happens to each parameter of a model, decided once and before anything is trained.

A parameter is *adapted* (frozen base weight plus a low-rank delta per task), *owned* (a full private copy per task)
or *shared* (the base's, for every task). What a layer family says about its parameters is in `layers`. What cannot be
handled correctly is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halrp.errors import HeadError, ModelError
from halrp.model.layers.head import HeadName, find_head, output_axis, output_layer
from halrp.model.layers.registry import Decision, Kind, Role, family_for

__all__ = ["Kind", "ParameterPlan", "Plan", "Problem", "Role", "aliases", "examine", "plan", "trained_buffers"]


@dataclass(frozen=True)
class ParameterPlan:
    """What happens to one parameter, and why."""

    name: str
    kind: Kind
    role: Role
    shape: tuple[int, ...]
    aliases: tuple[str, ...]
    """Every name under which the model holds this parameter; more than one when weights are tied."""
    reason: str
    by_rule: bool = False
    """Adapted through the layer's adapted form rather than through the merged weight."""
    widths: Mapping[str, int] | None = None
    """Columns of the weight as a matrix, by view ("full", and "mean" for kernels); None if it is not adapted."""
    output_axis: int = 0
    """Of a parameter of the head: the dimension that counts the task's outputs; −1 if none does."""

    @property
    def kernel(self) -> bool:
        """Whether the dimensions after the second are positions of a convolution's kernel."""
        return self.widths is not None and "mean" in self.widths


@dataclass(frozen=True)
class Plan:
    """What happens to every parameter of a model, and the name of its head."""

    head: str
    """What is replaced for every task; "" if all tasks have the model's own outputs."""
    parameters: Mapping[str, ParameterPlan]
    output: str = ""
    """The layer that makes the outputs: the head, or a layer in it, or where none is replaced the model's last."""

    def named(self, kind: str) -> dict[str, ParameterPlan]:
        """The parameters of one kind, by name, in the model's order."""
        return {name: parameter for name, parameter in self.parameters.items() if parameter.kind == kind}

    def shape_for(self, name: str, shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
        """The shape of a tensor in a network with a number of outputs; `shape` is that in the base."""
        parameter = self.parameters.get(name)
        if parameter is None or parameter.role != "head" or parameter.output_axis < 0:
            return shape
        axis = parameter.output_axis
        return (*shape[:axis], outputs, *shape[axis + 1 :])

    def role(self, name: str) -> Role:
        """The role of a parameter or buffer that a task owns."""
        parameter = self.parameters.get(name)
        if parameter is not None:
            return parameter.role
        return "head" if self.head and name.startswith(f"{self.head}.") else "buffer"


@dataclass(frozen=True)
class Problem:
    """Why a model is refused: the parameters at fault (none if it is the model as a whole), and the error to raise."""

    names: tuple[str, ...]
    error: ModelError


def plan(model: nn.Module, head: HeadName = None) -> Plan:
    """Plan every parameter of a model, or refuse the model by naming what is wrong."""
    planned, problems = examine(model, head)
    if problems:
        raise problems[0].error
    without = next(
        (name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta), None
    )
    if without is not None:
        raise ModelError(f"{without}: it is on the meta device and has no values; build the model on a real device")
    return planned


def examine(model: nn.Module, head: HeadName = None) -> tuple[Plan, list[Problem]]:
    """Plan every parameter that can be handled, and list every problem instead of raising the first.

    With problems the plan is for display only: parameters at fault are not in it, and its head may be "".
    """
    if isinstance(model, torch.jit.ScriptModule):
        error = ModelError("a scripted model cannot be adapted; pass the nn.Module it was scripted from")
        return Plan("", {}), [Problem((), error)]
    problems = [
        Problem((name,), ModelError(f"{name}: the parameter is not initialised; run one batch through the model first"))
        for name, parameter in model.named_parameters()
        if is_lazy(parameter)
    ]
    lazy = {name for problem in problems for name in problem.names}
    path = output = ""
    try:
        path = find_head(model, head)
        output = output_layer(model, path)
    except HeadError as error:
        if not lazy:  # a lazy layer may become a head once it is initialised
            problems.append(Problem((), error.with_traceback(None)))
    parameters = {name: parameter for name, parameter in model.named_parameters() if name not in lazy}
    problems += _overlaps(parameters)
    problems += [
        Problem((name,), ModelError(f"{name}: buffers of type {buffer.dtype} cannot be stored; use complex64"))
        for name, buffer in model.named_buffers()
        if buffer.dtype == torch.complex128
    ]
    problems += _devices(model)
    names = aliases(model.named_parameters(remove_duplicate=False))
    owners = dict(model.named_modules(remove_duplicate=False))
    planned = {}
    for name, parameter in parameters.items():
        try:
            planned[name] = _plan_parameter(parameter, names[name], owners, path, output)
        except ModelError as error:
            problems.append(Problem((name,), error.with_traceback(None)))
    if not problems and not any(parameter.kind == "adapted" for parameter in planned.values()):
        nothing = ModelError(
            "the model has no adaptable layer besides its head: every parameter is small, a bias, a norm or frozen; "
            f"a delta would be a full copy; take a base with larger layers, or train a model for each task. Head: "
            f"{path!r}; parameters: {', '.join(planned) or 'none'}"
        )
        problems.append(Problem((), nothing))
    return Plan(path, planned, output), problems


def trained_buffers(model: nn.Module) -> frozenset[str]:
    """The buffers that training changes, as the rules of their layers declare: running statistics."""
    owners = dict(model.named_modules())
    split = ((name, *name.rpartition(".")[::2]) for name, _ in model.named_buffers())
    return frozenset(name for name, path, leaf in split if leaf in family_for(owners[path]).trained_buffers)


def _plan_parameter(
    parameter: Tensor, names: tuple[str, ...], owners: Mapping[str, nn.Module], head: str, output: str
) -> ParameterPlan:
    """Plan the parameter that a model holds under some names."""
    decision = _decide(parameter, names, owners, head)
    (owner, leaf), shape = _owner(names[0], owners), tuple(parameter.shape)
    family, axis = family_for(owner), 0
    if decision.role == "head":
        axis = output_axis(owner, leaf) if owner is owners[output] else -1
    return ParameterPlan(
        name=names[0],
        kind=decision.kind,
        role=decision.role,
        shape=shape,
        aliases=names,
        reason=decision.reason,
        by_rule=decision.by_rule,
        widths=family.matrix_widths(shape) if decision.kind == "adapted" else None,
        output_axis=axis,
    )


def _decide(parameter: Tensor, names: tuple[str, ...], owners: Mapping[str, nn.Module], head: str) -> Decision:
    holders = [_owner(name, owners) for name in names]
    if head and any(name.startswith(f"{head}.") for name in names):
        if len({id(owner) for owner, _ in holders}) > 1:
            raise HeadError(
                f"{' and '.join(names)} are one tied parameter, but the head {head!r} is replaced for every task; "
                "untie them (copy the parameter), name another head, or keep the model's own for every task: head=False"
            )
        return Decision("owned", "head", "classifier head, replaced for every task")
    if not parameter.requires_grad:
        return Decision("shared", "other", "requires_grad is off in the model: the base's value serves every task")
    if parameter.is_complex() or not parameter.is_floating_point():
        raise ModelError(f"{names[0]}: parameters of type {parameter.dtype} are not supported; freeze it or convert it")
    owner, leaf = holders[0]
    tied = len({(id(holder), attribute) for holder, attribute in holders}) > 1
    try:
        decision = family_for(owner).plan(owner, leaf, parameter, tied)
    except ModelError as error:
        raise ModelError(f"{names[0]}: {error}") from None
    if tied and decision.kind == "adapted":
        return decision._replace(reason=f"{decision.reason}, tied: {' = '.join(names)}")
    return decision


def _owner(name: str, owners: Mapping[str, nn.Module]) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return owners[path], leaf


def aliases(named: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[str, ...]]:
    """Every name under which a model holds a tensor, by the first.

    `named` is `model.named_parameters(remove_duplicate=False)`, the same of buffers, or both.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    return {all_names[0]: tuple(all_names) for all_names in names.values()}


def _devices(model: nn.Module) -> list[Problem]:
    """Find a model that lies on several devices: its layers would meet tensors of another one."""
    first = {str(t.device): name for name, t in (*model.named_buffers(), *model.named_parameters()) if not is_lazy(t)}
    if len(first) < 2:
        return []
    where = " and ".join(f"{name} on {device}" for device, name in sorted(first.items())[:2])
    return [Problem((), ModelError(f"the model lies on several devices, {where}; move it to one: model.to(device)"))]


def _overlaps(parameters: Mapping[str, Tensor]) -> list[Problem]:
    """Find distinct parameters that lie in the same memory: training one would silently change the other."""
    spans: list[tuple[int, int, str]] = []
    for name, parameter in parameters.items():
        if parameter.numel() and parameter.device.type != "meta":
            start = parameter.data_ptr()
            extent = 1 + sum((n - 1) * s for n, s in zip(parameter.shape, parameter.stride(), strict=True))
            spans.append((start, start + extent * parameter.element_size(), name))
    spans.sort()
    return [
        Problem(
            (first, second),
            ModelError(
                f"{first} and {second} are different parameters in the same memory; "
                "tie them by assigning one nn.Parameter to both modules, or copy one of them"
            ),
        )
        for (_, end, first), (start, _, second) in itertools.pairwise(spans)
        if start < end
    ]
