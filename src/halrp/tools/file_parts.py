"""Where the bytes of a task's file go: by what its parts are, down to the header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from halrp.model import task_parts
from halrp.model.delta import Delta

GROUPS = (
    *("head", "row scales", "column scales", "norms", "biases", "others", "statistics"),
    *("components", "dense", "extra", "header"),
)
"""What parts of a file are, in the order in which they are shown."""
_FACTORS = {"r": "row scales", "s": "column scales", "p": "components", "q": "components", "dense": "dense"}
_ROLES = {"head": "head", "norm": "norms", "bias": "biases", "buffer": "statistics"}


class Group(NamedTuple):
    """The parts of one kind in a task's file."""

    parts: int
    entries: int
    """Numbers to store; 0 where none are counted as the task's own."""
    bytes: int
    precisions: tuple[str, ...]
    """Those that occur, the most bytes first."""


def groups(delta: Delta) -> Mapping[str, Group]:
    """The parts of a task's file by what they are, those that it has; their bytes add up to the file as written now.

    The header is all that is no number of a part: names, settings, ranks and codes, and what the allocation predicted.
    "extra" are the inputs and outputs that show that a task is active, and what task inference compares inputs with.
    """
    if delta.is_base and not delta.statistics:
        return {}
    members: dict[str, list[task_parts.PartSize]] = {}
    for key, part in delta.stored.items():
        members.setdefault(_group(delta, key), []).append(part)
    made = {name: _sum(parts) for name, parts in members.items()}
    extra = [entry.bytes for name, entry in delta.entries.items() if name in delta.extra_tensors]
    if extra:
        made["extra"] = Group(len(extra), 0, sum(extra), ())
    made["header"] = Group(1, 0, delta.bytes - sum(group.bytes for group in made.values()), ())
    return {name: made[name] for name in GROUPS if name in made}


def _group(delta: Delta, key: str) -> str:
    kind, slot = task_parts.kind_of(key), delta.layout.by_name[task_parts.name_of(key)]
    if kind in _FACTORS and slot.kind == "adapted":
        return _FACTORS[kind]
    return _ROLES.get(slot.role, "others")


def _sum(parts: list[task_parts.PartSize]) -> Group:
    bytes_: dict[str, int] = {}
    for part in parts:
        bytes_[part.precision] = bytes_.get(part.precision, 0) + part.bytes
    precisions = sorted(bytes_, key=lambda precision: -bytes_[precision])
    return Group(len(parts), sum(p.entries for p in parts), sum(bytes_.values()), tuple(precisions))
