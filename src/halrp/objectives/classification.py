"""Classification: one label in 0 … classes−1 per example, one logit per class, cross-entropy and accuracy.

The only file that knows the loss, the score, the labels and the answers of a task; training, evaluation, importance and
`Learner.answer` call it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.errors import LabelError, SettingError


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (N, classes), (,)."""
    return F.cross_entropy(logits, labels)


def total_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy of logits (N, classes) over the examples, (,)."""
    return F.cross_entropy(logits, labels, reduction="sum")


def score(logits: Tensor, labels: Tensor) -> Tensor:
    """The number of examples whose largest logit is that of their label, (,)."""
    return (logits.argmax(1) == labels).sum()


def check_labels(labels: Tensor, classes: int | None, name: str) -> None:
    """Refuse labels that are not class indices, or not below `classes`; `name` names the data in the error."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise LabelError(
            f"{name}: labels must be a 1-D tensor of class indices, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    labels = labels.long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        limit = "…" if classes is None else str(classes - 1)
        raise LabelError(f"{name}: labels run from {low} to {high}, but must lie in 0 … {limit}")


def given_classes(classes: Any, name: str) -> int:
    """The number of classes that a user gives, or an error if it is none."""
    try:
        count = operator.index(classes)
    except TypeError:
        count = 0
    if isinstance(classes, bool) or count < 1:
        raise SettingError(f"{name}: classes={classes!r} is no number of classes; give a whole number of at least 1")
    return count


def class_count(present: Tensor, classes: int | None, name: str) -> int:
    """The number of classes of data with these labels, distinct and in order: as given, or all of 0 … n−1."""
    highest = int(present[-1])
    if classes is None:
        if len(present) <= highest:
            gap = int((present != torch.arange(len(present), device=present.device)).nonzero()[0])
            raise LabelError(
                f"{name}: labels run up to {highest}, but {highest + 1 - len(present)} of 0 … {highest} never occur, "
                f"the first of them {gap}; pass classes={highest + 1} if the task has that many classes, or re-map the "
                f"labels to 0 … {len(present) - 1}"
            )
        return highest + 1
    if highest >= classes:
        raise LabelError(
            f"{name}: label {highest} does not fit classes={classes}; "
            f"labels must lie in 0 … {classes - 1}, so pass classes={highest + 1} or re-map them"
        )
    return classes


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
    probabilities = (logits if logits.dtype == torch.float64 else logits.float()).softmax(1)
    indices = logits.argmax(1)
    pairs = zip(indices.tolist(), class_names, strict=True)
    return Answer(tuple(index if names is None else names[index] for index, names in pairs), indices, probabilities)
