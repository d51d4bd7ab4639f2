"""What a method learns from: a pretrained network that gives features, and tasks with a few examples of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.model.batch import Batch, named_leaves


class Part(NamedTuple):
    """Inputs and their classes, which are int64 in 0 … classes−1."""

    x: Batch
    y: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    """Classes to distinguish, with the examples that a seed drew for learning and validation."""

    name: str
    classes: int
    shots: int
    """Training examples of each class, or fewer where there are not that many."""
    seed: int
    train: Part
    val: Part
    test: Part
    """The same examples for every seed and every number of shots."""

    @property
    def fingerprint(self) -> str:
        """A hash of all examples: other images or texts, or another draw of them, have another one."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        inputs = {f"{name}{path}": x for name, part in parts.items() for path, x in named_leaves(part.x)}
        return seeding.fingerprint(inputs | {f"{name} labels": part.y for name, part in parts.items()})


class Domain(Protocol):
    """A pretrained network with its tasks."""

    name: str
    """Names the file of records."""
    network: str
    width: int
    """Features of an example."""
    dev: tuple[str, ...]
    """Tasks on whose validation data settings are chosen."""
    held_out: tuple[str, ...]
    """Tasks on which nothing is chosen."""

    @property
    def rates(self) -> Mapping[str, tuple[float, ...]]:
        """Learning rates to choose from, for "lora" and "finetune"."""
        ...

    @property
    def lora_targets(self) -> Mapping[str, tuple[str, ...]]:
        """Sets of layers that LoRA may adapt, by the name of the set; layers are named by the end of their path."""
        ...

    def __hash__(self) -> int:
        """Domains with the same weights are equal, so that features are cached."""
        ...

    def base(self) -> nn.Module:
        """A new copy of the pretrained network without its head: inputs (N, …) → features (N, width)."""
        ...

    def task(self, name: str, shots: int, seed: int) -> Task:
        """The task with the examples that a seed draws."""
        ...

    def batch(self, shots: int) -> int:
        """Examples in a training step."""
        ...


class Classifier(nn.Module):
    """A body that gives features, and a linear head; dicts reach the body by name."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Batch) -> Tensor:
        """Logits (N, classes)."""
        features = self.body(**x) if isinstance(x, dict) else self.body(x)
        logits: Tensor = self.classifier(features)
        return logits


def drawn(members: Sequence[int], sizes: Sequence[int], *key: object) -> list[list[int]]:
    """Disjoint random samples of `members` of the given sizes, by a seed that `key` names.

    A sample for fewer shots is the beginning of one for more, because the later samples are cut from the end.
    """
    if sum(sizes) > len(members):
        raise ValueError(f"{key}: {sum(sizes)} examples are needed, and there are {len(members)}; ask for fewer shots")
    order = torch.randperm(len(members), generator=seeding.generator(*key)).tolist()
    first, *others = sizes
    samples, end = [[members[i] for i in order[:first]]], len(order)
    for size in others:
        samples.append([members[i] for i in order[end - size : end]])
        end -= size
    return samples
