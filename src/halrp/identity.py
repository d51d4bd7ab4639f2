"""Whether two settings or functions are the same, in another process too: a hash that others do not have.

Plain values, tensors, containers, dataclasses and `functools.partial` are identified by what they hold. A function is
identified by its name, its compiled code, its defaults, what it closes over and the globals that it names in its own
module; a bound method and an instance by attributes and by the code of their class. Code of other modules is identified
by its name alone. What holds something else, such as an open file or a generator of numpy, cannot be identified.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from halrp import seeding

_Seen: TypeAlias = "dict[int, tuple[int, Any]]"


class UnidentifiedError(Exception):
    """Something in a value cannot be compared across processes; the message names it."""


def identity(value: Any) -> str:
    """A hash that other values do not have, or `UnidentifiedError`."""
    return hashlib.sha256(_text(value, {}).encode(errors="surrogatepass")).hexdigest()


def _text(value: Any, seen: _Seen) -> str:
    """A text of a value; one that occurs again is the number of its first occurrence.

    `seen` refers to what occurred, so that the id of a value that was made on the way is not used twice.
    """
    if value is None or value is ... or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{_name(type(value))}({value!r})"
    if isinstance(value, (torch.dtype, torch.device, torch.Size, range, slice)):
        return f"{_name(type(value))}({value})"
    if isinstance(value, type):
        return f"class {_name(value)}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if id(value) in seen:
        return f"#{seen[id(value)][0]}"
    seen[id(value)] = (len(seen), value)
    parts = _parts(value, seen)
    return f"{_name(type(value))}({', '.join(parts)})"


def _parts(value: Any, seen: _Seen) -> list[str]:
    """What a value is made of, as texts."""
    if isinstance(value, Tensor):
        return [seeding.fingerprint({"": value}), str(value.device)]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), str(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, np.generic):
        return [repr(value)]
    if isinstance(value, torch.Generator):
        return [seeding.fingerprint({"": value.get_state()})]
    if isinstance(value, (list, tuple)):
        return [_text(item, seen) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_text(item, dict(seen)) for item in value)
    if isinstance(value, Mapping):
        return [f"{_text(key, seen)}: {_text(item, seen)}" for key, item in value.items()]
    if isinstance(value, functools.partial):
        return [_text(part, seen) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, types.MethodType):
        return [_text(value.__func__, seen), _text(value.__self__, seen)]
    if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        owner = getattr(value, "__self__", None)
        return [value.__qualname__, "" if owner is None else _text(owner, seen)]
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, types.CodeType):
        return [value.co_code.hex(), str(value.co_names), str(value.co_varnames), _text(value.co_consts, seen)]
    return _instance(value, seen)


def _function(function: types.FunctionType, seen: _Seen) -> list[str]:
    code = function.__code__
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable that has no value yet
        raise UnidentifiedError(f"{_name(function)} closes over a variable without a value") from None
    named = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    texts = [_text(part, seen) for part in (code, function.__defaults__, function.__kwdefaults__, closed)]
    return [_name(function), *texts, *(f"{name} = {_global(value, function, seen)}" for name, value in named.items())]


def _names(code: types.CodeType) -> list[str]:
    """The names of globals and attributes in a function and in those inside it."""
    inside = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return sorted({*code.co_names, *inside})


def _global(value: Any, user: types.FunctionType, seen: _Seen) -> str:
    elsewhere = isinstance(value, types.FunctionType) and value.__module__ != user.__module__
    return _name(value) if elsewhere else _text(value, seen)


def _instance(value: Any, seen: _Seen) -> list[str]:
    """An instance by its attributes, and by the code of its class as far as that is in one module."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "__dict__") and not _has_hidden_state(kind):
        attributes = vars(value)
    else:
        raise UnidentifiedError(f"a value of type {_name(kind)}")
    written = [vars(k) for k in kind.__mro__ if k.__module__ == kind.__module__]
    code = [_text(part, seen) for body in written for part in body.values() if isinstance(part, types.FunctionType)]
    return code + [f"{name} = {_text(item, seen)}" for name, item in attributes.items()]


def _has_hidden_state(kind: type) -> bool:
    """Whether instances may hold something that no attribute shows: slots, or the state of a type written in C."""
    slots = any(vars(k).get("__slots__") for k in kind.__mro__)
    compiled = any(k is not object and not k.__flags__ & _HEAP for k in kind.__mro__)
    return bool(slots or compiled) or any("__reduce__" in vars(k) for k in kind.__mro__ if k is not object)


_HEAP = 1 << 9
"""The flag of types that are made by a class statement."""


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
