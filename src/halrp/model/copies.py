"""Values that are read but never changed: a mapping that gives copies of what it holds, so nobody can write to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from halrp.model.codec import Coded

V = TypeVar("V")


class Copies(Mapping[str, V]):
    """A read-only mapping of tensors or JSON values that gives a new copy at each access."""

    __slots__ = ("_held",)

    def __init__(self, values: Mapping[str, V]) -> None:
        """Hold values, which are not copied."""
        self._held = dict(held(values))

    def __getitem__(self, key: str) -> V:
        """A copy of a value."""
        value: V = _copied(self._held[key])
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return repr(self._held)


def held(values: Mapping[str, V]) -> Mapping[str, V]:
    """The values themselves, for the library's own use: whoever takes them must not write to them."""
    return values._held if isinstance(values, Copies) else values


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Coded):
        return replace(value, parts={name: part.clone() for name, part in value.parts.items()})
    if isinstance(value, tuple):
        return tuple(_copied(part) for part in value)
    return copy.deepcopy(value)
