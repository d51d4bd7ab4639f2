"""Labels of classes: what targets that are class indices share, whatever their shape.

`Labelled` is the part of an objective that counts classes and weighs them; the rest are pure functions of targets.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from halrp.checks import is_number
from halrp.errors import LabelError, SettingError
from halrp.objectives.objective import Objective


@dataclass(frozen=True)
class Labelled(Objective):
    """An objective whose targets are class indices, with one logit per class."""

    classes: int | None = None
    """How many classes there are; by default those of the training labels, which must all occur."""
    weights: tuple[float, ...] | Literal["balanced"] | None = None
    """What a label of each class counts in the loss; "balanced" is inverse to the training labels of each."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        if self.classes is not None:
            object.__setattr__(self, "classes", given_classes(self.classes, type(self).__name__))
        object.__setattr__(self, "weights", checked_weights(self.weights, self.classes, type(self).__name__))

    @property
    def ignored_label(self) -> int | None:
        """The label that does not count, if there is one."""
        return None

    @property
    def outputs(self) -> int | None:
        """One logit per class."""
        return self.classes

    @property
    def is_fitted(self) -> bool:
        """Whether neither the classes nor their weights depend on the training labels."""
        return self.classes is not None and self.weights != "balanced"

    def fitted(self, targets: Iterable[Tensor], name: str) -> Self:
        """Count the classes, and weigh them if that is wanted."""
        labels = labels_in(targets, self.ignored_label)
        classes = class_count(labels.present, self.classes, name)
        weights = balanced_weights(labels, classes, name) if self.weights == "balanced" else self.weights
        return replace(self, classes=classes, weights=weights)

    def with_outputs(self, outputs: int) -> Self:
        """As many classes as outputs."""
        return self if self.classes == outputs else replace(self, classes=outputs)

    def convert(self, targets: Tensor) -> Tensor:
        """Class indices as int64."""
        return targets.long()

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The share of the most frequent class, weighted by class if the loss is."""
        return largest_share(labels_in(targets, self.ignored_label), self.weights)


def check_labels(labels: Tensor, classes: int | None, name: str) -> None:
    """Refuse labels that are not class indices, or not below `classes`; `name` names the data in the error."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise LabelError(
            f"{name}: labels must be a 1-D tensor of class indices, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    check_range(labels.long(), classes, name)


def check_range(labels: Tensor, classes: int | None, name: str) -> None:
    """Refuse class indices below 0, or not below `classes`."""
    if not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        limit = "…" if classes is None else str(classes - 1)
        raise LabelError(f"{name}: labels run from {low} to {high}, but must lie in 0 … {limit}")
    if classes is not None and high >= classes:
        raise LabelError(
            f"{name}: label {high} does not fit classes={classes}; "
            f"labels must lie in 0 … {classes - 1}, so pass classes={high + 1} or re-map them"
        )


def given_classes(classes: Any, name: str) -> int:
    """The number of classes that a user gives, or an error if it is none."""
    try:
        count = operator.index(classes)
    except TypeError:
        count = 0
    if isinstance(classes, bool) or count < 1:
        raise SettingError(f"{name}: classes={classes!r} is no number of classes; give a whole number of at least 1")
    return count


class Labels(NamedTuple):
    """The labels that occur in some targets, in order, and how often each does."""

    present: Tensor
    counts: Tensor


def labels_in(targets: Iterable[Tensor], ignore: int | None = None) -> Labels:
    """The labels in batches of class indices of any shape, without those that are ignored."""
    present, counts = torch.zeros(2, 0, dtype=torch.long)
    for batch in targets:
        labels = batch.detach().flatten().cpu()
        new, times = (labels if ignore is None else labels[labels != ignore]).unique(return_counts=True)
        present, position = torch.cat([present, new]).unique(return_inverse=True)
        counts = torch.zeros(len(present), dtype=torch.long).index_add_(0, position, torch.cat([counts, times]))
    return Labels(present, counts)


def largest_share(labels: Labels, weights: tuple[float, ...] | str | None = None) -> float | None:
    """The share of the most frequent label, weighted by class; None if there are not two that count."""
    counts = labels.counts.double()
    if isinstance(weights, tuple):
        counts = counts * torch.tensor(weights, dtype=torch.float64)[labels.present]
    return None if int((counts > 0).sum()) < 2 else float(counts.max() / counts.sum())


def class_count(present: Tensor, classes: int | None, name: str) -> int:
    """The number of classes of data with these labels, distinct and in order: as given, or all of 0 … n−1."""
    highest = int(present[-1]) if len(present) else -1
    if classes is None:
        if highest < 0:
            raise LabelError(f"{name}: no label counts, so there are no classes; give labels, or classes=...")
        if len(present) <= highest:
            gap = int((present != torch.arange(len(present), device=present.device)).nonzero()[0])
            raise LabelError(
                f"{name}: labels run up to {highest}, but {highest + 1 - len(present)} of 0 … {highest} never occur, "
                f"the first of them {gap}; pass classes={highest + 1} if the task has that many classes, or re-map the "
                f"labels to 0 … {len(present) - 1}"
            )
        return highest + 1
    check_range(present, classes, name)
    return classes


def checked_weights(weights: Any, classes: int | None, name: str) -> tuple[float, ...] | Literal["balanced"] | None:
    """Weights of classes as a user gives them: "balanced", None, or a number of at least 0 for each class."""
    if weights is None or (isinstance(weights, str) and weights == "balanced"):
        return weights  # type: ignore[return-value]
    values = weights.tolist() if isinstance(weights, Tensor) else weights
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SettingError(f"{name}(weights={weights!r}): give a number for each class, 'balanced', or None")
    numbers = tuple(values)
    if not all(is_number(number, 0) for number in numbers) or not any(numbers):
        raise SettingError(f"{name}(weights={weights!r}): weights are numbers of 0 or more, and not all 0")
    if classes is not None and len(numbers) != classes:
        raise SettingError(f"{name}: {len(numbers)} weights for {classes} classes; give one for each")
    return tuple(float(number) for number in numbers)


def balanced_weights(labels: Labels, classes: int, name: str) -> tuple[float, ...]:
    """Weights inverse to how often each class occurs, with a mean of 1 over the examples."""
    counts = torch.zeros(classes, dtype=torch.long).index_add_(0, *labels)
    if int(counts.min()) == 0:
        missing = int(counts.argmin())
        raise LabelError(
            f"{name}: class {missing} never occurs, so weights='balanced' has no weight for it; give numbers, or drop "
            "the class"
        )
    return tuple((counts.sum().double() / (classes * counts)).float().tolist())


def class_weights(weights: tuple[float, ...] | str | None, like: Tensor) -> Tensor | None:
    """Weights of classes as a tensor on the device and in the type of outputs."""
    return torch.tensor(weights, device=like.device, dtype=like.dtype) if isinstance(weights, tuple) else None
