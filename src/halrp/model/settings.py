"""Settings as plain JSON, and how batches reached the model when a task was learned."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from halrp.errors import SettingError
from halrp.model.call import Call


def describe(value: Any) -> Any:
    """Turn a dataclass of settings into JSON values: its type's name, then its fields; anything else into its name.

    A field marked as `LATER` is left out at its default, so that files and their sizes stay what they were without it.
    A `functools.partial` is its function and its arguments. Arrays and tensors are their type and shape.
    """
    if isinstance(value, functools.partial):
        parts = {"function": describe(value.func), "arguments": describe(value.args)}
        keywords = {str(name): describe(item) for name, item in sorted(value.keywords.items())}
        return {"type": "functools.partial", **parts, "keywords": keywords}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__name__} of {value.dtype}, shape {tuple(value.shape)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not ("later" in field.metadata and getattr(value, field.name) == field.default)
        }
        return {"type": type(value).__name__, **fields}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if callable(value) or _shows_its_address(value):  # an address is another one in every process
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return str(value)


def _shows_its_address(value: object) -> bool:
    return str(value) == object.__repr__(value)


def call_settings(call: Call) -> dict[str, Any]:
    """How batches reach the model as JSON values; nothing for the plain way."""
    values = {"transform": call.transform, "output": call.output}
    return {name: describe(value) for name, value in values.items() if value is not None}


def refuse_other_call(task: str, provenance: Mapping[str, Any], call: Call) -> None:
    """Raise if a task was learned with another transform or other outputs of the model than a learner has."""
    present = call_settings(call)
    for name in ("transform", "output"):
        if provenance.get(name) != present.get(name):
            was, is_ = (
                f"{value!r}" if value is not None else "none" for value in (provenance.get(name), present.get(name))
            )
            raise SettingError(
                f"{task!r} was learned with {name} {was}, not {is_}, so its outputs would be others; pass the same "
                f"{name}=... as then"
            )
