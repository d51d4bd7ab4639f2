"""What an optimiser remembers, as tensors and numbers that can be saved and checked.

Torch's convention is that an optimiser remembers tensors and numbers of each parameter (`state`), and numbers of each
group (`param_groups`). What of it there is, and in which shapes, shows an optimiser of the same kind that has made one
step on copies of the parameters: nothing in a checkpoint is believed beyond that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from halrp.checks import is_number
from halrp.training.saved_state import UnfitError, check_like

_NOT_NEGATIVE = (
    "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf", "row_var", "col_var", "variance",
)  # fmt: skip
"""What torch calls sums of squares and of magnitudes."""


class UnsavableError(Exception):
    """An optimiser remembers something besides tensors and numbers; the message names it."""


class Memory(NamedTuple):
    """What an optimiser remembers."""

    tensors: dict[str, Tensor]
    """By "moment/", the index of the parameter, "/" and the optimiser's name for it."""
    numbers: dict[str, Any]
    """By the index of the parameter, "/" and the optimiser's name for it."""
    groups: list[dict[str, Any]]
    """The numbers of each group, except the rate."""


def memory_of(optimiser: Optimizer, parameters: Sequence[Tensor]) -> Memory:
    """What an optimiser remembers of the parameters that it steps on."""
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for parameter, parts in optimiser.state.items():
        if id(parameter) not in index:
            raise UnsavableError(f"{type(optimiser).__name__} remembers something of no parameter")
        for name, value in parts.items():
            if isinstance(value, Tensor):
                tensors[f"moment/{index[id(parameter)]}/{name}"] = value
            elif _is_plain(value):
                numbers[f"{index[id(parameter)]}/{name}"] = value
            elif value is not None:
                raise UnsavableError(f"{type(optimiser).__name__} remembers {name!r}, of type {type(value).__name__}")
    groups = [{n: v for n, v in options.items() if _is_plain(v) and n != "lr"} for options in optimiser.param_groups]
    return Memory(tensors, numbers, groups)


def after_a_step(optimiser: Optimizer, parameters: Sequence[Tensor]) -> Memory:
    """What an optimiser remembers after a step with gradients of zero; it is of no other use afterwards."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    if hasattr(optimiser, "train"):
        optimiser.train()
    optimiser.step()
    return memory_of(optimiser, parameters)


def fitting(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], like: Memory, step: int) -> Memory:
    """The saved memory of an optimiser that has made `step` steps, if it is of the kind of `like`.

    A parameter that has had no gradient yet is not remembered at all.
    """
    numbers, groups = facts.get("numbers", {}), facts.get("groups", [{}] * len(like.groups))
    if not isinstance(numbers, dict) or not isinstance(groups, list) or len(groups) != len(like.groups):
        raise UnfitError("its numbers are not those of this optimiser")
    for key, moment in tensors.items():
        if key not in like.tensors:
            raise UnfitError(f"it has {key}")
        check_like(key, moment, like.tensors[key])
        name = key.rpartition("/")[2]
        if name == "step" and not moment.dim():
            _check_steps(key, float(moment), step)
        elif not bool(moment.isfinite().all()) or (name in _NOT_NEGATIVE and bool((moment < 0).any())):
            raise UnfitError(f"{key} is not finite, or below zero")
    for key, number in numbers.items():
        _check_number(key, number, like.numbers)
        if key.rpartition("/")[2] == "step":
            _check_steps(key, number, step)
    for options, expected in zip(groups, like.groups, strict=True):
        for name, number in options.items() if isinstance(options, dict) else [("its group", options)]:
            _check_number(name, number, expected)
    present = {*tensors, *(f"moment/{key}" for key in numbers)}
    expected_keys = {*like.tensors, *(f"moment/{key}" for key in like.numbers)}
    seen = {key.split("/")[1] for key in present}
    if missing := sorted(key for key in expected_keys - present if key.split("/")[1] in seen):
        raise UnfitError(f"it lacks {missing[0]}")
    if step and expected_keys and not present:
        raise UnfitError("it lacks all moments")
    return Memory(dict(tensors), numbers, groups)


def remember(optimiser: Optimizer, parameters: Sequence[Tensor], memory: Memory, like: Memory) -> None:
    """Give an optimiser a memory. Tensors get device and strides of those in `like`, which a fused step assumes."""
    optimiser.state.clear()
    for key, tensor in memory.tensors.items():
        _, index, name = key.split("/", 2)
        optimiser.state[parameters[int(index)]][name] = torch.empty_like(like.tensors[key]).copy_(tensor)
    for key, number in memory.numbers.items():
        index, _, name = key.partition("/")
        optimiser.state[parameters[int(index)]][name] = number
    for options, saved in zip(optimiser.param_groups, memory.groups, strict=True):
        options.update(saved)


def _check_number(name: str, number: object, like: Mapping[str, Any]) -> None:
    expected = like.get(name)
    if name not in like or isinstance(expected, bool) != isinstance(number, bool) or not _is_plain(number):
        raise UnfitError(f"{name} is {number!r}")


def _check_steps(key: str, number: float, step: int) -> None:
    if not 0 < number <= step or number % 1:
        raise UnfitError(f"{key} is not a number of steps up to {step}")


def _is_plain(value: object) -> bool:
    return isinstance(value, bool) or is_number(value)
