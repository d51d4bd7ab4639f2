"""`iru`: rows that only grow, selectors of their own, and the totals that its authors' networks need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab import backbones
from halrp.lab.methods import Context, network
from halrp.lab.methods.check import check_method
from halrp.lab.methods.comparison import deserialised, serialised
from halrp.lab.methods.factored import merged
from halrp.lab.methods.iru import RankUpdates, Updated, bytes_of, orthonormal, squared_error
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Split, Task
from halrp.lab.streams.stream import Normal
from halrp.training.loop import supervised_loss
from halrp.training.recipe import Recipe
from tests.lab.methods.small_nets import SMALL, check_two_tasks, small_context

LAYERS = {"conv1", "conv2", "linear"}


@pytest.fixture(autouse=True)
def _private_randomness() -> Iterator[None]:
    """Whatever a test draws from the global generators is its own."""
    with seeding.isolated("test", device=torch.device("cpu")):
        yield


def learned(tasks: int = 3, **settings: Any) -> RankUpdates:
    method = RankUpdates(tiny_context(recipe=replace(TINY, epochs=1)), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def pictures(classes: int, shape: tuple[int, ...], identity: int, rows: int = 2) -> Task:
    x = torch.randn(rows, *shape, generator=seeding.generator("pictures", identity))
    split = Split(x, torch.arange(rows) % classes)
    return Task(f"pictures-{identity}", identity, classes, split, split, split)


def watch(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is given to trainings from now on; nothing is trained."""
    seen: list[dict[str, Any]] = []

    def fit(context: Context, task: Task, net: nn.Module, groups: Any, *rest: Any, **hooks: Any) -> None:
        selectors = {n: m.s.detach().clone() for n, m in net.named_modules() if isinstance(m, Updated)}
        seen.append({"context": context, "task": task, "net": net, "s": selectors, "groups": groups, **hooks})

    monkeypatch.setattr(network, "fit", fit)
    return seen


def test_it_keeps_the_contract() -> None:
    check_method(RankUpdates)


def test_more_ranks_keep_the_contract() -> None:
    check_method(lambda context: RankUpdates(context, r1=6, r2=3, l2=1e-4))


def test_ranks_grow_by_r2_and_a_selector_has_the_rank_of_its_task() -> None:
    method = learned(r1=5, r2=2)
    for t, private in enumerate(method.tasks):
        assert {path: len(s) for path, s in private.gates.items()} == dict.fromkeys(LAYERS, 5 + 2 * t)
    assert {path: (len(u), len(v)) for path, (u, v) in method.dictionary.items()} == dict.fromkeys(LAYERS, (9, 9))
    assert method.details() == {"rank": 9}


def test_rows_and_logits_of_earlier_tasks_stay_to_the_bit() -> None:
    method = learned(1)
    tasks = tiny_tasks()
    rows = {path: (u.clone(), v.clone()) for path, (u, v) in method.dictionary.items()}
    before = method.predict(tasks[0].test.x, 0)
    for task in tasks[1:]:
        method.learn(task)
    for path, (u, v) in rows.items():
        now = method.dictionary[path]
        assert torch.equal(now[0][: len(u)], u)
        assert torch.equal(now[1][: len(v)], v)
    assert torch.equal(method.predict(tasks[0].test.x, 0), before)


def test_later_tasks_train_new_rows_and_the_whole_selector() -> None:
    method = learned(2, r1=4)
    for path, s in method.tasks[1].gates.items():
        assert bool((s[:4] != 0).all()), "old rows are used again"
        assert float(s[4]) != 1
        first = orthonormal((1, method.dictionary[path][0].shape[1]), "anything")
        assert float(method.dictionary[path][0][4].norm()) != pytest.approx(float(first.norm()), abs=1e-6)


def test_a_selector_starts_at_zero_for_old_rows_and_at_one_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(2, r1=4, r2=2)
    seen = watch(monkeypatch)
    method.learn(tiny_tasks()[2])
    assert seen[0]["s"].keys() == LAYERS
    for s in seen[0]["s"].values():
        assert s.tolist() == [0.0] * 6 + [1.0] * 2
    assert all(s.data_ptr() != method.tasks[1].gates[path].data_ptr() for path, s in method.tasks[2].gates.items())


def test_all_that_starts_orthonormal_is_and_biases_start_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    method = RankUpdates(tiny_context(), r1=5)
    method.learn(tiny_tasks()[0])
    net = seen[0]["net"]
    matrices = [p for path in LAYERS for p in (net.get_submodule(path).du, net.get_submodule(path).dv)]
    for rows in [*matrices, net.head.weight]:
        torch.testing.assert_close(rows @ rows.t(), torch.eye(len(rows)), atol=1e-5, rtol=0)
    assert not any(bool(m.bias.any()) for m in (*(net.get_submodule(path) for path in LAYERS), net.head))


@pytest.mark.parametrize(("new", "moves"), [(0.0, False), (1.0, True)])
def test_new_rows_have_a_gradient_only_if_they_are_selected(new: float, moves: bool) -> None:
    old = torch.randn(3, 6, generator=seeding.generator("u")), torch.randn(3, 5, generator=seeding.generator("v"))
    rows = orthonormal((2, 6), "du").float(), orthonormal((2, 5), "dv").float()
    layer = Updated(nn.Linear(6, 5), old, rows)
    with torch.no_grad():
        layer.s[:3], layer.s[3:] = 1.0, new
    layer(torch.ones(4, 6)).square().sum().backward()
    assert layer.du.grad is not None
    assert layer.dv.grad is not None
    assert bool(layer.du.grad.any()) == bool(layer.dv.grad.any()) == moves
    assert not layer.u.requires_grad
    assert not layer.v.requires_grad


@pytest.mark.parametrize("make", [lambda: nn.Linear(12, 7), lambda: nn.Conv2d(3, 7, 2, stride=2, padding=1)])
def test_a_layer_in_factors_is_the_layer_of_the_merged_weight(make: Any) -> None:
    plain, layer = make().double(), make().double()
    outputs, inputs = len(plain.weight), plain.weight[0].numel()
    old = orthonormal((3, inputs), "u"), orthonormal((3, outputs), "v")
    factored = Updated(layer, old, (orthonormal((2, inputs), "du"), orthonormal((2, outputs), "dv")))
    with torch.no_grad():
        factored.s.copy_(torch.tensor([0.5, -1.0, 2.0, 1.0, 0.3]))
        factored.bias.copy_(torch.arange(float(outputs)))  # type: ignore[union-attr]
        plain.weight.copy_(merged(factored.factors()).view(plain.weight.shape))
        plain.bias.copy_(factored.bias)
    x = torch.randn(4, *((12,) if inputs == 12 and plain.weight.dim() == 2 else (3, 6, 6)), dtype=torch.float64)
    torch.testing.assert_close(factored(x), plain(x))


@pytest.mark.parametrize(
    ("inputs", "classes", "total"),
    [(784, 10, 46_560 + 820 + 10_440 + 51_200), (3072, 5, 115_200 + 820 + 10_340 + 25_600)],
)
def test_twenty_tasks_of_the_authors_network_need_what_the_authors_count(inputs: int, classes: int, total: int) -> None:
    def build(classes: int, seed: int) -> nn.Module:
        return backbones.build("mlp", classes, seed=seed, inputs=inputs)

    method = RankUpdates(Context(build, Recipe(epochs=1, batch=2), tasks=20))
    for i in range(20):
        method.learn(pictures(classes, (inputs,), i))
    assert total == {784: 109_020, 3072: 151_960}[inputs]
    assert method.stored() == (total, 4 * total)
    assert method.counted() == total


def test_norms_are_counted_without_their_statistics() -> None:
    method = learned(1)
    factors = 11 * ((27 + 6) + (54 + 8) + (32 + 16)) + 3 * 11
    assert method.counted() == factors + (6 + 8 + 16) + 2 * (6 + 8) + (16 * 3 + 3)
    assert method.stored().parameters == method.counted() + 2 * (6 + 8) + 2


def test_the_paper_mode_is_the_runs_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    RankUpdates(tiny_context()).learn(tiny_tasks()[0])
    assert seen[0]["context"].recipe == TINY
    assert seen[0]["loss"] is supervised_loss
    assert torch.equal(seen[0]["task"].train.x, tiny_tasks()[0].train.x)


def test_the_official_mode_is_the_authors_schedule_on_raw_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    task = replace(tiny_tasks()[0], normal=Normal((0.5, 0.25, 0.0), (0.5, 1.0, 2.0)))
    RankUpdates(tiny_context(), mode="official").learn(task)
    recipe = seen[0]["context"].recipe
    assert (recipe.epochs, recipe.lr, recipe.batch, recipe.schedule) == (500, 1e-4, 128, "constant")
    assert (recipe.optimiser, recipe.gradient_scale) == ("adam", 1.0)
    assert seen[0]["loss"] is squared_error
    assert torch.equal(seen[0]["task"].train.x, bytes_of(task.train.x, task.normal))


def test_the_official_mode_predicts_from_raw_pixels_after_restoring_too() -> None:
    task = replace(tiny_tasks()[0], normal=Normal((0.5,), (0.25,)))
    method = RankUpdates(tiny_context(), mode="official", epochs=2)
    method.learn(task)
    result = method.predict(task.test.x, 0)
    with torch.no_grad():
        expected = method.module(0)(255 * (task.test.x * 0.25 + 0.5))
    assert torch.equal(result, expected)
    again = RankUpdates(tiny_context(), mode="official", epochs=2)
    again.restore(deserialised(serialised(method.state())))
    assert torch.equal(again.predict(task.test.x, 0), result)


def test_raw_pixels_undo_the_normalisation() -> None:
    raw = torch.randint(0, 256, (2, 3, 4, 4), generator=seeding.generator("raw")).float()
    mean, deviation = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.4, 0.3])
    x = (raw / 255 - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    torch.testing.assert_close(bytes_of(x, Normal((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))), raw, atol=1e-3, rtol=0)


def test_squared_error_is_that_of_the_softmax() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    p = float(torch.tensor(3.0).sigmoid())
    result = squared_error(nn.Identity(), logits, torch.tensor([0, 1]))
    assert float(result) == pytest.approx((2 * 0.25 + 2 * (1 - p) ** 2) / 4)


@pytest.mark.parametrize(
    "settings", [{"r1": 0}, {"r2": -1}, {"epochs": 0}, {"mode": "short"}], ids=lambda s: next(iter(s))
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        RankUpdates(tiny_context(), **settings)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    check_two_tasks(RankUpdates(small_context(name)), name)
