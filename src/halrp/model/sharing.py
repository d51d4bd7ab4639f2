"""Which modules of a base a task's module may hold as they are: `modules_to_copy`.

A task that changes few layers pays for few: of the tree of modules only those that the task changes are copied, and
those around them. The others are the base's own, as long as a call of one leaves nothing behind: a module that keeps
something of what it computed would hand it from one task to another, perhaps in another thread. A module is taken to
leave nothing behind if its code stores no attribute and its attributes are plain values. Where that cannot be seen it
is copied, which is always right.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import types
from collections.abc import Collection, Hashable, Iterator
from typing import Any, cast

import torch
from torch import nn

_INTERNAL = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in _INTERNAL if name.endswith(("_hooks", "_pre_hooks")))
_VALUES = (
    *(bool, int, float, complex, str, bytes, type(None), type, enum.Enum, types.BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout),
)
_STORING = frozenset({"setattr", "delattr", "vars", "__dict__", "__setattr__", "register_buffer", "register_parameter"})
_DEPTH = 6
"""How deep attributes are looked into."""


def modules_to_copy(model: nn.Module, changed: Collection[str]) -> set[int]:
    """The ids of modules that a copy needs of its own, if those with the paths in `changed` will be changed."""
    wanted = {id(model)} | {id(model.get_submodule(path)) for path in changed}
    for module in reversed(list(model.modules())):  # modules come after those around them
        children = (id(child) for child in module._modules.values() if child is not None)
        if not leaves_nothing_behind(module) or any(child in wanted for child in children):
            wanted.add(id(module))
    return wanted


def leaves_nothing_behind(module: nn.Module) -> bool:
    """Whether calls of a module, apart from those inside it, are known to store nothing in it."""
    if any(getattr(module, name, None) for name in _HOOKS) or "forward" in vars(module):
        return False
    plain = (value for name, value in vars(module).items() if name not in _INTERNAL)
    return all(_is_plain(value, _DEPTH) for value in plain) and not _stores(cast(Hashable, type(module)))


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value holds neither tensors nor modules, and is no container that waits to be filled."""
    if isinstance(value, _VALUES):
        return True
    if depth == 0 or isinstance(value, (nn.Module, torch.Tensor)):
        return False
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    if isinstance(value, functools.partial):
        return _is_plain((value.func, value.args, tuple(value.keywords.values())), depth - 1)
    inside = depth < _DEPTH
    if isinstance(value, dict):
        return inside and all(_is_plain(each, depth - 1) for each in value.values())
    if isinstance(value, (tuple, frozenset, list, set)):
        waits = isinstance(value, set) or (isinstance(value, list) and not value)
        return (inside or not waits) and all(_is_plain(each, depth - 1) for each in value)
    held = getattr(value, "__dict__", None)
    return held is not None and not callable(value) and _is_plain(tuple(held.values()), depth - 1)


@functools.cache
def _stores(kind: Any) -> bool:
    """Whether the code that a call of a class runs stores or deletes an attribute, as far as its names show it."""
    seen: set[str] = set()
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for code in _codes(inspect.getattr_static(kind, name, None)):
            steps = dis.get_instructions(code)
            if _STORING & {*code.co_names} or any(step.opname in ("STORE_ATTR", "DELETE_ATTR") for step in steps):
                return True
            waiting += [other for other in code.co_names if _is_method(kind, other)]
    return False


def _is_method(kind: type, name: str) -> bool:
    """Whether a name is a method or property that a class has besides those of every module."""
    return not hasattr(nn.Module, name) and inspect.getattr_static(kind, name, None) is not None


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function, of what it wraps, and of the functions inside it."""
    for part in (getattr(function, name, None) for name in ("__func__", "fget", "__wrapped__")):
        if part is not None:
            yield from _codes(part)
    code = getattr(function, "__code__", None)
    waiting = [code] if isinstance(code, types.CodeType) else []
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
