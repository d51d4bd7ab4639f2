"""`bmkp`: patterns that only grow, coefficients that are really trained, and tasks that stay bit-identical."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.lab.methods import bmkp, network, subspaces
from halrp.lab.methods.bmkp import (
    BilevelMemory,
    Form,
    rebuild,
    rebuilt,
    regulariser,
    regulariser_gradient,
    train_in_steps,
)
from halrp.lab.methods.check import check_method
from halrp.lab.methods.gpm import sample
from halrp.lab.methods.subspaces import Columns, captured
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.training.loop import Group
from tests.lab.methods.small_nets import SMALL, check_two_tasks, small_context

LAYERS = {"conv1": (6, 27), "conv2": (8, 54), "linear": (16, 32)}


def learned(tasks: int = 3, **settings: Any) -> BilevelMemory:
    method = BilevelMemory(tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def parts_of(net: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in net.named_parameters()}


def watch_fit(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Parameters before and after each stage of the newest task."""
    seen: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
    fit = network.fit

    def observed(*args: Any, **hooks: Any) -> None:
        net, stage = args[2], args[5]
        before = parts_of(net)
        fit(*args, **hooks)
        seen[stage] = before, parts_of(net)

    monkeypatch.setattr(network, "fit", observed)
    return seen


@pytest.mark.parametrize("settings", [{}, {"mode": "official"}, {"form": "code", "strength": 0.1}], ids=str)
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    check_method(lambda context: BilevelMemory(context, **settings))


def test_patterns_are_only_appended_and_old_tasks_stay_to_the_bit() -> None:
    method, tasks = BilevelMemory(tiny_context()), tiny_tasks()
    retained: dict[str, Tensor] = {}
    logits: list[Tensor] = []
    bases: dict[str, Tensor] = {}
    for i, task in enumerate(tasks):
        method.learn(task)
        for name, basis in method.bases.items():
            assert basis.shape[1] <= len(basis) == LAYERS[name][0]
            assert float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max()) < 1e-6
            if i:
                assert torch.equal(basis[:, : bases[name].shape[1]], bases[name])
        bases = dict(method.bases)
        now = {n: t for n, t in method.long_term_memory().items() if n.startswith("task/")}
        assert all(torch.equal(now[n], t) for n, t in retained.items())
        retained = {n: t.clone() for n, t in now.items()}
        logits.append(method.predict(task.test.x, i))
        assert all(torch.equal(method.predict(t.test.x, j), logits[j]) for j, t in enumerate(tasks[: i + 1]))
    first, last = method.tasks[0].coefficients, method.tasks[-1].coefficients
    assert any(len(first[n]) < len(last[n]) for n in first), "the bases have grown meanwhile"


def test_coefficients_and_rebuilt_weights_have_the_shapes_of_their_layers() -> None:
    method = learned()
    for i, private in enumerate(method.tasks):
        net = dict(method.module(i).named_parameters())
        for name, (rows, columns) in LAYERS.items():
            rank = len(private.coefficients[name])
            assert private.coefficients[name].shape == (rank, columns)
            assert 1 <= rank <= rows
            expected = method.bases[name][:, :rank] @ private.coefficients[name]
            assert torch.equal(subspaces.matrix(net[f"{name}.weight"]), expected)
        assert {len(private.coefficients[n]) for n in LAYERS} != {0}
    newest = method.tasks[-1].coefficients
    assert all(len(newest[n]) == method.bases[n].shape[1] for n in LAYERS), "the bases grew before W was projected"


def test_bases_capture_the_energy_of_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Columns]] = []
    collect = subspaces.collected

    def collected(*args: Any) -> dict[str, Columns]:
        seen.append(collect(*args))
        return seen[-1]

    monkeypatch.setattr(subspaces, "collected", collected)
    method = BilevelMemory(tiny_context(), energy_first=0.7, energy=0.9)
    for i, task in enumerate(tiny_tasks()):
        method.learn(task)
        shares = [captured(method.bases[n], seen[i][n]) for n in LAYERS]
        assert min(shares) >= 0.9 - 1e-9 if i else max(shares) < 0.99


def test_with_all_the_energy_the_projected_network_is_the_working_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = network.fit

    def without_recall(*args: Any, **hooks: Any) -> Any:
        return None if args[5] == "recall" else fit(*args, **hooks)

    monkeypatch.setattr(network, "fit", without_recall)
    method, tasks = BilevelMemory(tiny_context(), energy_first=1.0, energy=1.0), tiny_tasks()
    for i, task in enumerate(tasks):
        method.learn(task)
        assert method.working is not None
        names = (network.later_seed_key if i else network.first_seed_key)(method.context, task)
        x = torch.cat(sample(method.context, method.working, task, 500, names))
        expected = network.logits(method.context, method.working, x)
        torch.testing.assert_close(method.predict(x, i), expected, rtol=1e-4, atol=1e-4)


def test_less_energy_loses_something_in_the_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = network.fit
    monkeypatch.setattr(network, "fit", lambda *a, **k: None if a[5] == "recall" else fit(*a, **k))
    method, task = BilevelMemory(tiny_context(), energy_first=0.6), tiny_tasks()[0]
    method.learn(task)
    assert method.working is not None
    expected = network.logits(method.context, method.working, task.train.x)
    assert float((method.predict(task.train.x, 0) - expected).abs().max()) > 1e-2


def test_both_steps_train_everything_that_they_should_in_later_tasks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1)
    seen = watch_fit(monkeypatch)
    method.learn(tiny_tasks()[1])
    for stage, weights in (("learn", "weight"), ("recall", "parametrizations.weight.original")):
        before, after = seen[stage]
        moved = {n for n in before if not torch.equal(before[n], after[n])}
        norms = {f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
        assert moved >= {f"{n}.{weights}" for n in LAYERS} | norms | {"linear.bias", "head.weight", "head.bias"}
        assert len(before) == 3 + 3 + 4 + 2, "weights or coefficients, biases, norms and the head; no basis"
    for name in LAYERS:
        assert torch.equal(
            method.tasks[1].coefficients[name], seen["recall"][1][f"{name}.parametrizations.weight.original"]
        )
    head = dict(method.tasks[1].tensors)["head.weight"]
    assert torch.equal(head, seen["recall"][1]["head.weight"])


def test_coefficients_start_as_the_projection_of_the_working_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1)
    seen = watch_fit(monkeypatch)
    method.learn(tiny_tasks()[1])
    for name in LAYERS:
        weight = seen["learn"][1][f"{name}.weight"].flatten(1).double()
        expected = (method.bases[name].double().T @ weight).float()
        assert torch.equal(seen["recall"][0][f"{name}.parametrizations.weight.original"], expected)


def test_the_working_memory_goes_on_from_its_weights_with_new_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1)
    assert method.working is not None
    old = parts_of(method.working)
    seen = watch_fit(monkeypatch)
    method.learn(tiny_tasks()[1])
    begun = seen["learn"][0]
    for name in LAYERS:
        assert torch.equal(begun[f"{name}.weight"], old[f"{name}.weight"]), "not those that recalling made"
        assert torch.equal(begun[f"{name}.bias"], old[f"{name}.bias"])
    assert torch.equal(begun["norm1.weight"], torch.ones(6))
    assert torch.equal(begun["norm2.bias"], torch.zeros(8))
    assert not torch.equal(old["norm1.weight"], torch.ones(6))


def test_a_rebuilt_weight_has_the_same_bits_when_the_basis_has_grown() -> None:
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(40, 30, generator=generator))
    coefficients = torch.randn(11, 70, generator=generator)
    small = basis[:, :11].clone()
    assert torch.equal(rebuilt(small, coefficients), rebuilt(basis, coefficients))


def test_a_rebuilt_layer_computes_with_basis_and_coefficients() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 6, 3, dtype=torch.float64)
    weight, basis = layer.weight.detach().clone(), torch.linalg.qr(torch.randn(6, 4, dtype=torch.float64))[0]
    coefficients = rebuild(layer, basis)
    assert coefficients.shape == (4, 27)
    torch.testing.assert_close(layer.weight.flatten(1), basis @ basis.T @ weight.flatten(1))
    assert [n for n, _ in layer.named_parameters()] == ["bias", "parametrizations.weight.original"]


def brute(weight: Tensor, basis: Tensor, form: Form) -> float:
    """The regulariser, entry by entry."""
    e = weight - basis @ basis.T @ weight
    rows = len(e)
    k = [
        [float(e[i] @ e[j]) + (float(basis[i] @ basis[j]) if form == "code" else 0) for j in range(rows)]
        for i in range(rows)
    ]
    total = sum(value if form == "code" else abs(value) for row in k for value in row)
    return sum(k[i][i] for i in range(rows)) / total


@pytest.mark.parametrize("form", ["paper", "code"])
def test_the_regulariser_and_its_gradient(form: Form) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(7, 11, generator=generator, dtype=torch.float64).requires_grad_()
    basis, _ = torch.linalg.qr(torch.randn(7, 3, generator=generator, dtype=torch.float64))
    value = regulariser(weight, basis, form)
    assert float(value.detach()) == pytest.approx(brute(weight.detach(), basis, form), rel=1e-9)
    (expected,) = torch.autograd.grad(value, weight)
    torch.testing.assert_close(regulariser_gradient(weight.detach(), basis, form), expected, rtol=1e-9, atol=1e-11)


def test_the_papers_regulariser_is_bounded_and_finite_without_a_residual() -> None:
    basis, _ = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    known = basis @ torch.ones(2, 5, dtype=torch.float64)
    assert float(regulariser(known, basis)) < 1e-9
    assert bool(regulariser_gradient(known, basis).isfinite().all())
    rank_one = known + torch.ones(6, 1, dtype=torch.float64)
    assert 1 / 6 - 1e-6 <= float(regulariser(rank_one, basis)) <= 1


def test_the_regulariser_pulls_in_later_tasks_and_scales_with_the_gradients() -> None:
    method = learned(1, energy_first=0.7)
    layers = method.layers()
    for layer in layers.values():
        layer.weight.grad = torch.zeros_like(layer.weight)
    method.context = replace(method.context, recipe=replace(TINY, gradient_scale=10.0))
    method.strength = 0.5
    method.regularised()["after_backward"]()
    for name, layer in layers.items():
        expected = 5 * regulariser_gradient(subspaces.matrix(layer.weight), method.bases[name])
        torch.testing.assert_close(layer.weight.grad.flatten(1), expected)
    assert float(layers["conv2"].weight.grad.abs().max()) > 0
    plain, strong = learned(2, strength=0.0, energy_first=0.7), learned(2, strength=10.0, energy_first=0.7)
    assert torch.equal(plain.tasks[0].coefficients["conv2"], strong.tasks[0].coefficients["conv2"]), "none at first"
    before = method.bases["conv2"]
    result = [float(regulariser(subspaces.matrix(m.layers()["conv2"].weight), before)) for m in (plain, strong)]
    assert result[1] < result[0]


def test_a_full_basis_has_nothing_to_regularise() -> None:
    method = learned(1)
    method.bases = {n: torch.eye(rows) for n, (rows, _) in LAYERS.items()}
    for layer in method.layers().values():
        layer.weight.grad = None
    method.regularised()["after_backward"]()
    assert all(layer.weight.grad is None for layer in method.layers().values())


def test_bases_coefficients_norms_biases_and_heads_are_stored_and_the_working_memory_is_not() -> None:
    method = learned()
    ranks = method.details()["ranks"]
    shared = sum(rows * ranks[n] for n, (rows, _) in LAYERS.items())
    factors = sum(
        len(private.coefficients[n]) * columns for private in method.tasks for n, (_, columns) in LAYERS.items()
    )
    private = 3 * (2 * (6 + 8) + 6 + 8 + 16) + 17 * (3 + 2 + 4)
    assert method.counted() == shared + factors + private
    statistics = 3 * (2 * (6 + 8) + 2)
    assert method.stored().parameters == method.counted() + statistics
    assert method.stored().bytes == 4 * method.stored().parameters + 4 * 3 * 2, "counters have eight bytes"
    assert set(method.state().tensors) - set(method.long_term_memory()) == {
        f"working/{n}" for n in network.contents(tiny_context().build(4, 0))
    }


@pytest.mark.parametrize(("epochs", "expected"), [(20, (10, 10)), (5, (2, 3)), (1, (1, 1))])
def test_epochs_are_divided_evenly(epochs: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(network, "fit", lambda *args, **hooks: given.append(hooks["epochs"]))
    BilevelMemory(tiny_context(recipe=replace(TINY, epochs=epochs))).learn(tiny_tasks()[0])
    assert tuple(given) == expected


def test_the_official_mode_has_sgd_for_all_epochs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    method = BilevelMemory(tiny_context(recipe=replace(TINY, gradient_scale=10.0)), mode="official")
    result = method.context.recipe
    assert (result.optimiser, result.lr, result.schedule, result.gradient_scale) == ("sgd", 0.05, "constant", 1.0)
    assert method.l2 == 0.0
    given: list[tuple[str, int]] = []
    monkeypatch.setattr(bmkp, "train_in_steps", lambda training: given.append((training.stage.name, training.epochs)))
    method.learn(tiny_tasks()[0])
    assert given == [("learn", TINY.epochs), ("recall", TINY.epochs)]


def test_the_official_rate_falls_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmkp, "STEP_SIZE", 2)
    context, task = tiny_context(recipe=replace(TINY, optimiser="sgd", schedule="constant", lr=0.1)), tiny_tasks()[0]
    net, _ = network.fresh(context, task)
    rates: list[float] = []

    def note() -> None:
        rates.append(training._updates.optimiser.param_groups[0]["lr"])

    training = network.training(
        context, task, net, [Group(list(net.parameters()))], ("x",), "learn", epochs=5, after_step=note
    )
    train_in_steps(training)
    assert rates == pytest.approx([0.1] * 6 + [0.01] * 6 + [0.001] * 3), "three steps an epoch"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fast"}, "mode='fast'"),
        ({"form": "text"}, "form='text'"),
        ({"energy": 1.5}, "energy=1.5"),
        ({"energy_first": 0.0}, "energy_first=0.0"),
        ({"strength": -1.0}, "strength=-1.0"),
        ({"samples": 0}, "samples=0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        BilevelMemory(tiny_context(), **settings)


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    context = small_context(name)
    method = BilevelMemory(context)
    check_two_tasks(method, name)
    assert len(method.bases) == len(subspaces.layers_of(context.build(2, 0), "head"))
