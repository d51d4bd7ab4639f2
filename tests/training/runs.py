"""Trainings of tiny nets that the tests of settings share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from halrp import Halrp, Recipe
from halrp.training.batches import InMemory
from halrp.training.loop import Group, Hooks, Stage, Training
from tests.helpers import net, tiny_task

SEED_KEY = (0, "base", "task", "stage")
METHOD = Halrp.budget(growth_per_task=0.9)


def recipe(**settings: Any) -> Recipe:
    return Recipe(**{"epochs": 3, "batch": 4, "lr": 1e-2, "schedule": "constant", **settings})


def training(module: nn.Module, settings: Recipe, kind: str = "mlp", examples: int = 12, **options: Any) -> Training:
    x, y = tiny_task(kind, examples=examples)
    data = options.pop("data", None) or InMemory(x.to(next(module.parameters()).dtype), y)
    hooks = Hooks(**options.pop("hooks", {}))
    groups = options.pop("groups", [Group(list(module.parameters()))])
    return Training(module, groups, data, settings, Stage(settings.epochs, SEED_KEY, "birds", "s"), hooks, **options)


def trained(settings: Recipe, **options: Any) -> nn.Module:
    module = net("mlp").double()
    training(module, settings, **options).run()
    return module


def assert_close(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-10) -> None:
    for result, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
