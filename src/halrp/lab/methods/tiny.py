"""A tiny stream and a tiny network, on which a method learns a task in a fraction of a second."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab.methods.protocol import Context
from halrp.lab.streams import Split, Task
from halrp.training.recipe import Recipe

TINY = Recipe(epochs=4, batch=16, lr=1e-2)
"""Enough to learn a tiny task."""


class TinyNet(nn.Module):
    """Two convolutions with batch norm, a linear layer and the head, for images (batch, 3, 8, 8)."""

    def __init__(self, classes: int) -> None:
        """Initialise the weights from the global generator."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.linear = nn.Linear(32, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        x = nn.functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = self.norm2(self.conv2(x)).relu().flatten(1)
        logits: Tensor = self.head(self.linear(x).relu())
        return logits


def tiny_tasks(classes: Sequence[int] = (3, 2, 4), examples: int = 48) -> list[Task]:
    """Tasks that a `TinyNet` learns in a few epochs: a class is a pattern, an example the pattern with noise.

    Their training data differ in size; with the batch of `TINY` one of them has a last batch of a single example.
    """
    return [_tiny_task(i, width, examples + i % 2) for i, width in enumerate(classes)]


def _tiny_task(identity: int, classes: int, examples: int) -> Task:
    generator = seeding.generator("tiny task", identity)
    patterns = torch.randn(classes, 3, 8, 8, generator=generator)

    def split(rows: int) -> Split:
        y = torch.arange(rows) % classes
        return Split(patterns[y] + 0.5 * torch.randn(rows, 3, 8, 8, generator=generator), y)

    return Task(f"tiny-{identity}", identity, classes, split(examples), split(12), split(24))


def tiny_context(
    tasks: int = 3, *, recipe: Recipe = TINY, seed: int = 0, device: str | torch.device = "cpu", order: str = "A"
) -> Context:
    """The context of a run that builds `TinyNet`s."""

    def build(classes: int, seed: int) -> nn.Module:
        with seeding.isolated("tiny network", seed, device=torch.device("cpu")):
            return TinyNet(classes).to(device)

    return Context(build, recipe, seed, tasks, order)
