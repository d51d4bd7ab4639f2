"""Parameters that are optimised alike: penalties, learning rates and weight decay by kind of parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from halrp.model.plan import Plan
from halrp.training.recipe import Rates, Recipe

Kind = Literal["head", "scales", "factors", "norms", "biases", "dense"]
_OF_ROLE: dict[str, Kind] = {"head": "head", "norm": "norms", "bias": "biases"}
"""The kinds of a model's parameters, by the role that its plan gives them; any other is a dense weight."""
_REST_AT_ZERO = ("head", "factors", "dense")
"""Kinds that weight decay applies to: to pull a scale or a norm, whose neutral value is one, to zero is no decay."""


@dataclass(frozen=True)
class Group:
    """Parameters that share a penalty and a learning rate."""

    parameters: Sequence[nn.Parameter]
    l1: float = 0.0
    l2: float = 0.0
    lr: float = 1.0
    """Factor on the recipe's learning rate."""
    decays: bool = True
    """Whether the optimiser's weight decay applies."""


def by_role(plan: Plan, parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[nn.Parameter, Kind]:
    """The kinds of named parameters of a model, by the roles that its plan gives them."""
    return {parameter: _OF_ROLE.get(plan.role(name), "dense") for name, parameter in parameters}


def by_unit(groups: Sequence[Group], units: Mapping[nn.Parameter, float]) -> list[Group]:
    """Split groups by the unit of their parameters' steps, rounded to a power of √2, which multiplies their rates."""
    split = []
    for group in groups:
        parts: dict[float, list[nn.Parameter]] = {}
        for parameter in group.parameters:
            unit = units.get(parameter, 1.0)
            parts.setdefault(2 ** (round(2 * math.log2(unit)) / 2), []).append(parameter)
        split += [replace(group, parameters=parameters, lr=group.lr * unit) for unit, parameters in parts.items()]
    return split


def by_kind(groups: Sequence[Group], kinds: Mapping[nn.Parameter, Kind], recipe: Recipe) -> list[Group]:
    """Split groups where the recipe treats kinds of parameters differently; a parameter of no kind is dense."""
    if recipe.rates == Rates() and recipe.optimiser in ("adam", "sgd") and recipe.weight_decay is None:
        return list(groups)
    split = []
    for group in groups:
        parts: dict[Kind, list[nn.Parameter]] = {}
        for parameter in group.parameters:
            parts.setdefault(kinds.get(parameter, "dense"), []).append(parameter)
        for kind, parameters in parts.items():
            rate = group.lr * getattr(recipe.rates, kind)
            split.append(replace(group, parameters=parameters, lr=rate, decays=kind in _REST_AT_ZERO))
    return split
