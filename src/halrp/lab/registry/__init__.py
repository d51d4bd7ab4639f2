"""One entry per method, stream and backbone: how to build it, its title and colour, the paper's name, its properties.

The registry names code as "package.module:attribute" and imports it when it is built, so that tables and figures can
read titles, colours and properties without torch and without any method.

Four kinds of names are accepted wherever a method, a stream or a backbone is named:

- a name of this registry: `ewc`;
- a model of a library, as a backbone: `timm:resnet18`, `torchvision:resnet18`, `hf:FOLDER`;
- a reference to your own code: `my_module:Mine`, imported with the current folder on the path;
- a name that an installed package declares in the entry-point group `halrp.methods`, `halrp.streams` or
  `halrp.backbones`. A name of this registry wins over an equal one of a package.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from halrp.errors import SettingError
from halrp.lab.names import check_name
from halrp.lab.registry.backbones import BACKBONES, LIBRARIES
from halrp.lab.registry.entries import BackboneEntry, Entry, MethodEntry, Properties, StreamEntry
from halrp.lab.registry.methods import METHODS
from halrp.lab.registry.streams import STREAMS
from halrp.tools.importing import import_object

__all__ = [
    "BACKBONES",
    "LIBRARIES",
    "MARKS",
    "METHODS",
    "PALETTE",
    "STREAMS",
    "SUBSET",
    "BackboneEntry",
    "Entry",
    "MethodEntry",
    "Properties",
    "StreamEntry",
    "backbone",
    "backbone_names",
    "colour_of",
    "installed",
    "is_reference",
    "mark_of",
    "method",
    "method_names",
    "stream",
    "stream_names",
]

SUBSET = "@subset"
"""The end of a stream's name when one of its data sets is not complete."""

PALETTE = (
    "#2a83d4",
    "#f07f13",
    "#2b8a3e",
    "#8560d6",
    "#c69a12",
    "#b8246f",
    "#19a7a1",
    "#8f4a34",
    "#69b1e6",
    "#77b23f",
)
"""Colours of methods that are not registered here, and of series that belong to no method."""
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")

FLAGS = ("pretrained", "needs_base")
"""What a user's class or function may say of itself with an attribute of that name."""

E = TypeVar("E", bound=Entry)


def method(name: str) -> MethodEntry:
    """The entry of a method: one of this registry, of an installed package, or of a reference."""
    return _lookup("method", name, METHODS, MethodEntry)


def stream(name: str) -> StreamEntry:
    """The entry of a stream, whatever its variant, or with "@subset" at its end."""
    benchmark, _, variant = name.removesuffix(SUBSET).partition("@")
    entry = _lookup("stream", benchmark, STREAMS, StreamEntry, stream_names())
    if variant and variant not in entry.variants:
        check_name("stream", f"{benchmark}@{variant}", stream_names())
    return entry


def backbone(name: str) -> BackboneEntry:
    """The entry of a backbone: one of this registry, of a library, of an installed package, or of a reference."""
    library, _, model = name.partition(":")
    if library in LIBRARIES and model:
        return BackboneEntry(LIBRARIES[library], name, f"{model} of {library}", pretrained=True, model=model)
    return _lookup("backbone", name, BACKBONES, BackboneEntry)


def method_names() -> list[str]:
    """The methods of this registry, then those of installed packages."""
    return list(dict.fromkeys((*METHODS, *installed("method"))))


def stream_names() -> list[str]:
    """The streams of this registry, each followed by its variants, then those of installed packages."""
    names = [
        name
        for benchmark, entry in STREAMS.items()
        for name in (benchmark, *(f"{benchmark}@{v}" for v in entry.variants))
    ]
    return list(dict.fromkeys((*names, *installed("stream"))))


def backbone_names() -> list[str]:
    """The backbones of this registry, then those of installed packages."""
    return list(dict.fromkeys((*BACKBONES, *installed("backbone"))))


def is_reference(name: str) -> bool:
    """Whether a name is a reference to a user's own code, "package.module:attribute"."""
    return ":" in name


def colour_of(name: str) -> str:
    """The colour of a method; one that is not registered here always has the same colour of the palette."""
    entry = METHODS.get(name)
    return entry.colour if entry and entry.colour else PALETTE[_hash(name) % len(PALETTE)]


def mark_of(name: str) -> str:
    """The mark of a method, which distinguishes methods of similar colours."""
    entry = METHODS.get(name)
    return entry.mark if entry and entry.mark else MARKS[_hash(name) % len(MARKS)]


def _lookup(kind: str, name: str, entries: Mapping[str, E], entry: type[E], names: Iterable[str] = ()) -> E:
    if name in entries:
        return entries[name]
    reference = name if is_reference(name) else installed(kind).get(name)
    if reference is None:
        check_name(kind, name, names or [*entries, *installed(kind)])
        raise AssertionError("check_name refuses a name that is not known")
    value = import_object(kind, reference)
    if not callable(value):
        raise SettingError(f"the {kind} {name!r} is a {type(value).__name__}; it must be a class or a function")
    title = getattr(value, "title", None)
    if not isinstance(title, str):
        title = reference.rpartition(":")[2] if is_reference(name) else name
    made = entry(reference, title, (inspect.getdoc(value) or "").partition("\n")[0])
    flags: dict[str, Any] = {n: True for n in FLAGS if n in vars(made) and getattr(value, n, False) is True}
    return replace(made, **flags)


@cache
def installed(kind: str) -> Mapping[str, str]:
    """References by name that installed packages declare for a kind: method, stream or backbone."""
    return {point.name: point.value for point in entry_points(group=f"halrp.{kind}s")}


def _hash(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "replace"))
