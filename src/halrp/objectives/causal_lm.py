"""Language modelling: the next token at every position, with the vocabulary of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DataError, SettingError
from halrp.objectives.classification import in_float, mean_cross_entropy
from halrp.objectives.labels import labels_in, largest_share
from halrp.objectives.objective import Objective, check_integers, register


@register
@dataclass(frozen=True)
class CausalLM(Objective):
    """The next token: outputs (N, length, vocabulary) at position i are compared with targets (N, length) at i + 1.

    Targets are the tokens themselves, as transformers' collators give them, with `ignore` where one does not count. The
    outputs are the model's own, so the learner has `head=False`; the vocabulary's layer is adapted like any other,
    also one that is tied to the embedding. Validation scores are the share of tokens that are predicted right.
    """

    name: ClassVar[str] = "causal-lm"
    dims: ClassVar[tuple[int, ...]] = (3,)
    width_dim: ClassVar[int] = 2
    keeps_head: ClassVar[bool] = True

    ignore: int = -100
    """The target of positions that do not count, such as padding."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        if not is_whole(self.ignore):
            raise SettingError(f"CausalLM(ignore={self.ignore!r}): give a whole number, such as -100")

    @property
    def outputs(self) -> None:
        """Those of the model."""
        return None

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no tokens, two or more in each example."""
        tokens = check_integers(targets, name, "(examples, length)", (2,))
        if tokens.shape[1] < 2:
            raise DataError(f"{name}: targets of shape {tuple(tokens.shape)} have no next token; give two or more")
        return tokens

    def convert(self, targets: Tensor) -> Tensor:
        """Tokens as int64."""
        return targets.long()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the next tokens that count, (,)."""
        return mean_cross_entropy(outputs[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore=self.ignore)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of the next tokens that count which have the largest logit, (,)."""
        right = (outputs[:, :-1].argmax(-1) == targets[:, 1:]).sum()
        return right / self.weight(targets).clamp(min=1)

    def weight(self, targets: Tensor) -> Tensor:
        """The number of next tokens that count, (,)."""
        return (targets[:, 1:] != self.ignore).sum()

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The share of the most frequent next token."""
        return largest_share(labels_in((tokens[:, 1:] for tokens in targets), self.ignore))

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> NextTokens:
        """The next token after each position; the one after a text is at its last position."""
        probabilities = in_float(outputs).softmax(-1)
        confidence, tokens = probabilities.max(-1)
        return NextTokens(tokens, confidence, torch.log_softmax(in_float(outputs), -1))


@dataclass(frozen=True, eq=False)
class NextTokens:
    """The most probable next token after each position of some rows."""

    tokens: Tensor
    """(N, length)."""
    confidence: Tensor
    """The probability of each, (N, length)."""
    log_probabilities: Tensor
    """Of every token of the vocabulary, (N, length, vocabulary)."""

    def __len__(self) -> int:
        return len(self.tokens)
