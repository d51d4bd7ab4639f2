"""Models that people have: mixed in one pass, learned, stored, loaded and exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Learner, Plan
from halrp.model import batch as tree
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.mixed import MixedModule
from halrp.model.plan import plan as plan_of
from halrp.model.plan import trained_buffers
from tests.helpers import FAST
from tests.model.mixing import assert_close, random_delta, shuffled_rows, task_views
from tests.model.zoo import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def double(x: Batch) -> Batch:
    return tree.tree_map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, x)


def random_deltas(model: nn.Module, plan: Plan, count: int) -> list[Delta]:
    """Deltas that differ from the base in everything that training changes."""
    other = {name for name, _ in model.named_buffers()} - trained_buffers(model)
    deltas = [random_delta(model, plan, seed, classes=2 + seed) for seed in range(count)]
    return [replace(d, plain={n: t for n, t in d.plain.items() if n not in other}) for d in deltas]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_different_tasks_share_a_pass(name: str) -> None:
    family = FAMILIES[name]
    model = family.model().double().eval()
    plan = plan_of(model, family.head)
    deltas = random_deltas(model, plan, 3)
    mixed = MixedModule(Base(model, plan, channels_last=False), deltas)
    views, call, x = task_views(model, plan, deltas), Call(), double(family.inputs(9))
    for seed in range(2):
        rows = shuffled_rows(9, 3, seed)
        expected = torch.full((9, max(deltas[task].classes for task in rows)), -torch.inf, dtype=torch.float64)
        with torch.no_grad():
            for n, task in enumerate(rows.tolist()):
                expected[n, : deltas[task].classes] = call(views[task], tree.take(x, torch.tensor([n])))[0]
        assert_close(mixed(x, rows), expected)
        assert mixed.one_pass, mixed.reason


OTHERS = (
    "RoBERTa",
    "Llama",
    "ViT with scales, registers and norms of queries",
    "EfficientNet",
    "MLP-Mixer",
    "encoder with the sequence first",
)
"""Families that `tests/conformance` does not have."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_family_goes_the_whole_way(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    settings: dict[str, Any] = {"method": Halrp.budget(growth_per_task=0.5), "recipe": FAST, "progress": None}
    learner = Learner(family.model(), base="given", head=family.head, **settings)
    for number, task in enumerate("ab"):
        learner.learn(task, family.task(number))
    x = family.inputs(7, seed=5)
    alone = {task: learner.predict(x, task) for task in "ab"}
    assert not torch.equal(alone["a"], alone["b"])
    # Rows of different tasks: the same sums in another order, a few roundings of float32.
    rows = ["a", "b", "b", "a", "a", "b", "a"]
    mixed = learner.predict(x, rows)
    expected = torch.stack([alone[task][n] for n, task in enumerate(rows)])
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert cast(Any, learner)._committed.predictor._mixed.one_pass
    # Stored, and loaded by a model that was built again.
    learner.save(tmp_path / "store")
    loaded = Learner.load(tmp_path / "store", family.model())
    assert all(torch.equal(loaded.predict(x, task), logits) for task, logits in alone.items())
    # As a plain module.
    exported = learner.export("b")
    with torch.no_grad():
        logits: Tensor = Call()(exported, x)
    torch.testing.assert_close(logits, alone["b"], rtol=1e-4, atol=1e-4 * float(alone["b"].abs().max()))
    assert {type(part) for part in exported.modules()} <= {type(part) for part in family.model().modules()}
