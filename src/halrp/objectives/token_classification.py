"""Token classification: a label for every position of a sequence, with positions that do not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import SettingError
from halrp.objectives.classification import in_float, mean_cross_entropy
from halrp.objectives.labels import Labelled, check_range, class_weights
from halrp.objectives.objective import check_integers, register


@register
@dataclass(frozen=True)
class TokenClassification(Labelled):
    """A label for every token of targets (N, length), outputs (N, length, classes).

    Tokens with the label `ignore` (padding, later pieces of a word) do not count in the loss, in scores or in means.
    Validation scores are the share of tokens that are labelled right.
    """

    name: ClassVar[str] = "token-classification"
    dims: ClassVar[tuple[int, ...]] = (3,)
    width_dim: ClassVar[int] = 2

    ignore: int = -100
    """The label of tokens that do not count."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        super().__post_init__()
        if not is_whole(self.ignore):
            raise SettingError(f"{type(self).__name__}(ignore={self.ignore!r}): give a whole number, such as -100")

    @property
    def ignored_label(self) -> int:
        """The label that does not count."""
        return self.ignore

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no class indices for every position."""
        labels = check_integers(targets, name, "(examples, length)", (2,))
        check_range(labels[labels != self.ignore], self.classes, name)
        return labels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the tokens that count, (,); 0 if none does."""
        weights = class_weights(self.weights, outputs)
        return mean_cross_entropy(outputs.flatten(0, 1), targets.flatten(), weights, ignore=self.ignore)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of the tokens that count which are labelled right, weighted by class if the loss is, (,)."""
        weights = counted(targets, self.weights, self.ignore)
        return ((outputs.argmax(-1) == targets) * weights).sum() / weights.sum().clamp(min=1e-30)

    def weight(self, targets: Tensor) -> Tensor:
        """The number of tokens that count, or the sum of the weights of their classes, (,)."""
        return counted(targets, self.weights, self.ignore).sum()

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> TokenLabels:
        """The label of every token, padding included, which the attention mask of the inputs tells."""
        indices = outputs.argmax(-1)
        rows = indices.tolist()
        labels = rows if class_names is None else [[class_names[index] for index in row] for row in rows]
        return TokenLabels(tuple(map(tuple, labels)), indices, in_float(outputs).softmax(-1))


def counted(targets: Tensor, weights: tuple[float, ...] | str | None, ignore: int) -> Tensor:
    """What each label counts: nothing if it is ignored, or else the weight of its class, in the shape of targets."""
    counts = targets != ignore
    if not isinstance(weights, tuple):
        return counts.float()
    table = torch.tensor(weights, device=targets.device)
    return table[targets.clamp(min=0).where(counts, 0)] * counts


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """The labels of the tokens of some rows."""

    labels: tuple[tuple[str | int, ...], ...]
    """The label of every token: its name, or its index where the task has no class names."""
    indices: Tensor
    """(N, length)."""
    probabilities: Tensor
    """(N, length, classes)."""

    def __len__(self) -> int:
        return len(self.labels)
