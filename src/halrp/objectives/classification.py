"""Classification: one label in 0 … classes−1 per example, one logit per class, cross-entropy and accuracy.

The only file that has a cross-entropy; kinds of tasks with labels of another shape take it from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.checks import is_number
from halrp.errors import SettingError
from halrp.objectives.labels import Labelled, check_labels, class_weights
from halrp.objectives.objective import register


def mean_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0, ignore: int = -100
) -> Tensor:
    """Mean cross-entropy of logits (N, classes, ...) over labels (N, ...), weighted by class, (,).

    It is the sum over the sum of weights, so that a batch in which no label counts has a loss and a gradient of 0.
    """
    total = F.cross_entropy(logits, labels, weights, ignore_index=ignore, label_smoothing=smoothing, reduction="sum")
    counts = labels != ignore
    whole = counts.sum() if weights is None else (weights[labels.where(counts, 0)] * counts).sum()
    return total / whole.where(whole > 0, 1)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (N, classes), (,)."""
    return F.cross_entropy(logits, labels)


@register
@dataclass(frozen=True)
class Classification(Labelled):
    """One label per example. Validation scores are accuracies, weighted by class if the loss is."""

    name: ClassVar[str] = "classification"
    dims: ClassVar[tuple[int, ...]] = (2,)

    smoothing: float = 0.0
    """The share of every label that is spread over all classes."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        super().__post_init__()
        if not (is_number(self.smoothing, 0) and self.smoothing < 1):
            raise SettingError(
                f"{type(self).__name__}(smoothing={self.smoothing!r}) is out of range; give a share in [0, 1)"
            )

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no class indices, one for each example."""
        check_labels(targets, self.classes, name)
        return targets.long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy, (,)."""
        weights = class_weights(self.weights, outputs)
        if weights is not None:
            return mean_cross_entropy(outputs, targets, weights, self.smoothing)
        return F.cross_entropy(outputs, targets, label_smoothing=self.smoothing)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of examples whose largest logit is that of their label, (,)."""
        weight = self.weight(targets)
        whole = weight.where(weight > 0, 1) if isinstance(weight, Tensor) else weight
        return self.total_score(outputs, targets) / whole

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


# ---- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answer:
    """What the logits of some rows mean."""

    labels: tuple[str | int | None, ...]
    """The most probable class of each row: its name, or its index where the task has no class names. None for a row of
    no task (`identify`)."""
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
