"""Entries of the registry: how to build a method, a stream or a backbone, and its properties."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, NamedTuple

from halrp.tools.importing import import_object


class Properties(NamedTuple):
    """What a method promises; see the attributes of `halrp.lab.methods.Method`."""

    frozen: bool = False
    joint: bool = False
    first_decides: bool = False


@dataclass(frozen=True)
class Entry:
    """What all entries have."""

    build: str | Callable[..., Any]
    """The object that builds it, as "package.module:attribute" or itself."""
    title: str
    description: str = ""
    paper_name: str | None = None
    """What the paper's tables call it (`reference/paper_results.json`); None if they do not have it."""

    def load(self) -> Any:
        """Import the object that builds it."""
        return import_object("object", self.build) if isinstance(self.build, str) else self.build


@dataclass(frozen=True)
class MethodEntry(Entry):
    """A method. `build` is a class that derives from `Method`, or a function that returns a composition of HALRP."""

    colour: str = ""
    mark: str = ""
    properties: Properties = Properties()
    """With default settings."""
    exceptions: tuple[tuple[str, object, Properties], ...] = ()
    """Settings that change the properties: (setting, value, properties)."""
    composition: bool = False
    """Whether `build` returns a `halrp.Halrp`, which the library's learner runs."""
    paper_aliases: tuple[str, ...] = ()
    """Other names that the paper uses."""
    paper_ablation: str | None = None
    """The row of the paper's ablation that has this method's settings."""
    tuned: tuple[str, ...] = ()
    """Settings that were chosen by accuracy on validation data."""
    has_page: bool = False
    """Whether `docs/methods` has a page about it."""
    needs_base: bool = False
    """Whether it learns on a pretrained backbone and on no other."""
    compared_by_size: bool = False
    """Whether the table of accuracy by size has it."""

    def settings(self) -> dict[str, Any]:
        """The method's settings and their defaults."""
        return dict(_defaults(self.load()))

    def properties_with(self, settings: Mapping[str, Any]) -> Properties:
        """The method's properties with settings that may differ from the defaults."""
        for name, value, properties in self.exceptions:
            if name in settings and settings[name] == value:
                return properties
        return self.properties


@dataclass(frozen=True)
class StreamEntry(Entry):
    """A stream. `build` is a function of `order`, `seed`, `fraction` and `data` that returns a `Stream`."""

    tasks: int = 0
    """0 if that is not known before the data are read."""
    classes: int = 0
    """Of each task; 0 if that is not known before the data are read."""
    data_sets: tuple[str, ...] = ()
    """The data sets that it is made of; empty if they come with a package."""
    orders: Literal["published", "drawn"] | None = None
    """Whether orders A to E are the paper's or drawn here; None if that is not known before the data are read."""
    by_identity: str = ""
    """The name of a further order, by identity."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """Other divisions of the same data, written after "@": how to build each."""

    def load_variant(self, variant: str = "") -> Any:
        """Import the function that builds the benchmark, or a variant of it."""
        return import_object("stream", self.variants[variant]) if variant else self.load()


@dataclass(frozen=True)
class BackboneEntry(Entry):
    """A backbone. `build` is a function of `classes` and the backbone's settings that returns an `nn.Module`."""

    pretrained: bool = False
    """Whether it has weights that no task trained: methods take it as a base that is given."""
    model: str = ""
    """The first argument of `build`, for a model of a library; empty for any other backbone."""

    def load(self) -> Any:
        """Import the object that builds it."""
        build = super().load()
        return partial(build, self.model) if self.model else build


@cache
def _defaults(build: Callable[..., object]) -> Mapping[str, Any]:
    parameters = inspect.signature(build).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "context"}
