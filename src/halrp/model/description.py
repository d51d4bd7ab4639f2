"""All of a task that is not a tensor, and its text in the task's file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from halrp.model.codec import Precision
from halrp.model.copies import Copies

FORMAT = 2
"""The version of task files whose matrices have one precision."""
PARTS_FORMAT = 3
"""The version of task files in which every part has a precision of its own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Description:
    """What a task is and how it was learned: plain JSON values."""

    task: str
    classes: int
    class_names: tuple[str, ...] | None = None
    view: str = ""
    """How convolutions were decomposed: "mean" over their kernels, or "full"."""
    precision: Precision = "float32"
    """How factors and dense weights are written, unless every part has a precision of its own."""
    objective: Mapping[str, Any] = field(default_factory=lambda: {"name": "classification"})
    """What the outputs mean: a name, and settings."""
    autocast: str | None = None
    """The precision of forward passes, such as "bfloat16"; None is that of the model."""
    parents: tuple[str, ...] = ()
    """Content hashes of the tasks that this one started from."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the task was learned: version, method, recipe and seed."""
    format: int = FORMAT
    """The version of the task's file."""

    def __post_init__(self) -> None:
        """Make the mappings read-only, with all that is in them."""
        for name in ("objective", "provenance"):
            object.__setattr__(self, name, Copies(getattr(self, name)))

    def text(self, base: str, layout: str) -> str:
        """The description in a file of a base with this fingerprint and layout; defaults are left out."""
        values = {
            "format": self.format,
            "task": self.task,
            "classes": self.classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "base": base,
            "layout": layout,
            "view": self.view,
            "precision": self.precision,
            "objective": dict(self.objective),
            "autocast": self.autocast,
            "parents": list(self.parents),
            "provenance": dict(self.provenance),
        }
        stored = {name: value for name, value in values.items() if name not in DEFAULTS or value != DEFAULTS[name]}
        return json.dumps(stored, sort_keys=True, separators=(",", ":"), allow_nan=False)


DEFAULTS: dict[str, Any] = {
    "class_names": None,
    "view": "",
    "precision": "float32",
    "objective": {"name": "classification"},
    "autocast": None,
    "parents": [],
    "provenance": {},
}
"""What a file means that leaves a value out."""
REQUIRED = ("format", "task", "classes", "base", "layout")


def described(part: Description) -> dict[str, Any]:
    """The fields of a description, to make another of."""
    return {f.name: getattr(part, f.name) for f in fields(Description)}
