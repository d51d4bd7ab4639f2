"""`apdfix`: a fixed σ, tasks that never change, and its sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab import backbones
from halrp.lab.methods import Context
from halrp.lab.methods.apd import Additive, compose
from halrp.lab.methods.apdfix import FixedAdditive
from halrp.lab.methods.check import check_method
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task
from halrp.training.recipe import Recipe

READINGS: list[dict[str, Any]] = [{}, {"mask_only": True}]


def learned(tasks: int = 3, **settings: Any) -> FixedAdditive:
    method = FixedAdditive(tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


@pytest.mark.parametrize("settings", READINGS)
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    # A mask and new norms over another task's weights take more steps than a whole network.
    context = tiny_context(recipe=replace(TINY, epochs=8))
    check_method(lambda c: FixedAdditive(c, **settings), context=context, tasks=tiny_tasks())


@pytest.mark.parametrize("settings", [*READINGS, {"threshold": 0.0}, {"threshold": 0.05, "start": "zeros"}])
def test_old_logits_and_sigma_stay_to_the_bit(settings: dict[str, Any]) -> None:
    method, tasks, seen = FixedAdditive(tiny_context(), **settings), tiny_tasks(), list[Tensor]()
    sigma: dict[str, Tensor] = {}
    for i, task in enumerate(tasks):
        method.learn(task)
        seen.append(method.predict(task.test.x, i))
        sigma = sigma or {n: s.detach().clone() for n, s in method.sigma.items()}
    assert all(torch.equal(method.predict(t.test.x, i), seen[i]) for i, t in enumerate(tasks))
    assert all(torch.equal(s, sigma[n]) for n, s in method.sigma.items())


def test_the_first_task_is_that_of_apd() -> None:
    additive = Additive(tiny_context())
    additive.learn(tiny_tasks()[0])
    fixed = learned(1).state().tensors
    assert all(torch.equal(t, fixed[n]) for n, t in additive.state().tensors.items())


@pytest.mark.parametrize("mask_only", [False, True])
def test_a_later_task_trains_its_mask_tau_biases_norms_and_head(mask_only: bool) -> None:
    method = learned(1, mask_only=mask_only)
    net, start = method.begin(tiny_tasks()[1], sparse=not mask_only)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    method.learn(tiny_tasks()[1])
    part = method.tasks[1]
    assert all(not torch.equal(v, start.v[n]) for n, v in part.v.items())
    assert bool(part.tau) is not mask_only
    assert all(not torch.equal(t, start.tau[n]) for n, t in part.tau.items())
    still = {n for n, t in before.items() if n not in method.sigma and torch.equal(part.tensors[n], t)}
    assert not still


def test_with_a_mask_only_a_weight_is_the_masked_sigma() -> None:
    method = learned(2, mask_only=True)
    for i, part in enumerate(method.tasks):
        for n, theta in method.weights(i).items():
            assert torch.equal(theta, compose(method.sigma[n], part.v[n]).detach())


def test_masks_are_drawn_to_a_half_not_to_one() -> None:
    left = []
    for l2 in (0.0, 10.0):
        method = FixedAdditive(tiny_context(recipe=replace(TINY, epochs=20)), mask_only=True)
        method.learn(tiny_tasks()[0])
        _, start = method.begin(tiny_tasks()[1], sparse=False)
        method.l2 = l2
        method.learn(tiny_tasks()[1])
        far = [torch.cat([v.detach() for v in part.v.values()]).abs().mean() for part in (start, method.tasks[1])]
        left.append(float(far[1] / far[0]))
    assert left[1] < 0.2 < 1 < left[0], "at v = 0 a mask is a half"


def pictures(identity: int, classes: int, shape: tuple[int, ...]) -> Task:
    x = torch.randn(12, *shape, generator=seeding.generator("pictures", identity))
    split = Split(x, torch.arange(12) % classes)
    return Task(f"pictures-{identity}", identity, classes, split, split, split)


def on(backbone: str, shape: tuple[int, ...], classes: int = 10, **settings: Any) -> Context:
    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build(backbone, classes, seed=seed, shape=shape, **settings)

    return Context(build, Recipe(epochs=1, batch=12), tasks=2)


@pytest.mark.parametrize(("classes", "base", "head"), [(10, 2_995_620, 5010), (5, 2_993_115, 2505)])
def test_on_lenet_a_task_costs_masks_norms_biases_head_and_non_zeros(classes: int, base: int, head: int) -> None:
    shape = (3, 32, 32)
    method = FixedAdditive(on("lenet", shape), mask_only=classes == 5)
    method.learn(pictures(0, classes, shape))
    first = sum(method.details()["sparse"].values())
    assert method.counted() == base + 1370 + first
    before = method.counted()
    method.learn(pictures(1, classes, shape))
    assert method.counted() - before == 1370 + sum(method.details()["sparse"].values()) + 2740 + 1370 + head
    assert (first == 0) is (classes == 5)


@pytest.mark.parametrize(
    ("backbone", "shape", "settings"),
    [("mlp", (1, 8, 8), {}), ("resnet18", (3, 16, 16), {"width": 8}), ("digits-net", (1, 8, 8), {})],
)
@pytest.mark.parametrize("method", [Additive, FixedAdditive])
def test_it_works_with_other_backbones(
    method: type[Additive | FixedAdditive], backbone: str, shape: tuple[int, ...], settings: dict[str, Any]
) -> None:
    result = method(on(backbone, shape, **settings))
    for i in range(2):
        result.learn(pictures(i, 3, shape))
    assert result.predict(pictures(0, 3, shape).test.x, 0).shape == (12, 3)
    matrices = {n for n, p in result.net.named_parameters() if p.dim() > 1} if result.net is not None else set()
    assert set(result.sigma) == matrices - {"head.weight"}
