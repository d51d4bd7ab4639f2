"""Settings as plain JSON, for files and records that must be readable without this library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from halrp.errors import DamagedError
from halrp.training.recipe import Recipe


def describe(value: Any) -> Any:
    """Turn a dataclass of settings into JSON values: its type's name, then its fields; anything else into its name.

    A field marked as `LATER` is left out at its default, so that files and their sizes stay what they were without it.
    """
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


_DTYPES = {str(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}


def recalled_recipe(provenance: Mapping[str, Any]) -> Recipe:
    """The recipe that a task was learned with."""
    try:
        known = {field.name for field in dataclasses.fields(Recipe)}
        fields = {name: value for name, value in provenance["recipe"].items() if name in known}
        if fields.get("autocast") is not None:
            fields["autocast"] = _DTYPES[fields["autocast"]]
        return Recipe(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"a task's file does not give the recipe that it was learned with ({error})") from error
