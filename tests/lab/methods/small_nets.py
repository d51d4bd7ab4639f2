"""The backbones of the laboratory, as small as they can be built, with two tasks that fit them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from halrp import seeding
from halrp.lab import backbones
from halrp.lab.methods import Context, Method
from halrp.lab.streams import Split, Task
from halrp.training.recipe import Recipe

SMALL: dict[str, dict[str, Any]] = {
    "lenet": {"shape": (3, 8, 8)},
    "alexnet": {"shape": (3, 19, 19)},
    "resnet18": {"shape": (3, 16, 16), "width": 8},
    "mlp": {"shape": (3, 8, 8)},
    "digits-net": {"shape": (1, 8, 8)},
}
"""`lenet-large` is `lenet` with more of everything."""


def small_context(name: str) -> Context:
    """A run of one epoch with a small backbone."""

    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build(name, classes, seed=seed, **SMALL[name])

    return Context(build, Recipe(epochs=1, batch=8), tasks=2)


def small_tasks(name: str) -> list[Task]:
    """Two tasks of noise, of 2 and 3 classes."""

    def task(identity: int, classes: int) -> Task:
        x = torch.randn(12, *SMALL[name]["shape"], generator=seeding.generator("noise", identity))
        split = Split(x, torch.arange(12) % classes)
        return Task(f"noise-{identity}", identity, classes, split, split, split)

    return [task(0, 2), task(1, 3)]


def check_two_tasks(method: Method, name: str) -> None:
    """Two tasks are learned on a small net, and the first does not change."""
    first, second = small_tasks(name)
    method.learn(first)
    before = method.predict(first.test.x, 0)
    method.learn(second)
    after = method.predict(second.test.x, 1)
    assert torch.equal(method.predict(first.test.x, 0), before)
    assert after.shape == (12, 3)
    assert bool(before.isfinite().all() and after.isfinite().all())
