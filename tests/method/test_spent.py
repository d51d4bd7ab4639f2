"""The bytes of a bound are spent, as long as anything that promises something would fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from halrp import FromProbe, Halrp, Learner, Recipe, WarmUp
from halrp.method.budget import Budget, _larger
from halrp.method.protocols import Allocation, LayerOptions, TaskCosts
from halrp.model.size import Size
from tests.helpers import CLASSES, drawn, net, tiny_task

SPENT: dict[str, Any] = {}
"""The last allocation: its options, what a file takes, and what was chosen."""


@dataclass(frozen=True)
class RecordingBudget(Budget):
    """A budget that shows what it chose."""

    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size) -> Allocation:
        chosen = super().allocate(options, costs, base)
        SPENT.update(options=options, file_bytes=costs.file_bytes, chosen=chosen)
        return chosen


def wide() -> nn.Module:
    """A layer whose components are large beside all else."""
    return nn.Sequential(nn.Linear(10, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: net("conv"),
    "transformer": lambda: net("transformer"),
    "mlp": lambda: drawn(wide),
}
BOUNDS = {"conv": (2_480, 2_580, 3_130), "transformer": (2_630, 2_830, 3_230), "mlp": (4_430, 5_130, 6_330, 9_330)}


@pytest.mark.parametrize("start", [FromProbe(held_out=0), WarmUp()], ids=["probe", "warm-up"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_file_has_97_percent_of_its_bound_unless_nothing_that_is_offered_fits(kind: str, start: Any) -> None:
    x, y = tiny_task(kind, examples=48)
    x = x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(7))  # so that something is left to learn
    filled = 0
    for bound in BOUNDS[kind]:
        method = replace(Halrp.budget(view="mean"), allocate=RecordingBudget(bytes=bound), start=start)
        result = Learner(MODELS[kind](), method=method, recipe=Recipe(epochs=3, batch=8, lr=5e-3), base="given")
        delta = result.learn("a", (x, y))
        planned = SPENT["file_bytes"](SPENT["chosen"].ranks, method.allocate)
        steps = _larger(SPENT["options"], SPENT["chosen"])
        assert all(SPENT["file_bytes"](step.ranks, method.allocate) > bound for _, step in steps)
        assert 0.99 * planned <= delta.bytes <= planned <= bound  # numbers that round to zero may be left out
        filled += delta.bytes >= 0.97 * bound
    assert filled
