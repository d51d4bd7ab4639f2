"""What happens to each parameter of a model, decided once and before anything is trained.

A parameter is *adapted* (frozen base weight plus a low-rank delta per task), *owned* (a full private copy per task)
or *shared* (the base's, for every task). What cannot be treated correctly is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from halrp.errors import HeadError, ModelError
from halrp.model.layers.head import HEADS
from halrp.model.layers.registry import rule_for

NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Kind = Literal["adapted", "owned", "shared"]
Role = Literal["weight", "bias", "norm", "head", "other", "buffer"]


@dataclass(frozen=True)
class ParameterPlan:
    """How one parameter is treated, and why."""

    name: str
    kind: Kind
    role: Role
    shape: tuple[int, ...]
    aliases: tuple[str, ...]
    """Every name under which the model holds this parameter; more than one when weights are tied."""
    reason: str
    by_rule: bool = False
    """Adapted through the layer's own rule rather than through the merged weight."""
    kernel: bool = False
    """Whether the dimensions after the second are positions of a convolution's kernel."""


@dataclass(frozen=True)
class Plan:
    """The treatment of every parameter of a model, and the name of its head."""

    head: str
    parameters: Mapping[str, ParameterPlan]

    def named(self, kind: str) -> dict[str, ParameterPlan]:
        """The parameters of one kind, by name, in the model's order."""
        return {name: t for name, t in self.parameters.items() if t.kind == kind}

    def role(self, name: str) -> Role:
        """The role of a parameter or buffer that a task owns."""
        parameter = self.parameters.get(name)
        if parameter is not None:
            return parameter.role
        return "head" if name.startswith(f"{self.head}.") else "buffer"


@dataclass(frozen=True)
class Problem:
    """Why a model is refused: the parameters at fault (none if it is the model as a whole), and the error to raise."""

    names: tuple[str, ...]
    error: ModelError


def plan(model: nn.Module, head: str | None = None) -> Plan:
    """Decide the treatment of every parameter of a model, or refuse the model by naming what is wrong."""
    found, problems = examine(model, head)
    if problems:
        raise problems[0].error
    return found


def examine(model: nn.Module, head: str | None = None) -> tuple[Plan, list[Problem]]:
    """Decide the treatment of every parameter that can be treated, and list every problem instead of raising the first.

    With problems the plan is only to be looked at: what cannot be treated is not in it, and its head may be "".
    """
    if isinstance(model, torch.jit.ScriptModule):
        error = ModelError("a scripted model cannot be adapted; pass the nn.Module it was scripted from")
        return Plan("", {}), [Problem((), error)]
    parameters = dict(model.named_parameters())
    problems = [
        Problem(
            (name,), ModelError(f"{name}: the parameter is not initialised yet; run one batch through the model first")
        )
        for name, parameter in parameters.items()
        if is_lazy(parameter)
    ]
    lazy = {name for problem in problems for name in problem.names}
    try:
        head = find_head(model, head)
    except HeadError as error:
        head = ""
        if not lazy:  # a lazy layer may become a head once it is initialised
            problems.append(Problem((), error.with_traceback(None)))
    names = aliases(model.named_parameters(remove_duplicate=False))
    owners = dict(model.named_modules(remove_duplicate=False))
    whole = {name: parameter for name, parameter in parameters.items() if name not in lazy}
    problems += _overlaps(whole)
    problems += [
        Problem((name,), ModelError(f"{name}: buffers of type {buffer.dtype} cannot be kept in files; use complex64"))
        for name, buffer in model.named_buffers()
        if buffer.dtype == torch.complex128
    ]
    treatments = {}
    for name, parameter in whole.items():
        try:
            treatments[name] = _treat(name, parameter, names[name], owners, head)
        except ModelError as error:
            problems.append(Problem((name,), error.with_traceback(None)))
    if not problems and not any(t.kind == "adapted" for t in treatments.values()):
        nothing = ModelError(
            "the model has no adaptable layer besides its head: every parameter is small, a bias, a norm or frozen; "
            f"a delta would be a full copy. Head: {head!r}; parameters: {', '.join(treatments) or 'none'}"
        )
        problems.append(Problem((), nothing))
    return Plan(head, treatments), problems


def _treat(
    name: str, parameter: Tensor, places: tuple[str, ...], owners: Mapping[str, nn.Module], head: str
) -> ParameterPlan:
    owner, leaf = _owner(name, owners)
    shape = tuple(parameter.shape)

    kernel = isinstance(owner, CONVOLUTIONS)

    def as_(
        kind: Literal["adapted", "owned", "shared"], role: Role, reason: str, by_rule: bool = False
    ) -> ParameterPlan:
        return ParameterPlan(name, kind, role, shape, places, reason, by_rule, kernel and len(shape) > 2)

    if any(place.startswith(f"{head}.") for place in places):
        if len({id(_owner(place, owners)[0]) for place in places}) > 1:
            raise HeadError(
                f"{' and '.join(places)} are one tied parameter, but the head {head!r} is replaced for every task; "
                "untie them (copy the parameter) or name another head"
            )
        return as_("owned", "head", "classifier head, replaced for every task")
    if not parameter.requires_grad:
        return as_("shared", "other", "requires_grad is off in the model: the base's value serves every task")
    if parameter.is_complex() or not parameter.is_floating_point():
        raise ModelError(f"{name}: parameters of type {parameter.dtype} are not supported; freeze it or convert it")
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and owner.max_norm is not None:
        raise ModelError(f"{name}: an embedding with max_norm rewrites its weight in every forward pass; unset it")
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and owner.sparse:
        raise ModelError(f"{name}: Adam cannot train an embedding with sparse gradients; build it with sparse=False")
    if isinstance(owner, NORMS):
        return as_("owned", "norm", f"parameter of {type(owner).__name__}")
    if parameter.dim() < 2:
        return as_(
            "owned", "bias" if leaf.endswith("bias") or "bias_" in leaf else "other", "fewer than two dimensions"
        )
    if isinstance(owner, parametrize.ParametrizationList):
        return as_("owned", "other", "already parametrized by the model: a full private copy")
    rows, columns = shape[0], shape[1]
    component = rows + (columns if kernel else parameter.numel() // rows)
    if rows + columns + component >= parameter.numel():
        return as_("owned", "weight", "so small that a delta of rank 1 would cost as much")
    distinct = {(id(holder), attribute) for holder, attribute in (_owner(place, owners) for place in places)}
    if leaf == "weight" and rule_for(owner) is not None and len(distinct) == 1:
        return as_("adapted", "weight", f"rule for {type(owner).__name__}", by_rule=True)
    tied = f", tied: {' = '.join(places)}" if len(distinct) > 1 else ""
    return as_("adapted", "weight", f"merged weight of {type(owner).__name__}{tied}")


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
                f"convolution, so that it can be made anew for each number of classes; {advice}"
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
