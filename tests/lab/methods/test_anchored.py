"""`finetune`, `l2` and `ewc`: where they are the same, and what holds the latter two back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp.lab.methods import ewc as ewc_module
from halrp.lab.methods import make
from halrp.lab.methods.ewc import ElasticWeights, fisher_by_batch
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.l2 import Anchored
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task


def learned(name: str, tasks: int = 3, **settings: Any) -> FineTune:
    method = cast(FineTune, make(name, tiny_context(), **settings))
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def values(method: FineTune) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in method.shared().items()}


def same(a: FineTune, b: FineTune) -> bool:
    x, y = a._tensors(), b._tensors()
    return x.keys() == y.keys() and all(torch.equal(x[n], y[n]) for n in x)


@pytest.mark.parametrize("name", ["l2", "ewc"])
def test_without_strength_it_is_fine_tuning_to_the_bit(name: str) -> None:
    assert same(learned(name, strength=0.0), learned("finetune"))
    assert not same(learned(name, strength=1.0), learned("finetune"))


def test_ewc_with_ones_for_its_fisher_and_twice_the_strength_is_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(net: nn.Module, parameters: dict[str, nn.Parameter], *rest: object) -> dict[str, Tensor]:
        return {n: torch.ones_like(p) for n, p in parameters.items()}

    monkeypatch.setattr(ewc_module, "fisher_by_batch", ones)
    assert same(learned("ewc", strength=0.6, online=True, decay=0.0), learned("l2", strength=0.3))


def distance(method: FineTune, before: dict[str, Tensor]) -> float:
    return max(float((p - before[n]).abs().max()) for n, p in values(method).items())


def test_a_huge_strength_keeps_the_features_where_they_were() -> None:
    moved = {}
    for name, settings in (("finetune", {}), ("l2", {"strength": 1e4})):
        method = learned(name, 1, **settings)
        before = values(method)
        method.learn(tiny_tasks()[1])
        moved[name] = distance(method, before)
    # Adam's first step is as long as the rate whatever the strength; the penalty takes it back.
    assert moved["l2"] < TINY.lr < 3 * TINY.lr < moved["finetune"]


@pytest.mark.parametrize(("name", "settings"), [("l2", {}), ("ewc", {"online": True, "decay": 0.5})])
def test_the_penalty_is_zero_where_a_task_begins(name: str, settings: dict[str, Any]) -> None:
    method = cast(Anchored, make(name, tiny_context(), **settings))
    for task in tiny_tasks():
        method.learn(task)
        assert float(method.penalty()) == 0
    with torch.no_grad():
        next(iter(method.shared().values())).add_(1.0)
    assert float(method.penalty()) > 0


def test_the_penalty_of_ewc_is_zero_after_its_first_task() -> None:
    method = cast(Anchored, learned("ewc", 1))
    assert float(method.penalty()) == 0


class Remembers(ElasticWeights):
    """Keeps every Fisher and every snapshot, as the plain form of the formula would."""

    def consolidate(self, task: Task) -> None:
        assert self.net is not None
        result = fisher_by_batch(self.net, self.shared(), task.train.x, task.train.y, "predicted", 16)
        self.seen = [*getattr(self, "seen", []), (result, values(self))]
        super().consolidate(task)


def doubles(context: Context) -> Context:
    return replace(context, build=lambda classes, seed: context.build(classes, seed).double())


def double(task: Task) -> Task:
    return replace(task, train=Split(task.train.x.double(), task.train.y))


@pytest.mark.parametrize("online", [False, True])
def test_two_tensors_per_parameter_give_the_gradient_of_all_snapshots(online: bool) -> None:
    method = Remembers(doubles(tiny_context()), strength=50.0, online=online, decay=0.7)
    for task in tiny_tasks():
        method.learn(double(task))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.shared().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parameter.grad = None
    method.hooks()["after_backward"]()
    newest = method.seen[-1][1]
    for name, parameter in method.shared().items():
        if online:
            fisher = sum(0.7 ** (2 - i) * result[name] for i, (result, _) in enumerate(method.seen))
            penalty = 25.0 * fisher * (parameter - newest[name]).square()
        else:
            penalty = sum(25.0 * result[name] * (parameter - there[name]).square() for result, there in method.seen)
        (expected,) = torch.autograd.grad(cast(Tensor, penalty).sum(), parameter)
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-10)


def test_the_penalty_scales_with_the_gradients() -> None:
    plain = learned("l2", 1, strength=0.5)
    assert isinstance(plain, Anchored)
    with torch.no_grad():
        for parameter in plain.shared().values():
            parameter.add_(1.0)
            parameter.grad = None
    plain.context = replace(plain.context, recipe=replace(plain.context.recipe, gradient_scale=10.0))
    plain.hooks()["after_backward"]()
    for parameter in plain.shared().values():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 10.0), rtol=1e-5, atol=0)


def test_fine_tuning_changes_old_logits_and_keeps_a_head_per_task() -> None:
    tasks = tiny_tasks()
    method = make("finetune", tiny_context())
    method.learn(tasks[0])
    item, before = method.stored(), method.predict(tasks[0].test.x, 0)
    method.learn(tasks[1])
    assert not torch.equal(method.predict(tasks[0].test.x, 0), before)
    assert method.stored().parameters - item.parameters == 17 * 2, "16 features and a bias for each of 2 classes"


def test_l2_and_ewc_store_no_more_than_fine_tuning() -> None:
    assert learned("l2").stored() == learned("ewc").stored() == learned("finetune").stored()
