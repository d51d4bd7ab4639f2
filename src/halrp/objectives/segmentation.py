"""Segmentation: a class for every pixel, cross-entropy or dice loss, and the overlap of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import SettingError
from halrp.objectives.classification import in_float, mean_cross_entropy
from halrp.objectives.labels import Labelled, check_range, class_weights
from halrp.objectives.objective import check_integers, register


@register
@dataclass(frozen=True)
class Segmentation(Labelled):
    """A class for every pixel of targets (N, *space), outputs (N, classes, *space).

    Pixels with the label `ignore` do not count. Validation scores are the intersection over union of a picture's
    masks, averaged over the classes that it has or is predicted to have, and over pictures.
    """

    name: ClassVar[str] = "segmentation"
    dims: ClassVar[tuple[int, ...]] = (3, 4, 5)

    error: Literal["cross-entropy", "dice", "both"] = "cross-entropy"
    """The loss: cross-entropy of pixels, one minus the mean dice overlap of classes in a picture, or their sum."""
    ignore: int = -100
    """The label of pixels that do not count."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        super().__post_init__()
        if self.error not in ("cross-entropy", "dice", "both"):
            raise SettingError(
                f"Segmentation(error={self.error!r}) is unknown; choose 'cross-entropy', 'dice' or 'both'"
            )
        if not is_whole(self.ignore):
            raise SettingError(f"Segmentation(ignore={self.ignore!r}): give a whole number, such as 255")

    @property
    def ignored_label(self) -> int:
        """The label that does not count."""
        return self.ignore

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no class indices for every pixel."""
        labels = check_integers(targets, name, "(examples, height, width)", (2, 3, 4))
        check_range(labels[labels != self.ignore], self.classes, name)
        return labels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over pictures, (,)."""
        total = outputs.new_zeros(())
        if self.error != "dice":
            total = total + mean_cross_entropy(
                outputs, targets, class_weights(self.weights, outputs), ignore=self.ignore
            )
        return total if self.error == "cross-entropy" else total + self._dice_loss(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean intersection over union, (,)."""
        truth, counts = self._masks(targets, outputs.shape[1])
        predicted = F.one_hot(outputs.argmax(1), outputs.shape[1]).movedim(-1, 1).flatten(2) * counts
        both, either = (predicted * truth).sum(2), ((predicted + truth) > 0).sum(2)
        present = either > 0
        overlap = torch.where(present, both / either.clamp(min=1), 0.0).sum(1) / present.sum(1).clamp(min=1)
        return overlap.mean()

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The score of pictures that are of one class throughout, of the best class."""
        totals, pictures, classes = torch.zeros(()), 0, self.classes or 1
        for batch in targets:
            truth, _ = self._masks(batch.detach(), classes)
            pixels = truth.sum(2).double().cpu()
            others = (pixels > 0).sum(1, keepdim=True) + (pixels == 0)  # the classes of a picture, and this one
            totals = totals + (pixels / pixels.sum(1, keepdim=True).clamp(min=1) / others).sum(0)
            pictures += len(batch)
        score = float(totals.max()) / max(pictures, 1)
        return score if 0 < score < 1 else None

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> Masks:
        """The class of every pixel."""
        names = None if class_names is None else tuple(class_names)
        return Masks(outputs.argmax(1), in_float(outputs).softmax(1), names)

    def _dice_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One minus the mean over pictures and classes of 2 Σ p t / Σ (p + t), over classes that occur in a picture."""
        truth, counts = self._masks(targets, outputs.shape[1])
        predicted = in_float(outputs).softmax(1).flatten(2) * counts
        present = truth.sum(2) > 0
        dice = 2 * (predicted * truth).sum(2) / (predicted + truth).sum(2).clamp(min=1e-6)
        return (1 - (dice * present).sum(1) / present.sum(1).clamp(min=1)).mean().to(outputs.dtype)

    def _masks(self, targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """The true mask of each class, (N, classes, pixels), and which pixels count, (N, 1, pixels)."""
        counts = (targets != self.ignore).flatten(1).unsqueeze(1)
        labels = targets.flatten(1).where(counts.squeeze(1), 0)
        return F.one_hot(labels, classes).movedim(-1, 1) * counts, counts


@dataclass(frozen=True, eq=False)
class Masks:
    """The classes of the pixels of some pictures."""

    indices: Tensor
    """The class of every pixel, (N, *space)."""
    probabilities: Tensor
    """(N, classes, *space)."""
    names: tuple[str, ...] | None = None
    """What the classes are called, if the task says so."""

    def __len__(self) -> int:
        return len(self.indices)
