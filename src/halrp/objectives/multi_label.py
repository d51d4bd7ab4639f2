"""Multi-label classification: any number of labels per example, one logit per label, binary cross-entropy and F1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.checks import is_number
from halrp.errors import DataError, LabelError, SettingError
from halrp.objectives.classification import in_float
from halrp.objectives.labels import checked_weights, class_weights, given_classes
from halrp.objectives.objective import Objective, check_finite, register


@register
@dataclass(frozen=True)
class MultiLabel(Objective):
    """Any number of labels per example. Validation scores are the mean F1 of an example's labels."""

    name: ClassVar[str] = "multi-label"
    dims: ClassVar[tuple[int, ...]] = (2,)

    labels: int | None = None
    """How many labels there are; by default the columns of the training targets."""
    positive_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """What a present label counts against an absent one; "balanced" is the training quotient of absent to present."""
    thresholds: float | tuple[float, ...] = 0.5
    """The probability from which a label is present, for all labels or for each."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        if self.labels is not None:
            object.__setattr__(self, "labels", given_classes(self.labels, "MultiLabel"))
        weights = checked_weights(self.positive_weights, self.labels, "MultiLabel")
        object.__setattr__(self, "positive_weights", weights)
        limits: Any = self.thresholds
        if not is_number(limits):
            limits = tuple(limits) if isinstance(limits, Iterable) and not isinstance(limits, str) else (None,)
            object.__setattr__(self, "thresholds", limits)
        each = limits if isinstance(limits, tuple) else (limits,)
        if not all(is_number(limit) and 0 <= limit <= 1 for limit in each):
            raise SettingError(f"MultiLabel(thresholds={self.thresholds!r}): give probabilities in [0, 1]")
        if isinstance(limits, tuple) and self.labels is not None and len(limits) != self.labels:
            raise SettingError(f"MultiLabel: {len(limits)} thresholds for {self.labels} labels; give one for each")

    @property
    def outputs(self) -> int | None:
        """One logit per label."""
        return self.labels

    @property
    def is_fitted(self) -> bool:
        """Whether neither the labels nor their weights depend on the training targets."""
        return self.labels is not None and self.positive_weights != "balanced"

    def fitted(self, targets: Iterable[Tensor], name: str) -> MultiLabel:
        """Count the labels, and weigh them if that is wanted."""
        present: Tensor | None = None
        rows = 0
        for batch in targets:
            counts = batch.detach().double().sum(0).cpu()
            present, rows = counts if present is None else present + counts, rows + len(batch)
        labels = self.labels if present is None else len(present)
        weights = self.positive_weights
        if weights == "balanced" and present is not None:
            if float(present.min()) == 0 or float(present.max()) == rows:
                wrong = int(((present == 0) | (present == rows)).nonzero()[0])
                raise LabelError(
                    f"{name}: label {wrong} is present in no example or in all, so positive_weights='balanced' has no "
                    "weight for it; give numbers, or drop the label"
                )
            weights = tuple(((rows - present) / present).float().tolist())
        return replace(self, labels=labels, positive_weights=weights)

    def with_outputs(self, outputs: int) -> MultiLabel:
        """As many labels as outputs."""
        return self if self.labels == outputs else replace(self, labels=outputs)

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no truth values or shares in [0, 1], (N, labels)."""
        if targets.dim() != 2 or targets.is_complex() or targets.shape[1] == 0:
            raise DataError(
                f"{name}: targets of several labels must have the shape (examples, labels), got {targets.dtype} of "
                f"shape {tuple(targets.shape)}"
            )
        if self.labels is not None and targets.shape[1] != self.labels:
            raise DataError(f"{name}: targets have {targets.shape[1]} labels, not {self.labels}")
        targets = self.convert(targets)
        check_finite(targets, name)
        if targets.numel() and not (float(targets.min()) >= 0 and float(targets.max()) <= 1):
            low, high = float(targets.min()), float(targets.max())
            raise LabelError(f"{name}: targets run from {low:g} to {high:g}; a label is absent (0) or present (1)")
        return targets

    def convert(self, targets: Tensor) -> Tensor:
        """Truth values as numbers."""
        return targets if targets.is_floating_point() else targets.float()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross-entropy over examples and labels, (,)."""
        weights = class_weights(self.positive_weights, outputs)
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), pos_weight=weights)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over examples of the F1 of their labels, (,); 1 where none is present and none is predicted."""
        predicted, present = self._present(outputs), targets >= 0.5
        both, either = (predicted & present).sum(1), predicted.sum(1) + present.sum(1)
        return torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0).mean()

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The best score of the k most frequent labels, over all k."""
        present = torch.cat([(batch.detach() >= 0.5).cpu() for batch in targets]).double()
        both = F.pad(present[:, present.sum(0).argsort(descending=True)].cumsum(1), (1, 0))
        either = torch.arange(both.shape[1]) + present.sum(1, keepdim=True)
        score = float(torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0).mean(0).max())
        return score if score < 1 else None

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> LabelSets:
        """The labels that are present, and the probability of each."""
        present = self._present(outputs)
        names: Sequence[str | int] = range(outputs.shape[1]) if class_names is None else class_names
        rows = [tuple(name for name, there in zip(names, row, strict=True) if there) for row in present.tolist()]
        return LabelSets(tuple(rows), present, in_float(outputs).sigmoid())

    def _present(self, outputs: Tensor) -> Tensor:
        return in_float(outputs).sigmoid() >= torch.tensor(self.thresholds, device=outputs.device)


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The labels of some rows."""

    labels: tuple[tuple[str | int, ...], ...]
    """The labels that are present in each row: names, or indices where the task has no class names."""
    present: Tensor
    """Whether each label is present, (N, labels)."""
    probabilities: Tensor
    """The probability of each label, (N, labels)."""

    def __len__(self) -> int:
        return len(self.labels)
