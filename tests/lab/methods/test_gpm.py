"""`gpm`: weights move orthogonally to what is remembered, whatever the optimiser; nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab import backbones
from halrp.lab.methods import gpm, network, subspaces
from halrp.lab.methods.check import check_method
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.gpm import BENCHMARKS, GradientProjection
from halrp.lab.methods.norms import without_running_statistics
from halrp.lab.methods.plateau import train_until_plateau
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.subspaces import Columns, captured
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task
from halrp.training.loop import Group
from halrp.training.recipe import Recipe
from tests.lab.methods.small_nets import SMALL, small_context, small_tasks

MODES: dict[str, dict[str, Any]] = {
    "paper": {},
    "official": {"mode": "official", "benchmark": "five", "epochs": 8},
}
each_mode = pytest.mark.parametrize("settings", MODES.values(), ids=MODES.keys())


def learned(tasks: int = 3, context: Context | None = None, **settings: Any) -> GradientProjection:
    method = GradientProjection(context or tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def values(method: FineTune) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in method.shared().items()}


def inside(method: GradientProjection, before: dict[str, Tensor], memory: dict[str, Tensor]) -> dict[str, float]:
    """What share of each weight's displacement lies in the span of its basis."""
    now = values(method)
    moved = {n: (now[f"{n}.weight"] - before[f"{n}.weight"]).flatten(1).double() for n in memory}
    return {n: float((d @ memory[n].double()).norm() / d.norm()) for n, d in moved.items() if d.any()}


@each_mode
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    check_method(lambda context: GradientProjection(context, **settings))


@each_mode
def test_every_step_of_a_later_task_is_orthogonal_to_the_memory(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = learned(1, **settings)
    shares: list[float] = []
    fit = network.training

    def observed(*args: Any, **hooks: Any) -> Any:
        memory, begun = dict(method.memory), values(method)
        after = hooks.pop("after_step", lambda: None)

        def look() -> None:
            after()
            shares.extend(inside(method, begun, memory).values())

        return fit(*args, after_step=look, **hooks)

    monkeypatch.setattr(network, "training", observed)
    for task in tiny_tasks()[1:]:
        method.learn(task)
    assert len(shares) > 3 * 6, "three layers, and many steps"
    assert max(shares) < 1e-4


def test_projected_gradients_alone_would_not_do_under_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1, l2=0.0)
    method.mode = "official"  # what is projected; the recipe still has Adam
    method.settings = replace(method.settings, patience=None)
    before, memory = values(method), dict(method.memory)
    method.learn(tiny_tasks()[1])
    assert min(inside(method, before, memory).values()) > 1e-2


def test_a_layer_without_a_free_direction_stays_to_the_bit() -> None:
    method = learned(1)
    basis = method.memory["linear"]
    method.memory["linear"] = subspaces.appended(basis, torch.eye(32)[:, basis.shape[1] :])
    assert method.memory["linear"].shape == (32, 32)
    method.freeze()
    before = values(method)
    method.learn(tiny_tasks()[1])
    assert torch.equal(values(method)["linear.weight"], before["linear.weight"])
    assert not torch.equal(values(method)["conv2.weight"], before["conv2.weight"])
    assert learned(1).free().keys() == {"conv1", "conv2", "linear"}


def test_weight_decay_of_the_optimiser_is_projected_too() -> None:
    method = learned(1, l2=1.0)
    before, memory = values(method), dict(method.memory)
    method.learn(tiny_tasks()[1])
    assert max(inside(method, before, memory).values()) < 1e-4


@each_mode
def test_bases_are_orthonormal_grow_and_capture_what_they_should(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Columns]] = []
    collect = subspaces.collected

    def collected(*args: Any) -> dict[str, Columns]:
        seen.append(collect(*args))
        return seen[-1]

    monkeypatch.setattr(subspaces, "collected", collected)
    method, last = GradientProjection(tiny_context(), **settings), dict.fromkeys(["conv1", "conv2", "linear"], 0)
    for position, task in enumerate(tiny_tasks()):
        before = dict(method.memory)
        method.learn(task)
        ranks = method.details()["ranks"]
        for name, basis in method.memory.items():
            assert last[name] <= ranks[name] == basis.shape[1] <= len(basis)
            assert float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max()) < 1e-5
            threshold = method.settings.threshold(position, 3)
            if position:
                assert captured(basis, seen[position][name]) >= threshold - 1e-9
                assert torch.equal(basis[:, : last[name]], before[name])
        last = ranks
    assert sum(last.values()) > 0


@each_mode
def test_later_tasks_train_weights_and_their_head_and_nothing_else(settings: dict[str, Any]) -> None:
    method = GradientProjection(tiny_context(), **settings)
    start = dict(tiny_context().build(3, 0).named_parameters())
    method.learn(tiny_tasks()[1])  # a position decides, not the task's identity, which is 1 here
    first = values(method)
    reported = set(first) - {"conv1.bias", "conv2.bias"}  # the norm after them takes out what they do
    assert all(not torch.equal(first[n], start[n]) for n in reported), "the first task trains everything"
    heads = [{n: t.clone() for n, t in network.contents(h).items()} for h in method.heads]
    free = set(method.free())
    assert free
    method.learn(tiny_tasks()[0])
    now = values(method)
    moved = {n for n in now if not torch.equal(now[n], first[n])}
    assert moved == {f"{n}.weight" for n in free}
    assert all(torch.equal(t, heads[0][n]) for n, t in network.contents(method.heads[0]).items())
    drawn = network.add_head(method.context, tiny_context().build(3, 0), tiny_tasks()[0])
    assert not torch.equal(next(method.heads[1].parameters()), next(drawn.parameters())), "the new head has learned"


class Deep(nn.Module):
    """Linear layers without anything between them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.second = nn.Linear(6, 5, bias=False)
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.second(self.first(x))))


def flat_task(identity: int, dimensions: int) -> Task:
    """Examples that lie in a subspace of a given dimension."""
    generator = seeding.generator("flat", identity)
    plane = torch.randn(dimensions, 8, generator=generator)
    x = torch.randn(64, dimensions, generator=generator) @ plane
    split = Split(x, (x @ torch.randn(8, generator=generator) > 0).long())
    return Task(f"flat-{identity}", identity, 2, split, split, split)


def deep_context(recipe: Recipe) -> Context:
    def build(classes: int, seed: int) -> nn.Module:
        with seeding.isolated("deep", seed, device=torch.device("cpu")):
            return Deep(classes)

    return Context(build, recipe, tasks=2)


@each_mode
def test_with_all_the_energy_a_linear_network_forgets_nothing(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpm, "HIGHEST", 1.0)
    tasks = flat_task(0, 2), flat_task(1, 3)
    drift: dict[str, float] = {}
    makers: dict[str, Callable[[Context], FineTune]] = {
        "gpm": lambda c: GradientProjection(c, **settings, threshold=1.0),
        "finetune": FineTune,
    }
    for name, make in makers.items():
        method = make(deep_context(Recipe(epochs=10, batch=16, lr=1e-2)))
        method.learn(tasks[0])
        before, weights = method.predict(tasks[0].test.x, 0), values(method)
        method.learn(tasks[1])
        assert not torch.equal(values(method)["first.weight"], weights["first.weight"])
        drift[name] = float((method.predict(tasks[0].test.x, 0) - before).abs().max())
    assert drift["gpm"] < 1e-4
    assert drift["finetune"] > 1e-2


def test_it_forgets_far_less_than_fine_tuning() -> None:
    def drift(method: FineTune) -> float:
        x = tiny_tasks()[0].test.x
        method.learn(tiny_tasks()[0])
        before = method.predict(x, 0)
        for task in tiny_tasks()[1:]:
            method.learn(task)
        return float((method.predict(x, 0) - before).square().mean())

    batch = replace(tiny_context(), build=lambda c, s: without_running_statistics(tiny_context().build(c, s)))
    assert drift(GradientProjection(tiny_context(), threshold=0.99)) < drift(FineTune(batch)) / 10


def test_the_first_task_is_that_of_fine_tuning_with_batch_statistics() -> None:
    batch = replace(tiny_context(), build=lambda c, s: without_running_statistics(tiny_context().build(c, s)))
    plain = FineTune(batch)
    plain.learn(tiny_tasks()[0])
    mine, theirs = values(learned(1)), values(plain)
    assert all(torch.equal(mine[n], theirs[n]) for n in theirs)


def test_the_network_alone_is_stored_and_the_memory_is_told_beside_it() -> None:
    method = learned()
    parameters = 6 * 27 + 6 + 12 + 8 * 54 + 8 + 16 + 16 * 32 + 16 + 17 * (3 + 2 + 4)
    assert method.stored() == (parameters, 4 * parameters)
    assert method.counted() == parameters, "no running statistics"
    details = method.details()
    ranks = details["ranks"]
    assert details["memory_parameters"] == 27 * ranks["conv1"] + 54 * ranks["conv2"] + 32 * ranks["linear"]
    assert details["memory_bytes"] == 4 * details["memory_parameters"]


@pytest.mark.parametrize(
    ("benchmark", "position", "tasks", "layer", "expected"),
    [
        ("cifar100-split", 0, 10, 1, 0.97),
        ("cifar100-split", 9, 10, 0, 0.997),
        ("cifar100-split", 30, 40, 0, 0.9999),
        ("cifar100-superclass", 19, 20, 1, 0.999),
        ("pmnist", 7, 10, 0, 0.95),
        ("pmnist", 7, 10, 1, 0.99),
        ("five", 4, 5, 3, 0.965),
        ("general", 0, 40, 0, 0.97),
        ("general", 39, 40, 2, 0.999),
        ("general", 0, 1, 2, 0.97),
    ],
)
def test_thresholds_are_the_published_ones(
    benchmark: str, position: int, tasks: int, layer: int, expected: float
) -> None:
    assert BENCHMARKS[benchmark].threshold(position, tasks, layer) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("backbone", "benchmark", "expected"),
    [
        ("lenet", "cifar100-split", [24, 100, 125, 125]),
        ("alexnet", "general", [24, 100, 100, 125, 125]),
        ("lenet", "pmnist", [300] * 4),
        ("resnet18", "five", [10] * 8 + [10] + [50] * 4 + [100] * 7),
    ],
)
def test_images_of_layers_are_the_published_ones(backbone: str, benchmark: str, expected: list[int]) -> None:
    layers = subspaces.layers_of(backbones.build(backbone), "head")
    result = BENCHMARKS[benchmark].images_of(layers)
    assert list(result.values()) == expected
    if backbone == "resnet18":
        assert [result[f"blocks.{i}.shortcut.0"] for i in (2, 4, 6)] == [10, 50, 100], "as their blocks"


@pytest.mark.parametrize("rank", [2, 9])
def test_both_ways_to_project_agree(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(10, rank, generator=generator, dtype=torch.float64))
    x = torch.randn(4, 10, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(gpm.projection(basis)(x), x @ basis @ basis.T)


def test_the_official_mode_has_plain_sgd_without_a_penalty() -> None:
    crowded = replace(TINY, gradient_scale=10.0, schedule="cosine")
    method = GradientProjection(tiny_context(recipe=crowded), mode="official", benchmark="cifar100-split")
    result = method.context.recipe
    assert (result.optimiser, result.momentum, result.lr, result.batch, result.epochs) == ("sgd", 0.0, 0.01, 64, 200)
    assert (result.schedule, result.gradient_scale, method.l2) == ("constant", 1.0, 0.0)
    assert GradientProjection(tiny_context()).context.recipe == TINY


def test_the_rate_falls_when_the_validation_loss_does_not() -> None:
    context = tiny_context(recipe=replace(TINY, optimiser="sgd", schedule="constant", lr=0.08))
    task = tiny_tasks()[0]
    net, _ = network.fresh(context, task)
    training = network.training(context, task, net, [Group(list(net.parameters()))], ("x",), "s", epochs=50)
    losses = iter([3.0, 2.0, 2.5, 2.0, 1.0, 1.5, 1.5, 1.5, 1.5])
    rates, weights = [], []

    def validation_loss() -> float:
        rates.append(training._updates.optimiser.param_groups[0]["lr"])
        weights.append({n: p.detach().clone() for n, p in net.named_parameters()})
        return next(losses)

    train_until_plateau(training, list(net.parameters()), validation_loss, factor=2.0, patience=2, floor=0.015)
    assert rates == [0.08] * 4 + [0.04] * 3 + [0.02] * 2, "two epochs without a lower loss halve it; 0.01 ends it"
    assert all(torch.equal(p, weights[4][n]) for n, p in net.named_parameters()), "those of the lowest loss"
    assert not torch.equal(weights[4]["conv1.weight"], weights[8]["conv1.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fast"}, "mode='fast'"),
        ({"benchmark": "cifar"}, "cifar"),
        ({"threshold": 1.2}, "threshold=1.2"),
        ({"rise": -0.1}, "rise=-0.1"),
        ({"epochs": 3}, "official mode"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        GradientProjection(tiny_context(), **settings)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    context = small_context(name)
    method = GradientProjection(context)
    first, second = small_tasks(name)
    method.learn(first)
    before, memory = values(method), dict(method.memory)
    method.learn(second)
    assert method.predict(first.test.x, 0).shape == (12, 2)
    assert len(memory) == len(subspaces.layers_of(context.build(2, 0), "head"))
    assert max(inside(method, before, memory).values()) < 1e-4
