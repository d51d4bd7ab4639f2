"""`bn` and `be`: what a task trains, what it stores, and that nothing else moves."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import nn

from halrp import seeding
from halrp.lab import backbones
from halrp.lab.methods import Context, make, network
from halrp.lab.methods.be import Scaled, original, scale
from halrp.lab.methods.frozen_base import FrozenBase, scales_only
from halrp.lab.methods.network import contents
from halrp.lab.methods.tiny import TinyNet, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task
from halrp.model.layers.registry import adapt
from halrp.training.recipe import Recipe


def learned(name: str, tasks: int = 3, **settings: str) -> FrozenBase:
    method = cast(FrozenBase, make(name, tiny_context(), **settings))
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def net() -> TinyNet:
    return cast(TinyNet, tiny_context().build(3, 0))


@pytest.mark.parametrize("name", ["bn", "be"])
def test_the_base_stays_to_the_bit(name: str) -> None:
    method = learned(name, 1)
    assert method.base is not None
    before = {n: t.clone() for n, t in method.base.tensors.items()}
    for task in tiny_tasks()[1:]:
        method.learn(task)
    assert all(torch.equal(t, before[n]) for n, t in method.base.tensors.items())


def test_a_later_task_of_bn_owns_norms_their_statistics_and_a_head() -> None:
    method = learned("bn")
    norms = {f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias", "running_mean", "running_var")}
    counts = {"norm1.num_batches_tracked", "norm2.num_batches_tracked"}
    assert not method.tasks[0].all()
    for private in method.tasks[1:]:
        assert set(private.tensors) == norms | counts | {"head.weight", "head.bias"}
        assert not private.scales
    assert method.base is not None
    base, view = contents(method.base.module), contents(method.module(1))
    moved = {n for n in base if base[n].shape != view[n].shape or not torch.equal(base[n], view[n])}
    assert moved == set(method.tasks[1].tensors), "every norm and the head have learned, and nothing else"


def test_norms_start_as_the_first_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned("bn", 1)
    monkeypatch.setattr(network, "fit", lambda *args, **kwargs: None)
    method.learn(tiny_tasks()[1])
    assert method.base is not None
    first = method.base.tensors
    owned = {n: t for n, t in method.tasks[1].tensors.items() if n.startswith("norm")}
    assert len(owned) == 4
    assert all(torch.equal(t, first[n]) for n, t in owned.items())


def test_with_ones_a_scaled_layer_is_the_plain_one() -> None:
    plain, scaled = net(), net()
    for name in ("conv1.weight", "conv2.weight", "linear.weight"):
        scale(scaled, name)
    x = tiny_tasks()[0].test.x
    assert torch.equal(plain.eval()(x), scaled.eval()(x))


def test_made_and_factored_weights_agree() -> None:
    generator = seeding.generator("scales")
    made, factored = net().double().eval(), net().double().eval()
    for name in ("conv1.weight", "conv2.weight", "linear.weight"):
        part = scale(made, name)
        with torch.no_grad():
            for vector in (part.r, part.s):
                vector.copy_(1 + 0.3 * torch.randn(len(vector), generator=generator))
        pair = part.r.detach(), part.s.detach()
        adapt(factored.get_submodule(name.removesuffix(".weight")), scales_only({name: pair})[name])
        assert torch.equal(original(made, name), dict(net().double().named_parameters())[name])
    x = tiny_tasks()[0].test.x.double()
    torch.testing.assert_close(made(x), factored(x), rtol=1e-10, atol=1e-10)


def test_a_scaled_weight_is_the_product_entry_by_entry() -> None:
    weight = torch.arange(24.0).view(2, 3, 2, 2)
    part = Scaled(weight)
    with torch.no_grad():
        part.r.copy_(torch.tensor([2.0, 3.0]))
        part.s.copy_(torch.tensor([1.0, 10.0, 100.0]))
    result = part(weight)
    for j in range(2):
        for i in range(3):
            assert torch.equal(result[j, i], weight[j, i] * part.r[j] * part.s[i])


def test_the_first_task_of_be_stores_its_vectors_and_nothing_twice() -> None:
    method = learned("be", 1)
    assert method.base is not None
    vectors = (6 + 3) + (8 + 6) + (16 + 32)
    assert method.counted() == method.base.parameter_count + vectors
    assert not method.tasks[0].tensors


def test_the_first_task_of_be_is_predicted_as_it_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tiny_tasks()[0].test.x
    trained: list[torch.Tensor] = []
    fit = network.fit

    def observed(context: Context, task: Task, net: nn.Module, *rest: Any) -> Any:
        result = fit(context, task, net, *rest)
        with torch.no_grad():
            trained.append(net(x))
        return result

    monkeypatch.setattr(network, "fit", observed)
    method = learned("be", 1)
    torch.testing.assert_close(method.predict(x, 0), trained[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("start", "same"), [("first", True), ("ones", False)])
def test_vectors_of_later_tasks_start_at_ones_or_at_the_first_tasks(
    start: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = learned("be", 1, start=start)
    monkeypatch.setattr(network, "fit", lambda *args, **kwargs: None)
    method.learn(tiny_tasks()[1])
    for name, (r, s) in method.tasks[1].scales.items():
        first = method.tasks[0].scales[name]
        assert torch.equal(r, first[0] if same else torch.ones_like(r))
        assert torch.equal(s, first[1] if same else torch.ones_like(s))
        assert not torch.equal(first[0], torch.ones_like(r))


@cache
def added(name: str, classes: int) -> tuple[int, int, int]:
    """Of LeNet: the base's parameters, and what a second task adds to the count and to what is stored."""

    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build("lenet", classes, seed=seed)

    def task(identity: int) -> Task:
        x = torch.randn(12, 3, 32, 32, generator=seeding.generator("pictures", identity))
        split = Split(x, torch.arange(12) % classes)
        return Task(f"pictures-{identity}", identity, classes, split, split, split)

    method = cast(FrozenBase, make(name, Context(build, Recipe(epochs=1, batch=12), tasks=2)))
    method.learn(task(0))
    assert method.base is not None
    counted, stored = method.counted(), method.stored().parameters
    method.learn(task(1))
    return method.base.parameter_count, method.counted() - counted, method.stored().parameters - stored


NORMS, VECTORS, BIASES, STATISTICS = 2740, 5393, 1370, 2740 + 4
"""Of LeNet: affine parts of norms, Σ(inputs + outputs), biases of layers, running statistics and their counters."""


@pytest.mark.parametrize(
    ("classes", "base", "head", "later", "growth"), [(10, 2_995_620, 5010, 9, 2.3), (5, 2_993_115, 2505, 19, 3.3)]
)
def test_a_task_of_bn_on_lenet_costs_its_norms_and_head(
    classes: int, base: int, head: int, later: int, growth: float
) -> None:
    parameters, counted, stored = added("bn", classes)
    assert parameters == base
    assert counted == NORMS + head
    assert stored == NORMS + head + STATISTICS
    assert round(100 * later * counted / base, 1) == growth


@pytest.mark.parametrize(
    ("classes", "base", "head", "later", "growth"), [(10, 2_995_620, 5010, 9, 3.95), (5, 2_993_115, 2505, 19, 6.75)]
)
def test_a_task_of_be_on_lenet_costs_vectors_norms_head_and_biases(
    classes: int, base: int, head: int, later: int, growth: float
) -> None:
    parameters, counted, stored = added("be", classes)
    assert parameters == base
    assert counted == VECTORS + NORMS + head + BIASES
    assert stored == counted + STATISTICS
    assert round(100 * later * (counted - BIASES) / base, 2) == growth, "the paper's table leaves biases out"
