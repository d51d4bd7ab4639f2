"""Classification: one label in 0 … classes−1 per example, one logit per class, cross-entropy and accuracy.

The only file that has a cross-entropy; kinds of tasks with labels of another shape take it from here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.checks import is_number
from halrp.errors import LabelError, SettingError
from halrp.objectives.objective import Objective, register


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0, ignore: int = -100
) -> Tensor:
    """Mean cross-entropy of logits (N, classes, ...) over labels (N, ...), weighted by class; NaN if none counts."""
    return F.cross_entropy(logits, labels, weights, ignore_index=ignore, label_smoothing=smoothing)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (N, classes), (,)."""
    return F.cross_entropy(logits, labels)


@register
@dataclass(frozen=True)
class Classification(Objective):
    """One label per example. Validation scores are accuracies, weighted by class if the loss is."""

    name: ClassVar[str] = "classification"
    dims: ClassVar[tuple[int, ...]] = (2,)

    classes: int | None = None
    """How many classes there are; by default those of the training labels, which must all occur."""
    weights: tuple[float, ...] | Literal["balanced"] | None = None
    """What an example of each class counts in the loss; "balanced" is inverse to the training examples of each."""
    smoothing: float = 0.0
    """The share of every label that is spread over all classes."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        if self.classes is not None:
            object.__setattr__(self, "classes", given_classes(self.classes, type(self).__name__))
        object.__setattr__(self, "weights", checked_weights(self.weights, self.classes, type(self).__name__))
        if not (is_number(self.smoothing, 0) and self.smoothing < 1):
            raise SettingError(
                f"{type(self).__name__}(smoothing={self.smoothing!r}) is out of range; give a share in [0, 1)"
            )

    @property
    def outputs(self) -> int | None:
        """One logit per class."""
        return self.classes

    @property
    def is_fitted(self) -> bool:
        """Whether neither the classes nor their weights depend on the training labels."""
        return self.classes is not None and self.weights != "balanced"

    def fitted(self, targets: Iterable[Tensor], name: str) -> Classification:
        """Count the classes, and weigh them if that is wanted."""
        labels = labels_in(targets)
        classes = class_count(labels.present, self.classes, name)
        weights = balanced_weights(labels, classes, name) if self.weights == "balanced" else self.weights
        return replace(self, classes=classes, weights=weights)

    def with_outputs(self, outputs: int) -> Classification:
        """As many classes as outputs."""
        return self if self.classes == outputs else replace(self, classes=outputs)

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no class indices, one for each example."""
        check_labels(targets, self.classes, name)
        return targets.long()

    def convert(self, targets: Tensor) -> Tensor:
        """Class indices as int64."""
        return targets.long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, (,)."""
        return cross_entropy(outputs, targets, class_weights(self.weights, outputs), self.smoothing)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of examples whose largest logit is that of their label, (,)."""
        return self.total_score(outputs, targets) / self.weight(targets)

    def weight(self, targets: Tensor) -> Tensor | int:
        """The number of examples, or the sum of the weights of their classes."""
        if not isinstance(self.weights, tuple):
            return targets.shape[0]
        return torch.tensor(self.weights, device=targets.device)[targets].sum()

    def total_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum of the cross-entropy over the examples, (,)."""
        return F.cross_entropy(
            outputs, targets, class_weights(self.weights, outputs), reduction="sum", label_smoothing=self.smoothing
        )

    def total_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The number of examples whose largest logit is that of their label, or the sum of their weights, (,)."""
        right = outputs.argmax(1) == targets
        weights = class_weights(self.weights, outputs)
        return right.sum() if weights is None else (weights[targets] * right).sum()

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> Answer:
        """Labels and probabilities."""
        return decode(outputs, [class_names] * len(outputs))


# ---- labels and class weights, also for kinds of tasks with many labels per example -----------------------------


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


# ---- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answer:
    """What the logits of some rows mean."""

    labels: tuple[str | int, ...]
    """The most probable class of each row: its name, or its index where the task has no class names."""
    indices: Tensor
    """The indices of these classes, (N,)."""
    probabilities: Tensor
    """The probability of every class, (N, classes); 0 for a class that a row's task does not have."""

    @property
    def confidence(self) -> Tensor:
        """The probability of each row's label, (N,)."""
        return self.probabilities.gather(1, self.indices.unsqueeze(1)).squeeze(1)

    def __len__(self) -> int:
        return len(self.labels)


def decode(logits: Tensor, class_names: Sequence[Sequence[str] | None]) -> Answer:
    """The answers that logits (N, classes) give; `class_names` are those of each row's task."""
    probabilities = in_float(logits).softmax(1)
    indices = logits.argmax(1)
    pairs = zip(indices.tolist(), class_names, strict=True)
    return Answer(tuple(index if names is None else names[index] for index, names in pairs), indices, probabilities)


def in_float(outputs: Tensor) -> Tensor:
    """Outputs in at least float32, in which probabilities are computed."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()
