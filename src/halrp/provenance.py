"""Settings as plain JSON, for files and records that must be readable without this library, and settings from it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from halrp.checks import is_number, is_whole
from halrp.errors import DamagedError, SettingError
from halrp.method.allocate import Flat, LossRate
from halrp.method.budget import Budget
from halrp.method.decompose import Plain, Whitened
from halrp.method.from_probe import FromProbe
from halrp.method.importance import GradientNorm, MeanSquare
from halrp.method.method import CHOICES, Halrp
from halrp.method.prototypes import Prototypes
from halrp.method.prune import Keep, Prune
from halrp.method.scales import Exact, Legacy
from halrp.method.warm_up import WarmUp
from halrp.model.settings import call_settings as call_settings
from halrp.model.settings import describe as describe
from halrp.model.settings import refuse_other_call as refuse_other_call
from halrp.training.optimisers import NAMED, TORCH
from halrp.training.recipe import Recipe

KNOWN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Budget, Exact, Flat, GradientNorm, FromProbe, Keep, Legacy, LossRate, MeanSquare, Plain, Prune, WarmUp),
        *(Prototypes, Whitened),
    )
}
"""The library's own choices of the method, which a task's file names without their modules."""
Settings = TypeVar("Settings")


def method_settings(method: Halrp) -> dict[str, Any]:
    """A method as JSON values; a choice from outside this library is named with its module."""
    settings: dict[str, Any] = describe(method)
    for field in CHOICES:
        choice = getattr(method, field)
        if dataclasses.is_dataclass(choice) and type(choice) not in KNOWN.values():
            settings[field] = settings[field] | {"type": _qualified(type(choice))}
    return settings if type(method) is Halrp else settings | {"type": _qualified(type(method))}


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def recalled_settings(
    provenance: Mapping[str, Any] | None, method: Halrp | None, recipe: Recipe | None, seed: int | None
) -> tuple[Halrp | SettingError, Recipe | SettingError, int]:
    """Method, recipe and seed as given, or else those that a task was learned with, or else the defaults.

    Settings that cannot be recalled are the error that says why.
    """
    if provenance is None:
        return method or Halrp.budget(), recipe or Recipe.auto(), seed or 0
    if seed is None:
        seed = provenance["seed"] if is_whole(provenance.get("seed")) else 0
    return (
        _or_error(recalled_method, provenance) if method is None else method,
        _or_error(recalled_recipe, provenance) if recipe is None else recipe,
        seed,
    )


def _or_error(
    recall: Callable[[Mapping[str, Any]], Settings], provenance: Mapping[str, Any]
) -> Settings | SettingError:
    try:
        return recall(provenance)
    except SettingError as error:
        return error


def recalled_method(provenance: Mapping[str, Any]) -> Halrp:
    """The method that a task was learned with; `SettingError` if a part of it is not this library's own."""
    try:
        fields = dict(provenance["method"])
        for field in {*CHOICES, "prototypes"} & fields.keys():
            fields[field] = _choice(fields[field])
        if fields.get("type") != Halrp.__name__:
            raise SettingError(f"{fields.get('type')!r} is not a method of this library")
        return _rebuilt(Halrp, fields, CHOICES)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, SettingError) else f"{type(error).__name__}: {error}"
        raise SettingError(f"a task's file does not give the method that it was learned with ({reason})") from error


def _choice(facts: Any) -> Any:
    name = facts["type"] if isinstance(facts, Mapping) else facts
    if not isinstance(facts, Mapping) or name not in KNOWN:
        raise SettingError(f"{name!r} is not a choice of this library")
    return _rebuilt(KNOWN[name], facts)


def _rebuilt(
    kind: type[Settings], facts: Mapping[str, Any], choices: Mapping[str, type] = types.MappingProxyType({})
) -> Settings:
    """A dataclass of settings from its fields, each of the type that it declares; `choices` are checked by itself."""
    hints = get_type_hints(kind)
    values = {name: value for name, value in facts.items() if name != "type"}
    for name, value in values.items():
        if name not in choices and not _fits(value, hints[name]):
            raise SettingError(f"{kind.__name__}({name}={value!r}) is not of type {hints[name]}")
    return kind(**values)


def _fits(value: object, hint: Any) -> bool:
    """Whether a JSON value is of a declared type: a literal, a number, a truth value, a text, several, or a choice."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:  # of any length, which JSON has as a list
        return isinstance(value, (list, tuple)) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is int:
        return is_whole(value)
    return is_number(value) if hint is float else isinstance(value, hint)


def _recalled_maker(setting: str, facts: Any) -> Any:
    """What makes an optimiser or a scheduler: a name, a class of torch, or a partial of one with plain arguments."""
    if facts is None or (isinstance(facts, str) and facts in NAMED):
        return facts
    if isinstance(facts, Mapping) and facts.get("type") == "functools.partial":
        keywords, arguments = facts["keywords"], facts["arguments"]
        if facts["function"] in TORCH and not arguments and all(map(_is_plain, keywords.values())):
            return functools.partial(TORCH[facts["function"]], **keywords)
    if not isinstance(facts, str) or facts not in TORCH:
        raise SettingError(f"{setting} {facts!r} is not one of torch's with plain arguments, and cannot be recalled")
    return TORCH[facts]


def _is_plain(value: object) -> bool:
    """Whether a value was recorded as it is; a text with a dot may be the name of anything."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "." not in value
    return value is None or isinstance(value, (bool, int, float))


_DTYPES = {str(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}


def recalled_recipe(provenance: Mapping[str, Any]) -> Recipe:
    """The recipe that a task was learned with; `SettingError` if this version does not train with it."""
    try:
        known = {field.name for field in dataclasses.fields(Recipe)}
        fields = {name: value for name, value in provenance["recipe"].items() if name in known}
        if fields.get("autocast") is not None:
            fields["autocast"] = _DTYPES[fields["autocast"]]
        for name in sorted(fields.keys() & {"optimiser", "scheduler"}):
            fields[name] = _recalled_maker(name, fields[name])
        if "rates" in fields:
            fields["rates"] = {kind: rate for kind, rate in fields["rates"].items() if kind != "type"}
        return Recipe(**fields)
    except SettingError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"a task's file does not give the recipe that it was learned with ({error})") from error
