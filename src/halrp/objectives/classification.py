"""Classification: one label in 0 … classes−1 per example, one logit per class, cross-entropy and accuracy.

The only file that knows the loss, the score and the labels of a task; training, evaluation and importance call it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.errors import LabelError


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
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        limit = "…" if classes is None else str(classes - 1)
        raise LabelError(f"{name}: labels run from {low} to {high}, but must lie in 0 … {limit}")


def class_count(highest: int, classes: int | None, name: str) -> int:
    """The number of classes of data whose highest label is known: as given, or the highest label plus one."""
    if classes is None:
        return highest + 1
    if classes < 1 or highest >= classes:
        raise LabelError(
            f"{name}: label {highest} does not fit classes={classes}; "
            f"labels must lie in 0 … {classes - 1}, so pass classes={highest + 1} or re-map them"
        )
    return classes
