"""Two Gaussian tasks of three classes: fine-tuning forgets, EWC forgets less, frozen methods forget nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab.methods import Context, make
from halrp.lab.streams import Split, Task
from halrp.training.recipe import Recipe


class Small(nn.Module):
    """One hidden layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.hidden(x).relu()))


def build(classes: int, seed: int) -> nn.Module:
    with seeding.isolated("small", seed, device=torch.device("cpu")):
        return Small(classes)


def gaussian(identity: int) -> Task:
    generator = seeding.generator("gaussian", identity)
    centres = 3 * torch.randn(3, 4, generator=generator)

    def split(rows: int) -> Split:
        y = torch.arange(rows) % 3
        return Split(centres[y] + torch.randn(rows, 4, generator=generator), y)

    return Task(f"gaussian-{identity}", identity, 3, split(240), split(60), split(300))


def accuracies(name: str, **settings: Any) -> tuple[float, float, float]:
    """Of the first task after itself, of the first after the second, of the second."""
    method = make(name, Context(build, Recipe(epochs=12, batch=32, lr=1e-2), tasks=2), **settings)
    tasks = [gaussian(0), gaussian(1)]

    def accuracy(i: int) -> float:
        return float((method.predict(tasks[i].test.x, i).argmax(1) == tasks[i].test.y).float().mean())

    method.learn(tasks[0])
    before = accuracy(0)
    method.learn(tasks[1])
    return before, accuracy(0), accuracy(1)


def test_fine_tuning_forgets_clearly_and_ewc_less() -> None:
    before, after, second = accuracies("finetune")
    assert before > 0.95
    assert second > 0.95
    assert after < before - 0.2
    held = accuracies("ewc", strength=100.0)
    assert held[0] == before
    assert held[1] > after + (before - after) / 2, "less than half is forgotten"
    assert held[2] > 0.9, "and the second task is learned all the same"


@pytest.mark.parametrize(
    ("name", "settings"), [("stl", {}), ("bn", {}), ("be", {}), ("halrp-budget", {"growth_per_task": 1.5})]
)
def test_frozen_methods_forget_nothing(name: str, settings: dict[str, Any]) -> None:
    before, after, second = accuracies(name, **settings)
    assert after == before > 0.95
    assert second > 0.6
