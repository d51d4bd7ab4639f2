"""`apd`: its objective, what old tasks feel of new ones, consolidation in the stream, and its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.lab.methods import network
from halrp.lab.methods.apd import Additive, compose, cut, drift_gradients, layers, pack, unpack
from halrp.lab.methods.check import check_method
from halrp.lab.methods.comparison import deserialised, serialised
from halrp.lab.methods.protocol import Context, Size
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task
from halrp.model.plan import plan
from halrp.training.loop import Group

LONG = replace(TINY, epochs=25)
"""Enough steps for Adam to bring old tasks back to where they were."""


def learned(tasks: int = 2, context: Context | None = None, **settings: Any) -> Additive:
    method = Additive(context or tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    return max(float((before[n] - after[n]).abs().max()) for n in before)


def clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in tensors.items()}


@pytest.mark.parametrize(
    "settings",
    [{}, {"every": 2, "clusters": 1, "beta": 0.05}, {"fixed_masks": True, "start": "zeros", "threshold": 0.0}],
)
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    check_method(lambda context: Additive(context, **settings))


def test_gradients_by_hand_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((5, 4), (6, 3, 3, 3)):
        sigma, tau, target = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
        v = torch.randn(shape[0], generator=generator, dtype=torch.float64)
        for t in (sigma, tau, v):
            t.requires_grad_(True)
        expected = torch.autograd.grad((compose(sigma, v, tau) - target).square().sum() / 2, (sigma, v, tau))
        with torch.no_grad():
            torch.testing.assert_close(drift_gradients(sigma, v, tau, target), expected, rtol=1e-12, atol=1e-12)


def test_a_mask_has_one_value_per_output() -> None:
    sigma, v, tau = torch.ones(2, 3, 2, 2), torch.tensor([0.0, 100.0]), torch.full((2, 3, 2, 2), 0.25)
    assert torch.equal(compose(sigma, v, tau)[0], torch.full((3, 2, 2), 0.75))
    assert torch.equal(compose(sigma, v, tau)[1], torch.full((3, 2, 2), 1.25))
    assert torch.equal(compose(sigma, v)[1], torch.ones(3, 2, 2))


class Observed(Additive):
    """Notes what the first step of every task adds for old tasks, and how often targets are made."""

    def __init__(self, context: Context, **settings: Any) -> None:
        super().__init__(context, **settings)
        self.calls: list[str] = []
        self.first: list[tuple[Tensor, Tensor, Tensor]] = []

    def targets(self) -> list[dict[str, Tensor]]:
        self.calls.append("targets")
        return super().targets()

    def retroactive_penalty(self, targets: list[dict[str, Tensor]]) -> Callable[[], None]:
        add, waiting = super().retroactive_penalty(targets), [True]

        def observed() -> None:
            before = clones({n: s.grad for n, s in self.sigma.items() if s.grad is not None})
            add()
            if waiting.pop() if waiting else False:
                for n, sigma in self.sigma.items():
                    assert sigma.grad is not None
                    for part in self.tasks:
                        tau, v = part.tau[n].grad, part.v[n].grad
                        assert tau is not None
                        assert v is not None
                        self.first.append((sigma.grad - before[n], v.clone(), tau - self.l1 * part.tau[n].sign()))

        return observed


def test_old_tasks_ask_for_nothing_before_the_first_step() -> None:
    method = Observed(tiny_context(), every=2, clusters=1, beta=0.05)
    for task in tiny_tasks():
        method.learn(task)
    assert len(method.first) == 3 * (1 + 2), "three layers of one old task, then of two"
    assert all(not bool(t.any()) for result in method.first for t in result)
    assert method.calls == ["targets"] * 3, "once per task"


def doubles() -> Context:
    context = tiny_context()
    return replace(context, build=lambda classes, seed: context.build(classes, seed).double())


def double(task: Task) -> Task:
    splits = {n: Split(s.x.double(), s.y) for n, s in (("train", task.train), ("test", task.test))}
    return replace(task, train=splits["train"], test=splits["test"])


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_the_hook_adds_the_gradient_of_all_that_is_said_of_old_tasks(scale: float) -> None:
    context = doubles()
    method = Additive(replace(context, recipe=replace(TINY, gradient_scale=scale)), every=2, clusters=1, l1=0.03)
    for task in tiny_tasks()[:2]:
        method.learn(double(task))
    targets, wanted = method.targets(), [clones(method.weights(i, threshold=0.0)) for i in range(2)]
    add = method.retroactive_penalty(targets)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for sigma in method.sigma.values():
            sigma.add_(torch.randn(sigma.shape, generator=generator, dtype=torch.float64))
            sigma.grad = torch.ones_like(sigma)
    add()
    assert any(method.local_of(0, n) is not None for n in method.sigma)
    for n, sigma in method.sigma.items():
        total, variables = torch.zeros((), dtype=torch.float64), [sigma]
        for i, part in enumerate(method.tasks):
            local = method.local_of(i, n)
            theta = sigma * torch.sigmoid(part.v[n]).view(-1, *[1] * (sigma.dim() - 1)) + part.tau[n]
            theta = theta if local is None else theta + local
            total = total + 50 * (wanted[i][n] - theta).square().sum() + 0.03 * part.tau[n].abs().sum()
            variables += [part.tau[n], part.v[n]]
        expected = torch.autograd.grad(scale * total, variables)
        torch.testing.assert_close(sigma.grad, expected[0] + 1, rtol=1e-9, atol=1e-9)
        for variable, gradient in zip(variables[1:], expected[1:], strict=True):
            torch.testing.assert_close(variable.grad, gradient, rtol=1e-9, atol=1e-9)


def relative(strength: float) -> float:
    """How far the logits of the first task are from what they were, after a second one."""
    tasks = tiny_tasks()
    method = learned(1, tiny_context(recipe=LONG), strength=strength, threshold=0.0)
    before = method.predict(tasks[0].test.x, 0)
    method.learn(tasks[1])
    assert (method.predict(tasks[1].test.x, 1).argmax(1) == tasks[1].test.y).float().mean() > 0.9
    return float((method.predict(tasks[0].test.x, 0) - before).norm() / before.norm())


def test_a_huge_strength_keeps_old_logits_and_none_forgets() -> None:
    assert relative(1e6) < 1e-3
    assert relative(0.0) > 0.1


def test_old_tau_can_take_up_all_change_of_sigma() -> None:
    tasks = [double(task) for task in tiny_tasks()]
    method = Additive(doubles(), strength=1.0, threshold=0.0)
    method.learn(tasks[0])
    before, theta = method.predict(tasks[0].test.x, 0), clones(method.weights(0))
    method.learn(tasks[1])
    after = method.predict(tasks[0].test.x, 0)
    assert not torch.allclose(after, before, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        for n, sigma in method.sigma.items():
            method.tasks[0].tau[n].copy_(theta[n] - compose(sigma, method.tasks[0].v[n]))
    torch.testing.assert_close(method.predict(tasks[0].test.x, 0), before, rtol=1e-10, atol=1e-10)


def test_a_large_l1_leaves_the_mask_alone() -> None:
    method = learned(2, tiny_context(recipe=replace(TINY, epochs=40)), l1=10.0, threshold=0.01)
    start = learned(2, l1=0.0)
    for part, other in zip(method.tasks, start.tasks, strict=True):
        # Steps along the sign of τ never end at zero: they swing around it, as far as the last rates.
        assert max(float(t.detach().abs().max()) for t in part.tau.values()) < 0.01
        assert max(float(t.detach().abs().max()) for t in other.tau.values()) > 0.1
    for i, part in enumerate(method.tasks):
        for n, theta in method.weights(i).items():
            assert torch.equal(theta, compose(method.sigma[n], part.v[n]).detach())
    assert not any(method.details()["sparse"].values())


def test_sigma_and_old_tau_are_trained_on_and_the_rest_of_a_task_is_not() -> None:
    method = learned(1)
    first = method.tasks[0]
    private, tau, v, sigma = (clones(t) for t in (first.tensors, first.tau, first.v, method.sigma))
    for task in tiny_tasks()[1:]:
        method.learn(task)
    assert set(private) == {n for n in network.contents(tiny_context().build(3, 0)) if n not in sigma}
    assert all(torch.equal(t, private[n]) for n, t in method.tasks[0].tensors.items()), (
        "norms, statistics, biases, head"
    )
    assert all(not torch.equal(t, tau[n]) for n, t in method.tasks[0].tau.items())
    assert all(not torch.equal(t, v[n]) for n, t in method.tasks[0].v.items())
    assert all(not torch.equal(t, sigma[n]) for n, t in method.sigma.items())
    assert all(p.grad is None for part in method.tasks for p in (*part.tau.values(), *part.v.values()))


def test_fixed_masks_stay() -> None:
    method = learned(1, fixed_masks=True)
    before = clones(method.tasks[0].v)
    method.learn(tiny_tasks()[1])
    assert all(torch.equal(v, before[n]) for n, v in method.tasks[0].v.items())


def test_penalties_fall_on_what_the_objective_names(monkeypatch: pytest.MonkeyPatch) -> None:
    method, result = Additive(tiny_context(), l1=0.01, l2=0.02), dict[int, tuple[float, float]]()

    def fit(context: Context, task: Task, net: nn.Module, groups: list[Group], *rest: Any, **hooks: Any) -> None:
        result.clear()
        result.update({id(p): (g.l1, g.l2) for g in groups for p in g.parameters})

    monkeypatch.setattr(network, "fit", fit)
    for i, task in enumerate(tiny_tasks()[:2]):
        method.learn(task)
        new, old = method.tasks[i], method.tasks[:i]
        expected = {id(t): (0.01, 0.02) for t in new.tau.values()} | {id(v): (0.0, 0.02) for v in new.v.values()}
        expected |= {id(s): (0.0, 0.0 if old else 0.02) for s in method.sigma.values()}
        expected |= {id(t): (0.0, 0.0) for part in old for t in (*part.tau.values(), *part.v.values())}
        assert expected.items() <= result.items()
        assert {result[i] for i in result.keys() - expected.keys()} == {(0.0, 0.0)}, "biases, norms and head"


@pytest.mark.parametrize("start", ["sigma", "zeros"])
def test_a_task_starts_from_sigma_with_masks_near_a_half(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1, start=start)
    monkeypatch.setattr(network, "fit", lambda *args, **kwargs: None)
    method.learn(tiny_tasks()[1])
    part = method.tasks[1]
    for n, sigma in method.sigma.items():
        assert torch.equal(part.tau[n], sigma if start == "sigma" else torch.zeros_like(sigma))
        assert 0 < float((torch.sigmoid(part.v[n].detach()) - 0.5).abs().max()) < 0.35
    fresh, _ = network.fresh(method.context, tiny_tasks()[1])
    names = set(network.contents(fresh)) - set(method.sigma)
    assert all(torch.equal(part.tensors[n], network.contents(fresh)[n]) for n in names), "new biases, norms and head"


def test_elements_up_to_the_threshold_are_zero_in_use_and_not_counted() -> None:
    assert cut(torch.tensor([0.1, -0.1, 0.11, -3.0, 0.0]), 0.1).tolist() == [0, 0, pytest.approx(0.11), -3, 0]
    method = learned(1, threshold=0.05)
    part, x = method.tasks[0], tiny_tasks()[0].test.x
    above = {n: int((t.abs() > 0.05).sum()) for n, t in part.tau.items()}
    assert all(0 < above[n] < t.numel() for n, t in part.tau.items())
    assert method.details()["sparse"] == above
    used = method.predict(x, 0)
    with torch.no_grad():
        for tau in part.tau.values():
            tau.mul_(tau.abs() > 0.05)
    method.threshold = 0.0
    assert torch.equal(method.predict(x, 0), used)
    assert method.details()["sparse"] == above


def test_the_count_on_a_tiny_network_is_the_sum_of_its_parts() -> None:
    method = learned(2, threshold=0.05)
    weights, outputs, norms, biases = 6 * 27 + 8 * 54 + 16 * 32, 6 + 8 + 16, 2 * (6 + 8), 6 + 8 + 16
    heads = 17 * 3 + 17 * 2
    nonzeros = sum(int((t.abs() > 0.05).sum()) for part in method.tasks for t in part.tau.values())
    assert method.counted() == weights + 2 * (outputs + norms + biases) + heads + nonzeros
    assert method.stored().parameters == method.counted() + 2 * (2 * (6 + 8) + 2), "statistics and their counters"


def test_what_is_stored_gives_back_every_weight() -> None:
    method = learned(3, threshold=0.05, every=2, clusters=1, beta=0.1)
    held = method.compact()
    assert method.stored().bytes == sum(t.numel() * t.element_size() for t in held.values())
    for i in range(3):
        for n, theta in method.weights(i).items():
            sigma, shape = held[f"sigma/{n}"], tuple(theta.shape)
            tau = unpack(held[f"task/{i}/tau/{n}"], held[f"where/task/{i}/tau/{n}"], shape)
            result = compose(sigma, held[f"task/{i}/v/{n}"], tau)
            groups = held[f"where/groups/{n}"].tolist()
            if i < len(groups):
                g = groups[i]
                result = result + unpack(held[f"local/{n}/{g}"], held[f"where/local/{n}/{g}"], shape)
            assert torch.equal(result, theta)
    dense = Size.of(method.state().tensors.values()).bytes
    assert method.stored().bytes < dense


@pytest.mark.parametrize(
    ("nonzeros", "positions"), [(0, 0), (3, 4 * 3), (12, 13), (60, 13), (97, 13), (98, 0), (101, 0)], ids=str
)
def test_packed_tensors_take_the_smallest_form_and_come_back(nonzeros: int, positions: int) -> None:
    generator = torch.Generator().manual_seed(2)
    flat = torch.zeros(101)
    flat[torch.randperm(101, generator=generator)[:nonzeros]] = torch.randn(nonzeros, generator=generator)
    values, where = pack(flat.view(1, 101, 1))
    assert where.numel() * where.element_size() == positions
    assert values.numel() == (101 if positions == 0 and nonzeros else nonzeros)
    assert torch.equal(unpack(values, where, (1, 101, 1)), flat.view(1, 101, 1))


def test_consolidation_moves_no_weight_by_more_than_half_of_beta_and_saves_bytes() -> None:
    tasks, beta = tiny_tasks(), 0.05
    plain, shared = (learned(2, every=every, clusters=1, beta=beta) for every in (0, 2))
    drifts = [moved(plain.weights(i, 0.0), shared.weights(i, 0.0)) for i in range(2)]
    assert 0 < max(drifts) <= beta / 2 * (1 + 1e-5)
    assert shared.counted() < plain.counted()
    assert shared.stored().bytes < plain.stored().bytes
    assert shared.groups == {n: [0, 0] for n in shared.sigma}
    local = [t.clone() for held in shared.local.values() for t in held]
    shared.learn(tasks[2])
    assert all(torch.equal(a, b) for a, b in zip(local, (t for h in shared.local.values() for t in h), strict=True))
    assert shared.local_of(2, next(iter(shared.sigma))) is None, "a new task shares nothing yet"


def test_consolidation_with_beta_zero_changes_no_logit() -> None:
    plain, shared = (learned(2, every=every, clusters=1, beta=0.0) for every in (0, 2))
    for i, task in enumerate(tiny_tasks()[:2]):
        assert torch.equal(plain.predict(task.test.x, i), shared.predict(task.test.x, i))


def test_a_second_consolidation_starts_from_the_first_and_has_more_clusters() -> None:
    method = Additive(tiny_context(), every=2, clusters=1, beta=0.05)
    tasks = tiny_tasks((3, 2, 4, 2))
    for task in tasks[:3]:
        method.learn(task)
    state = deserialised(serialised(method.state()))
    assert {len(c) for c in method.centroids.values()} == {1}
    method.learn(tasks[3])
    assert {len(c) for c in method.centroids.values()} == {2}
    assert {len(groups) for groups in method.groups.values()} == {4}
    again = Additive(tiny_context(), every=2, clusters=1, beta=0.05)
    again.restore(state)
    again.learn(tasks[3])
    a, b = method.state(), again.state()
    assert a.values == b.values
    assert all(torch.equal(t, b.tensors[n]) for n, t in a.tensors.items())


def test_tied_weights_norms_and_the_head_are_not_decomposed() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item, self.two, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm((4, 8))
            self.other, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
            self.two.weight = self.item.weight

    assert layers(plan(Tied(), "head")) == ["other.weight"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l1": -1.0}, r"apd\(l1=-1"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"every": -2}, "every=-2"),
        ({"clusters": 0}, "clusters=0"),
        ({"start": "ones"}, "'sigma' or 'zeros'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Additive(tiny_context(), **settings)
