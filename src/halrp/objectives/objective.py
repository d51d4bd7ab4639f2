"""What every objective gives: `Objective`, and the names by which files know objectives.

Outputs have rows first, as inputs have. In which dimension the entries of the head are, and how many dimensions there
are, belongs to the objective: (N, width) of a classifier, (N, length, width) of tokens, (N, width, *space) of pictures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from halrp.errors import DataError, SettingError


class Objective:
    """What the outputs of a task mean: the width of its head, its loss, score and answers, and what targets it takes.

    A subclass is a frozen dataclass whose fields are its settings, plain JSON values; `register` makes it known under
    its `name`, so that tasks are answered after they are loaded. A file holds the name and the settings, never code.
    """

    name: ClassVar[str] = ""
    dims: ClassVar[tuple[int, ...]] = ()
    """How many dimensions outputs may have; any number if empty."""
    width_dim: ClassVar[int] = 1
    """The dimension of outputs that counts the entries of the head."""
    keeps_head: ClassVar[bool] = False
    """Whether outputs are those of the model itself, such as a vocabulary, so that no head is replaced."""
    width_fields: ClassVar[tuple[str, ...]] = ("classes", "labels", "values")
    """Fields that follow from the width of the head, and are not written."""

    @property
    def outputs(self) -> int | None:
        """The width of the head; None as long as it follows from targets or from the model."""
        raise NotImplementedError

    @property
    def is_fitted(self) -> bool:
        """Whether targets need not be read to complete the settings."""
        return self.keeps_head or self.outputs is not None

    def fitted(self, targets: Iterable[Tensor], name: str) -> Self:
        """The objective with all settings, from batches of checked training targets; `name` names them in errors."""
        return self

    def with_outputs(self, outputs: int) -> Self:
        """The objective for a head of a given width, where that is left open."""
        return self

    def with_names(self, count: int) -> Self:
        """The objective for a number of class names, where that is left open."""
        return self.with_outputs(count)

    @property
    def named(self) -> int | None:
        """How many class names a task has, if it has any."""
        return self.outputs

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse targets (N, ...) that mean nothing, and return them in the type that the loss takes."""
        raise NotImplementedError

    def convert(self, targets: Tensor) -> Tensor:
        """Targets in the type that the loss takes, for batches on a GPU: looking at them would wait for it.

        By default they are checked all the same; an objective whose `check` reads numbers may spare that.
        """
        return self.check(targets, "targets")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, (,), which training minimises."""
        raise NotImplementedError

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean score of a batch, (,); higher is better."""
        raise NotImplementedError

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> Any:
        """What the outputs of some rows mean to a user."""
        raise NotImplementedError

    # ---- with a default -------------------------------------------------------------------------------------------

    def weight(self, targets: Tensor) -> Tensor | int:
        """How much a batch counts when the losses and scores of several are averaged: by default, its rows."""
        return targets.shape[0]

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch times its weight, (,), so that batches add up."""
        return self.loss(outputs, targets) * self.weight(targets)

    def total_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score of a batch times its weight, (,), so that batches add up."""
        return self.score(outputs, targets) * self.weight(targets)

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The score of the best constant answer to batches of checked targets, so of whoever guesses without inputs.

        None if it is not known, as by default, or if the targets do not differ, so that a constant answer is right.
        """
        return None

    def refuse_outputs(self, outputs: Tensor, rows: int, width: int) -> str:
        """Why outputs for some rows, from a head of some width, cannot be what this objective expects; or nothing."""
        shape = tuple(outputs.shape)
        counts = "any" if not self.dims else " or ".join(map(str, self.dims))
        if self.dims and len(shape) not in self.dims:
            return f"outputs of shape {shape}; {self.name} takes {counts} dimensions"
        if not shape or shape[0] != rows or len(shape) <= self.width_dim or shape[self.width_dim] != width:
            wanted = f"{rows} rows first and {width} entries in dimension {self.width_dim}"
            return f"outputs of shape {shape}; {self.name} takes {wanted}"
        return ""

    def settings(self) -> dict[str, Any]:
        """The settings that are not at their defaults, as plain JSON values; the width is known elsewhere."""
        every: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        written = [f for f in every if f.name not in self.width_fields]
        changed: dict[str, Any] = {f.name: getattr(self, f.name) for f in written if getattr(self, f.name) != f.default}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in changed.items()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], outputs: int) -> Self:
        """The objective that a file describes, for a head of that width."""
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()}
        return cls(**values).with_outputs(outputs)


_KNOWN: dict[str, type[Objective]] = {}
_Kind = TypeVar("_Kind", bound=type[Objective])


def register(kind: _Kind) -> _Kind:
    """Make a class of objectives known under its `name`; for use as a decorator.

    Files that name it are answered by this class from then on, in every process that registers it.
    """
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise SettingError(f"register takes a subclass of halrp.objectives.Objective, not {kind!r}")
    if not isinstance(kind.name, str) or not kind.name:
        raise SettingError(f"{kind.__name__} has no name to be registered under; give the class name = '...'")
    present = _KNOWN.get(kind.name)
    if present is not None and (present.__module__, present.__qualname__) != (kind.__module__, kind.__qualname__):
        raise SettingError(f"the objective {kind.name!r} is registered already, as {present.__qualname__}; rename one")
    _KNOWN[kind.name] = kind
    return kind


def described(objective: Objective) -> dict[str, Any]:
    """An objective as a file holds it: its name, and settings if there are any."""
    settings = objective.settings()
    try:
        text = json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"the settings of {objective!r} cannot be written to a file ({error}); use texts, finite numbers, truth "
            "values and tuples of them"
        ) from error
    return {"name": objective.name} | ({"settings": json.loads(text)} if settings else {})


def restored(description: Mapping[str, Any], outputs: int, task: str) -> Objective:
    """The objective that a task's file describes, or a `SettingError` that says what to import."""
    name, settings = description["name"], description.get("settings", {})
    kind = _KNOWN.get(name)
    if kind is None:
        raise SettingError(
            f"{task}: its objective {name!r} is not known here, so its outputs cannot be decoded; import the module "
            f"that registers it (known: {', '.join(sorted(_KNOWN))}), or use predict, which gives outputs"
        )
    try:
        return kind.from_settings(settings, outputs)
    except (TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"{task}: the settings of its objective {name!r} are not usable: {error}") from error


def is_registered(objective: Objective) -> bool:
    """Whether files that name this objective can be answered."""
    return _KNOWN.get(objective.name) is type(objective)


# ---- for checks of targets ----------------------------------------------------------------------------------------


def check_integers(targets: Tensor, name: str, dims: str, good_dims: Sequence[int]) -> Tensor:
    """Refuse targets that are no class indices of some numbers of dimensions; they are returned as int64."""
    number = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if targets.dim() not in good_dims or not number:
        raise DataError(
            f"{name}: targets must be class indices of shape {dims}, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}"
        )
    return targets.long()


def check_finite(targets: Tensor, name: str) -> None:
    """Refuse targets with NaN or infinity."""
    finite = targets.isfinite()
    if not bool(finite.all()):
        bad = int((~finite.reshape(len(targets), -1)).any(dim=1).sum())
        raise DataError(f"{name}: {bad} of {len(targets)} targets hold NaN or infinity; clean or drop these examples")
