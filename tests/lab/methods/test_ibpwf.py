"""`ibpwf`: which factors a task may change, how it chooses them, and what is stored of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab import backbones
from halrp.lab.methods import Context, network
from halrp.lab.methods.check import check_method
from halrp.lab.methods.factored import body, followed_by_norm, merged
from halrp.lab.methods.ibpwf import Posterior, Selected, WeightFactors, active, prior, truncations
from halrp.lab.methods.tiny import TINY, TinyNet, tiny_context, tiny_tasks
from halrp.lab.streams import Task
from tests.lab.methods.small_nets import SMALL, check_two_tasks, small_context

CPU = torch.device("cpu")
SHORT = replace(TINY, epochs=2)
WIDE = {"conv1": [18, 12], "conv2": [24, 16], "linear": [16, 12]}
"""With 48 images the prior outweighs them, and leaves two or three factors of the usual sizes to a task."""


@pytest.fixture(autouse=True)
def _private_randomness() -> Iterator[None]:
    """Whatever a test draws from the global generators is its own."""
    with seeding.isolated("test", device=torch.device("cpu")):
        yield


def learned(tasks: int = 3, **settings: Any) -> WeightFactors:
    method = WeightFactors(tiny_context(recipe=SHORT), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def layer_of(plain: nn.Module, factors: int = 5, biased: bool = True, sigma: float = 0.1) -> Selected:
    """A layer of random factors, all of them free."""
    weight = plain.weight
    assert isinstance(weight, Tensor)
    generator = seeding.generator("layer", factors)
    sides = weight[0].numel() + biased, len(weight)
    u, v = (torch.randn(factors, n, generator=generator, dtype=weight.dtype) for n in sides)
    start = Posterior(*(t.to(weight) for t in prior(factors, 2.0)))
    r = torch.randn(factors, generator=generator, dtype=weight.dtype)
    return Selected(plain, (u, v), start, r, torch.ones(factors, 1, dtype=weight.dtype), sigma)


@contextmanager
def seeded() -> Iterator[None]:
    with seeding.isolated("test", device=CPU):
        yield


def watch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is given to trainings from now on, by stage; nothing is trained."""
    seen: list[dict[str, Any]] = []

    def fit(
        context: Context, task: Task, net: nn.Module, groups: Any, names: Any, stage: str, epochs: int, **hooks: Any
    ) -> None:
        seen.append({"net": net.eval(), "groups": groups, "stage": stage, "epochs": epochs, **hooks})

    monkeypatch.setattr(network, "fit", fit)
    return seen


def test_it_keeps_the_contract() -> None:
    check_method(WeightFactors, settings={"sizes": WIDE})


def test_factors_in_use_and_old_logits_stay_to_the_bit_while_others_learn() -> None:
    method = learned(1)
    tasks = tiny_tasks()
    used = {path: method.used(path) for path in method.dictionary}
    rows = {path: (u.clone(), v.clone()) for path, (u, v) in method.dictionary.items()}
    before = method.predict(tasks[0].test.x, 0)
    for task in tasks[1:]:
        method.learn(task)
    for path, mask in used.items():
        assert 0 < int(mask.sum()) < len(mask), "some factors are taken and some are free"
        for old, new in zip(rows[path], method.dictionary[path], strict=True):
            assert torch.equal(new[mask], old[mask])
            assert bool((new[~mask] != old[~mask]).any(1).all())
    assert torch.equal(method.predict(tasks[0].test.x, 0), before)


def test_a_task_goes_on_from_the_previous_ones_choice_with_new_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1)
    odds = {path: p.rho.clone() for path, p in method.posteriors.items()}
    breaks = {path: p.log_c.clone() for path, p in method.posteriors.items()}
    seen = watch(monkeypatch)
    method.learn(tiny_tasks()[1])
    for path, old in odds.items():
        layer = seen[0]["net"].get_submodule(path)
        assert torch.equal(layer.rho, old)
        torch.testing.assert_close(layer.prior[0], breaks[path].exp())
        assert not torch.equal(method.tasks[0].gates[path], method.tasks[1].gates[path])
        assert not torch.equal(odds[path], prior(len(old), 1.0).rho.float()), "the first task has moved it"


@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 7), lambda: nn.Conv2d(3, 7, 2, stride=2, padding=1)])
@pytest.mark.parametrize("biased", [True, False])
def test_with_all_factors_and_r_one_a_layer_is_a_plain_factorisation(make: Any, biased: bool) -> None:
    plain, layer = make().double(), layer_of(make().double(), biased=biased)
    with torch.no_grad():
        layer.rho.fill_(40.0)
        layer.r.fill_(1.0)
        layer.fix_gate(0.5)
        inputs = plain.weight[0].numel()
        product = layer.v.t() @ layer.u
        torch.testing.assert_close(merged(layer.factors()), product[:, :inputs])
        plain.weight.copy_(product[:, :inputs].view(plain.weight.shape))
        plain.bias.copy_(product[:, -1]) if biased else plain.bias.zero_()
    x = torch.randn(4, *((12,) if plain.weight.dim() == 2 else (3, 6, 6)), dtype=torch.float64)
    torch.testing.assert_close(layer(x), plain(x))


def test_settled_gates_are_probability_times_r_above_the_threshold() -> None:
    layer = layer_of(nn.Linear(4, 3))
    with torch.no_grad():
        layer.rho.copy_(torch.tensor([2.0, 0.1, -0.1, -3.0, 0.0]))
        layer.fix_gate(0.5)
        p = layer.rho.sigmoid()
        expected = torch.stack([p[0] * layer.r[0], p[1] * layer.r[1], p[2] * 0, p[3] * 0, p[4] * layer.r[4]])
    assert torch.equal(layer.gate.abs(), expected.abs())


def test_at_least_the_likeliest_factor_is_active() -> None:
    p = torch.tensor([0.1, 0.3, 0.2])
    assert active(p, 0.5).tolist() == [False, True, False]
    assert active(p, 0.15).tolist() == [False, True, True]
    method = learned(1, kappa=0.999)
    assert all(len(chosen) == 1 for chosen in method.tasks[0].chosen.values())
    assert all(bool(parameter.any()) for n, parameter in method.module(0).named_parameters() if n.endswith("weight"))


@pytest.mark.parametrize(("a", "kappa", "factors"), [(700, 0.6, 357), (40, 0.5, 28)])
def test_the_first_choice_is_the_priors_mean(a: float, kappa: float, factors: int) -> None:
    start = prior(1000, a)
    assert int((start.rho.sigmoid() >= kappa).sum()) == factors
    assert bool((start.rho.diff() <= 0).all())
    assert float(start.log_c[0].exp()) == pytest.approx(a)
    assert not bool(start.log_d.any())


def test_the_divergence_of_r_is_zero_at_zero() -> None:
    layer, temperature = layer_of(nn.Linear(4, 3), sigma=0.2), torch.tensor(1.0)
    with torch.no_grad():
        with seeded():
            whole = layer.sample_gate(temperature, 15)
        r = layer.r.clone()
        layer.r.zero_()
        with seeded():
            rest = layer.sample_gate(temperature, 15)
    torch.testing.assert_close(whole - rest, r.square().sum() / (2 * 0.2**2))


def test_a_fresh_first_layer_diverges_from_its_prior_by_its_choice_alone() -> None:
    layer = layer_of(nn.Linear(4, 3))
    with torch.no_grad():
        layer.r.zero_()
        with seeding.isolated("many", device=CPU):
            costs = torch.stack([layer.sample_gate(torch.tensor(2 / 3), 15) for _ in range(500)])
    # c = c0, d = d0 = 1: KL_v is 0. p is the prior's mean, but π varies, so that KL_b is small and not zero.
    assert 0 < float(costs.mean()) < 3
    assert float(costs.std()) > 0


def test_the_objective_divides_divergences_by_the_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, task = watch(monkeypatch), tiny_tasks()[0]
    WeightFactors(tiny_context(recipe=SHORT)).learn(task)
    first, second = seen
    net = first["net"]
    layers = [m for m in net.modules() if isinstance(m, Selected)]
    x, y = task.train.x[:16], task.train.y[:16]
    with torch.no_grad(), seeded():
        loss = first["loss"](net, x, y)
    with torch.no_grad(), seeded():
        divergence = sum(float(layer.sample_gate(net.temperature, 15)) for layer in layers)
        plain = F.cross_entropy(net(x), y)
    assert float(loss - plain) == pytest.approx(divergence / len(task.train.y), rel=1e-4)
    with torch.no_grad():
        loss = second["loss"](net, x, y)
        for layer in layers:
            layer.fix_gate(0.5)
        torch.testing.assert_close(loss, F.cross_entropy(net(x), y))


def test_stages_share_the_epochs_and_the_second_leaves_the_breaks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    WeightFactors(tiny_context(recipe=replace(TINY, epochs=20))).learn(tiny_tasks()[0])
    assert [(s["stage"], s["epochs"]) for s in seen] == [("factors", 15), ("fine-tune", 5)]
    trained = [{id(p) for group in s["groups"] for p in group.parameters} for s in seen]
    breaks = {id(p) for n, p in seen[0]["net"].named_parameters() if n.endswith(("log_c", "log_d"))}
    assert trained[0] == {id(p) for p in seen[0]["net"].parameters()}
    assert trained[0] - trained[1] == breaks


def test_gradients_are_clipped_and_frozen_factors_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1)
    used = {path: method.used(path) for path in method.dictionary}
    seen = watch(monkeypatch)
    method.learn(tiny_tasks()[1])
    for stage in seen:
        for group in stage["groups"]:
            for parameter in group.parameters:
                parameter.grad = torch.linspace(-3, 3, parameter.numel()).view_as(parameter)
        stage["after_backward"]()
        for path, mask in used.items():
            layer = stage["net"].get_submodule(path)
            for factors in (layer.u, layer.v):
                assert not bool(factors.grad[mask].any())
                assert bool(factors.grad[~mask].any())
            assert float(layer.rho.grad.max()) == -float(layer.rho.grad.min()) == 0.5
        assert float(stage["net"].head.weight.grad.max()) == 0.5


def test_the_temperature_falls_step_by_step_and_stays_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    WeightFactors(tiny_context(recipe=replace(TINY, epochs=2000))).learn(tiny_tasks()[0])
    temperature = seen[0]["net"].temperature
    result = []
    for _ in range(300):
        result.append(float(temperature))
        with torch.no_grad():
            seen[0]["after_step"]()
    assert result[0] == 10
    assert result[100] == pytest.approx(10 * 0.99**100, rel=1e-4)
    assert result[280] == pytest.approx(2 / 3)


def test_a_short_stage_cools_by_its_middle_and_lets_the_choice_move() -> None:
    method = WeightFactors(tiny_context(recipe=replace(TINY, schedule="constant")))
    pace, factor = method._rates(10, 160)
    assert 10 * factor**50 == pytest.approx(2 / 3)
    assert pace * 100 * TINY.lr == pytest.approx(10)
    assert method._rates(1000, 16_000) == (1.0, 0.99), "a long one is left as it is"
    assert WeightFactors(tiny_context(), reach=0)._rates(10, 160)[0] == 1


def test_lenet_has_the_truncations_chosen_for_it() -> None:
    lenet = backbones.build("lenet", 10)
    expected = {"conv1": (60, 15), "conv2": (150, 30), "linear1": (400, 100), "linear2": (400, 80)}
    assert truncations(body(lenet)) == expected
    assert followed_by_norm(lenet) == expected.keys()
    assert truncations(body(backbones.build("mlp", 10))) == {"linear1": (256, 64), "linear2": (256, 51.2)}
    assert followed_by_norm(TinyNet(3)) == {"conv1", "conv2"}


def test_only_biases_that_a_norm_would_undo_are_dropped() -> None:
    method = learned(1)
    widths = {path: u.shape[1] for path, (u, _) in method.dictionary.items()}
    assert widths == {"conv1": 27, "conv2": 54, "linear": 32 + 1}
    net = method.module(0)
    assert isinstance(net, TinyNet)
    assert net.conv1.bias is not None
    assert not bool(net.conv1.bias.any())
    assert bool(net.linear.bias.any())


def test_sizes_are_factors_in_use_gates_norms_heads_and_a_bit_per_choice() -> None:
    method = learned(2)
    norms, statistics = 2 * (6 + 8), 2 * (6 + 8) + 2
    numbers, bits = 0, 0
    for path, sides in {"conv1": 27 + 6, "conv2": 54 + 8, "linear": 33 + 16}.items():
        first, second = (set(private.chosen[path].tolist()) for private in method.tasks)
        union = len(first | second)
        numbers += union * sides + len(first) + len(second)
        bits += 2 * -(-union // 8)
        assert method.details()["factors"][path] == [len(second), union, len(method.dictionary[path][0])]
    numbers += 2 * norms + 17 * (3 + 2)
    assert method.counted() == numbers
    result = method.stored()
    assert result.parameters == numbers + 2 * statistics
    assert result.bytes == 4 * (numbers + 2 * (statistics - 2)) + 8 * 2 * 2 + bits


def test_statistics_of_norms_are_those_of_the_network_as_it_is_used() -> None:
    method, task = learned(1), tiny_tasks()[0]
    net = method.module(0)
    assert isinstance(net, TinyNet)
    with torch.no_grad():
        batches = [net.conv1(x) for x in task.train.x.split(SHORT.batch)]
    mean = torch.stack([b.mean((0, 2, 3)) for b in batches]).mean(0)
    variance = torch.stack([b.var((0, 2, 3)) for b in batches]).mean(0)
    torch.testing.assert_close(net.norm1.running_mean, mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.norm1.running_var, variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"kappa": 1.0},
        {"end": 20.0},
        {"cooling": 0.0},
        {"tuning": 1.0},
        {"reach": -1.0},
        {"clip": 0.0},
        {"deviation": 0.0},
        {"terms": 0},
        {"sizes": {"conv1": [0, 3]}},
        {"sizes": {"conv1": [9, 1000]}},
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        WeightFactors(tiny_context(), **settings)


def test_sizes_are_taken_by_path_and_unknown_paths_refused() -> None:
    method = learned(1, sizes={"linear": [7, 3.0]})
    assert {path: len(u) for path, (u, _) in method.dictionary.items()} == {"conv1": 18, "conv2": 24, "linear": 7}
    with pytest.raises(SettingError, match=r"no layer 'head' to factor; layers: conv1, conv2, linear"):
        learned(1, sizes={"head": [7, 3.0]})


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    check_two_tasks(WeightFactors(small_context(name)), name)
