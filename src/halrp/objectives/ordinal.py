"""Ordinal classification: ordered classes, one logit for each step between two, and the error in steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.errors import SettingError
from halrp.objectives.classification import Answer, in_float
from halrp.objectives.labels import check_labels, class_count, given_classes, labels_in
from halrp.objectives.objective import Objective, register


@register
@dataclass(frozen=True)
class Ordinal(Objective):
    """Ordered classes 0 < 1 < … < classes−1: output k is the logit that the class is above k.

    The loss is the mean binary cross-entropy of the classes−1 questions; validation scores are one minus the mean
    error in steps, as a share of the longest.
    """

    name: ClassVar[str] = "ordinal"
    dims: ClassVar[tuple[int, ...]] = (2,)

    classes: int | None = None
    """How many classes there are, two or more; by default those of the training labels, which must all occur."""

    def __post_init__(self) -> None:
        """Refuse a number of classes without an order."""
        if self.classes is not None and given_classes(self.classes, "Ordinal") < 2:
            raise SettingError(f"Ordinal(classes={self.classes!r}): an order needs two classes or more")

    @property
    def outputs(self) -> int | None:
        """One logit between every two neighbouring classes."""
        return None if self.classes is None else self.classes - 1

    def fitted(self, targets: Iterable[Tensor], name: str) -> Ordinal:
        """Count the classes."""
        return replace(self, classes=class_count(labels_in(targets).present, self.classes, name))

    def with_outputs(self, outputs: int) -> Ordinal:
        """One class more than outputs."""
        return self if self.outputs == outputs else replace(self, classes=outputs + 1)

    def with_names(self, count: int) -> Ordinal:
        """One name for each class."""
        return replace(self, classes=count)

    @property
    def named(self) -> int | None:
        """One name for each class."""
        return self.classes

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no class indices, one for each example."""
        check_labels(targets, self.classes, name)
        return targets.long()

    def convert(self, targets: Tensor) -> Tensor:
        """Class indices as int64."""
        return targets.long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross-entropy over examples and steps, (,)."""
        steps = torch.arange(outputs.shape[1], device=outputs.device)
        return F.binary_cross_entropy_with_logits(outputs, (targets.unsqueeze(1) > steps).to(outputs.dtype))

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One minus the mean error in steps, as a share of the longest, (,)."""
        steps = (_classes(outputs) - targets).abs().to(torch.float32)
        return 1 - steps.mean() / outputs.shape[1]

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The score of the median."""
        present, counts = labels_in(targets)
        if len(present) < 2 or self.classes is None:
            return None
        errors = (torch.arange(self.classes).unsqueeze(1) - present).abs().double() @ counts.double() / counts.sum()
        return 1 - float(errors.min()) / (self.classes - 1)

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> Answer:
        """Labels and probabilities; a label is the number of steps that are more likely taken than not."""
        above = in_float(outputs).sigmoid().cummin(1).values  # being above 2 implies being above 1
        edges = F.pad(F.pad(above, (1, 0), value=1.0), (0, 1), value=0.0)
        indices = _classes(outputs)
        labels = indices.tolist() if class_names is None else [class_names[index] for index in indices.tolist()]
        return Answer(tuple(labels), indices, edges[:, :-1] - edges[:, 1:])


def _classes(outputs: Tensor) -> Tensor:
    return (in_float(outputs).cummin(1).values > 0).sum(1)
