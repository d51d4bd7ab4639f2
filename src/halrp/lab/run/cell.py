"""A cell: one run of a method on a stream, described by a configuration that is checked before anything runs.

Its name ends in a hash of its configuration. Values that equal their defaults are left out of the hash, so that a new
setting with a default does not rename existing cells; a record has all values, defaults included.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from halrp import Recipe, seeding
from halrp.checks import is_number, is_whole
from halrp.errors import SettingError
from halrp.lab import methods, registry, streams
from halrp.lab.names import check_name
from halrp.provenance import describe


@dataclass(frozen=True)
class Cell:
    """The configuration of one run."""

    method: str
    stream: str
    backbone: str
    order: str = "A"
    seed: int = 0
    fraction: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the method that differ from its defaults."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Settings of `Recipe` that differ from its defaults; `epochs` is one of them."""
    network: dict[str, Any] = field(default_factory=dict)
    """Settings of the backbone that differ from its defaults."""
    tasks: int | None = None
    """The number of tasks to learn, from the start of the stream; None means all."""

    def __post_init__(self) -> None:
        """Refuse a configuration that cannot run, before anything runs."""
        streams.identities(self.stream, self.order)
        backbone = registry.backbone(self.backbone)
        if registry.method(self.method).needs_base and not backbone.pretrained:
            raise SettingError(
                f"the method {self.method!r} learns on a pretrained backbone, and {self.backbone!r} is none; choose "
                "efficientnet-lite0, minilm-l6, or a model of a library such as timm:resnet18"
            )
        for name, good, remedy in (
            ("seed", is_whole(self.seed) and 0 <= self.seed < 2**31, "a whole number of at least 0"),
            ("fraction", is_number(self.fraction) and 0 < self.fraction <= 1, "a share above 0 and at most 1"),
            ("tasks", self.tasks is None or (is_whole(self.tasks) and self.tasks >= 1), "a whole number of at least 1"),
        ):
            if not good:
                raise SettingError(f"{name}={getattr(self, name)!r} of a cell is out of range; give {remedy}")
        self.make_recipe()
        methods.settings_of(self.method, self.settings)
        self.make_method(methods.Context(_unbuilt, self.make_recipe()))

    @staticmethod
    def of(values: Mapping[str, Any]) -> Cell:
        """Make a cell from a mapping, such as a table of a TOML file; an unknown key is an error."""
        known = [f.name for f in dataclasses.fields(Cell)]
        for key in values:
            check_name("entry of a cell", key, known)
        for key in ("method", "stream", "backbone"):
            if key not in values:
                raise SettingError(f"a cell needs a {key}; there is none in {dict(values)}")
        return Cell(**values)

    @cached_property
    def name(self) -> str:
        """A file name that describes the cell and ends in a hash of its configuration."""
        digest = format(seeding.seed_of(json.dumps(self.canonical(), sort_keys=True)) % 16**8, "08x")
        share = f"{100 * self.fraction:g}"
        order = self.order if len(self.order) <= 12 else "listed"
        stream, backbone, method = map(_file_name, (self.stream, self.backbone, self.method))
        return f"{stream}-{backbone}-{share}-{method}-{order}{self.seed}-{digest}"

    def canonical(self) -> dict[str, Any]:
        """The configuration without values that equal their defaults."""
        values = {name: getattr(self, name) for name in _EMPTY}
        defaults = registry.method(self.method).settings()
        values["settings"] = {k: _like(defaults[k], v) for k, v in self.settings.items() if defaults[k] != v}
        values["network"] = dict(self.network)
        values["recipe"] = {k: _like(_RECIPE[k], v) for k, v in self.recipe.items() if _RECIPE[k] != v}
        return {k: v for k, v in values.items() if v != _EMPTY[k]}

    def resolved(self) -> dict[str, Any]:
        """The configuration with every default written out."""
        settings = methods.settings_of(self.method, self.settings)
        return asdict(self) | {"settings": describe_all(settings), "recipe": describe(self.make_recipe())}

    def method_properties(self) -> dict[str, Any]:
        """What a report needs to know of the method, as plain JSON, so that it need not import it."""
        entry = registry.method(self.method)
        defaults = {n: v for n, v in entry.settings().items() if v is not inspect.Parameter.empty}
        method = self.make_method(methods.Context(_unbuilt, self.make_recipe()))
        promises = {name: getattr(method, name) for name in registry.Properties._fields}
        return {"title": entry.title, "settings": describe_all(defaults), **promises}

    def make_recipe(self) -> Recipe:
        """The recipe of the run."""
        known = [f.name for f in dataclasses.fields(Recipe)]
        for key in self.recipe:
            check_name("setting of a recipe", key, known)
        try:
            return Recipe(**self.recipe)
        except TypeError as error:
            raise SettingError(f"recipe {self.recipe} of a cell has a value of the wrong kind: {error}") from error

    def make_method(self, context: methods.Context) -> methods.Method:
        """The method of the run, before it has learned a task."""
        try:
            return methods.make(self.method, context, **self.settings)
        except (TypeError, ValueError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"method {self.method!r} does not take {self.settings}: {error}") from error


_RECIPE = asdict(Recipe())
_EMPTY = {f.name: f.default for f in dataclasses.fields(Cell)} | {"settings": {}, "recipe": {}, "network": {}}


def describe_all(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain JSON."""
    return {name: describe(value) for name, value in values.items()}


def _file_name(name: str) -> str:
    """A name as part of a file name: a reference such as "my_module:Mine" has a colon, and may be long."""
    return re.sub(r"[:/\\\s]+", ".", name)[-60:] if registry.is_reference(name) else name


def _unbuilt(classes: int, seed: int) -> nn.Module:
    raise AssertionError("a method builds a network only when it learns")


def _like(default: Any, value: Any) -> Any:
    """A whole number as a float where the default is one: 10 and 10.0 are the same setting."""
    return float(value) if isinstance(default, float) and is_whole(value) else value
