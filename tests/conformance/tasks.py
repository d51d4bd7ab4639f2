"""The data of the matrix: inputs of every kind, and targets that follow from them, for every objective."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.objectives import (
    CausalLM,
    Classification,
    MultiLabel,
    Objective,
    Ordinal,
    Regression,
    Segmentation,
    TokenClassification,
)
from tests.conformance.networks import LENGTH, VOCABULARY

ROWS = 16


def _pictures(size: int) -> Callable[[torch.Generator], Batch]:
    return lambda generator: torch.randn(ROWS, 3, size, size, generator=generator)


def _tokens(generator: torch.Generator) -> Tensor:
    return torch.randint(2, VOCABULARY, (ROWS, LENGTH), generator=generator)


def _encoded(generator: torch.Generator) -> Batch:
    """What a tokenizer gives: tokens, padded on the right, and a mask."""
    lengths = torch.randint(3, LENGTH + 1, (ROWS,), generator=generator)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return {"input_ids": _tokens(generator) * mask, "attention_mask": mask}


INPUTS: dict[str, Callable[[torch.Generator], Batch]] = {
    "pictures": _pictures(8),
    "large pictures": _pictures(16),
    "pictures by name": lambda generator: {"pixel_values": _pictures(8)(generator)},
    "tokens": _tokens,
    "tokens by name": lambda generator: {"input_ids": _tokens(generator)},
    "encoded text": _encoded,
    "pair": lambda generator: (torch.randn(ROWS, 8, generator=generator), torch.randn(ROWS, 6, generator=generator)),
}
"""By kind, what draws a batch."""


@dataclass(frozen=True)
class Task:
    """The data of a task, and what its outputs mean."""

    x: Batch
    y: Tensor
    objective: Objective

    @property
    def data(self) -> tuple[Batch, Tensor]:
        """As `learn` takes them."""
        return self.x, self.y


def task(inputs: str, objective: str, seed: int, classes: int = 3) -> Task:
    """A task of a kind; a function of its arguments alone. The number of classes is that of the labels."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{inputs} {objective} {seed}".encode()))
    x = INPUTS[inputs](generator)
    y, meaning = TARGETS[objective](x, classes, generator)
    return Task(x, y, meaning)


def _per_row(x: Batch) -> Tensor:
    """A number of each row, to make targets of, (N,)."""
    return tree.leaves(x)[0].flatten(1).float().std(1)


def _ranked(x: Batch, classes: int) -> Tensor:
    """Labels 0 … classes−1 of about equal numbers of rows, in the order of a number of each row."""
    return _per_row(x).argsort().argsort() * classes // ROWS


def _classification(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    return _ranked(x, classes), Classification(classes)


def _multi_label(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    return torch.rand(ROWS, classes, generator=generator).lt(0.5).float(), MultiLabel(classes)


def _regression(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    return torch.stack([_per_row(x) + shift for shift in range(classes)], 1), Regression()


def _ordinal(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    return _ranked(x, classes), Ordinal(classes)


def _token_classification(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    labels = x["input_ids"] % classes
    return torch.where(x["input_ids"] > 0, labels, -100), TokenClassification(classes)


def _segmentation(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    return x.mean(1).clamp(-0.99, 0.99).add(1).mul(classes / 2).long(), Segmentation(classes)


def _causal_lm(x: Batch, classes: int, generator: torch.Generator) -> tuple[Tensor, Objective]:
    tokens = x["input_ids"]
    return torch.where(tokens > 0, tokens, -100), CausalLM()


TARGETS: dict[str, Callable[[Batch, int, torch.Generator], tuple[Tensor, Objective]]] = {
    "classification": _classification,
    "multi-label": _multi_label,
    "regression": _regression,
    "ordinal": _ordinal,
    "token classification": _token_classification,
    "segmentation": _segmentation,
    "causal LM": _causal_lm,
}
"""By objective, what makes targets of inputs."""
