"""What modules hold besides parameters, buffers and submodules, to name the cause of a refusal."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_INTERNAL = frozenset(vars(nn.Module()))
"""The attributes that every module has."""


def differences(first: nn.Module, second: nn.Module) -> list[str]:
    """The plain attributes that differ between two modules of the same structure, as `path.attribute`."""
    others = dict(second.named_modules())
    names = []
    for path, module in first.named_modules():
        if path in others:
            mine, theirs = _plain(module), _plain(others[path])
            names += [
                f"{path}.{name}".lstrip(".")
                for name in sorted(mine.keys() | theirs.keys())
                if name not in mine or name not in theirs or not _equal(mine[name], theirs[name])
            ]
    return names


def holder_of(net: nn.Module, parameter: nn.Parameter) -> str:
    """The plain attribute of a network through which it reaches a parameter, as `path.attribute`; or empty."""
    for path, module in net.named_modules():
        for name, value in _plain(module).items():
            if any(reached is parameter for reached in _parameters(value, 0)):
                return f"{path}.{name}".lstrip(".")
    return ""


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _INTERNAL}


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, as far as values can be compared."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        same = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype
        return same and bool(torch.equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (bool, int, float, str, bytes, type(None))) or isinstance(b, (bool, int, float, str, bytes)):
        return bool(a == b)
    return True  # objects that were copied are other objects, which says nothing


def _parameters(value: Any, depth: int) -> Iterator[nn.Parameter]:
    """The parameters that can be reached from a value: through modules, containers, closures and bound methods."""
    if depth > 4:
        return
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    else:
        for part in _parts(value):
            yield from _parameters(part, depth + 1)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        return [*cells, *(value.__defaults__ or ()), *_globals(value)]
    return []


def _globals(function: types.FunctionType) -> list[Any]:
    return [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the variable has no value yet
        return False
