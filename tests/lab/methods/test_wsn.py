"""`wsn`: the selection and its gradient, weights that stay, what is stored, and the official schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import ModelError, SettingError
from halrp.lab.methods import network, wsn
from halrp.lab.methods.check import ITEMS, check_method
from halrp.lab.methods.network import contents
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.methods.wsn import WinningSubnetworks, masking, selected, threshold
from tests.lab.methods.small_nets import SMALL, check_two_tasks, small_context


def learned(tasks: int = 3, context: Context | None = None, **settings: Any) -> WinningSubnetworks:
    method = WinningSubnetworks(context or tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


@pytest.mark.parametrize("settings", [{}, {"share": 0.2}, {"mode": "official", "epochs": 60}])
def test_it_keeps_the_contract(settings: dict[str, Any]) -> None:
    report = check_method(lambda context: WinningSubnetworks(context, **settings))
    assert len(report.passed) == len(ITEMS)
    assert WinningSubnetworks.frozen


@pytest.mark.parametrize(("n", "share", "count"), [(1500, 0.1, 151), (25000, 0.5, 12500), (10, 1.0, 10), (1, 0.3, 1)])
def test_a_share_of_the_weights_is_selected(n: int, share: float, count: int) -> None:
    scores = torch.randn(n, generator=seeding.generator("scores"))
    mask = selected(scores, share)
    assert int(mask.sum()) == count
    assert scores[mask].abs().min() >= scores[~mask].abs().max() if count < n else mask.all()


@pytest.mark.parametrize("share", [0.1, 0.37, 0.5, 1.0])
def test_the_threshold_is_torchs_in_every_layout_and_type(share: float) -> None:
    plain = torch.randn(6, 5, 3, 3, generator=seeding.generator("layout")).abs()
    k = 1 + round((1 - share) * (plain.numel() - 1))
    expected = plain.flatten().kthvalue(k).values
    for magnitudes in (plain, plain.contiguous(memory_format=torch.channels_last), plain.double()):
        result = threshold(magnitudes, share)
        assert result.dtype == magnitudes.dtype
        assert torch.equal(result, expected.to(result.dtype))
    half = plain.bfloat16()
    assert torch.equal(threshold(half, share), half.flatten().kthvalue(k).values)


def test_every_layer_has_its_share_and_no_more() -> None:
    method = learned(share=0.3)
    for task in range(3):
        for mask in method.masks.of(task).values():
            n, retained = mask.numel(), int(mask.sum())
            assert 0.3 <= retained / n <= 0.3 + 2 / n


def test_gradients_go_straight_through_to_scores_and_only_to_selected_weights() -> None:
    inner = nn.Linear(5, 4, bias=False)
    layer = nn.Sequential(inner)
    generator = seeding.generator("gradient")
    scores = nn.Parameter(torch.randn(4, 5, generator=generator))
    x, outer = torch.randn(3, 5, generator=generator), torch.randn(3, 4, generator=generator)
    theta = inner.weight
    with masking(layer, {"0.weight": scores}, 0.5):
        y = layer(x)
        (y * outer).sum().backward()
    mask = selected(scores, 0.5)
    g = outer.T @ x
    torch.testing.assert_close(y, x @ (theta * mask).T)
    torch.testing.assert_close(scores.grad, g * theta.detach() * scores.detach().sign())
    torch.testing.assert_close(theta.grad, g * mask)
    assert theta.grad is not None
    assert not theta.grad[~mask].any()
    assert inner.weight is theta, "and the layer is plain again"


def test_weights_that_a_task_uses_stay_to_the_bit_and_its_logits_too() -> None:
    tasks = tiny_tasks()
    method = learned(1, l2=0.3)
    seen: list[tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor]]] = []
    for following in (*tasks[1:], None):
        used = method.masks.used()
        weights = {n: w.detach().clone() for n, w in method.weights().items()}
        logits = [method.predict(tasks[i].test.x, i) for i in range(len(method.heads))]
        for old_used, old_weights, old_logits in seen:
            assert all(torch.equal(weights[n][m], old_weights[n][m]) for n, m in old_used.items())
            assert any(not torch.equal(weights[n], w) for n, w in old_weights.items()), "others have learned"
            assert all(torch.equal(a, b) for a, b in zip(old_logits, logits, strict=False))
            assert all(bool((used[n] | ~m).all()) for n, m in old_used.items()), "what is used stays in use"
        seen.append((used, weights, logits))
        if following is not None:
            method.learn(following)
    assert len(seen) == 3


def test_scores_go_on_and_start_from_the_seed_alone() -> None:
    method = learned(1)
    before = {n: s.detach().clone() for n, s in method.scores.items()}
    method.learn(tiny_tasks()[1])
    moved = [n for n, s in method.scores.items() if not torch.equal(s, before[n])]
    assert moved == list(before), "scores of used weights too"
    for n, s in method.scores.items():
        assert torch.equal(method.initial_scores(n, s), learned(0).initial_scores(n, s))
        assert float(method.initial_scores(n, s).detach().abs().max()) <= s[0].numel() ** -0.5


def test_weights_that_are_never_selected_do_not_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, Tensor] = {}
    drawn = WinningSubnetworks.initial_scores

    def observed(method: WinningSubnetworks, name: str, weight: Tensor) -> nn.Parameter:
        first[name] = weight.detach().clone()
        scores = drawn(method, name, weight)
        with torch.no_grad():
            scores[0, 0] = 0  # far below all others
        return scores

    monkeypatch.setattr(WinningSubnetworks, "initial_scores", observed)
    context = tiny_context(recipe=replace(TINY, epochs=1, lr=1e-6))
    method = learned(1, context, l2=1.0)
    for n, weight in method.weights().items():
        assert torch.equal(weight.detach()[0, 0], first[n][0, 0])
        assert not torch.equal(weight.detach(), first[n])


def test_the_network_has_weights_and_a_head_and_nothing_else() -> None:
    method = learned(1)
    assert method.net is not None
    assert set(contents(method.net)) == {"conv1.weight", "conv2.weight", "linear.weight", "head.weight", "head.bias"}
    assert set(method.masks.of(0)) == {"conv1.weight", "conv2.weight", "linear.weight"}
    norm = method.net.get_submodule("norm1")
    x = torch.randn(8, 6, 4, 4, generator=seeding.generator("norm"))
    torch.testing.assert_close(norm(x).mean((0, 2, 3)), torch.zeros(6), rtol=0, atol=1e-6)
    assert not norm.training


def test_a_full_network_still_learns_heads() -> None:
    method = learned(1, share=1.0)
    before = {n: w.detach().clone() for n, w in method.weights().items()}
    assert method.details()["used"] == 1.0
    method.learn(tiny_tasks()[1])
    assert all(torch.equal(w, before[n]) for n, w in method.weights().items())
    task = tiny_tasks()[1]
    assert float((method.predict(task.train.x, 1).argmax(1) == task.train.y).float().mean()) > 0.6


def test_what_is_stored_are_used_weights_coded_masks_and_heads() -> None:
    method = learned()
    used = sum(int(mask.sum()) for mask in method.masks.used().values())
    heads = sum(17 * classes for classes in (3, 2, 4))
    coded = method.masks.bytes()
    assert method.stored() == (used + heads + -(-coded // 4), 4 * used + 4 * heads + coded)
    details = method.details()
    weights = sum(w.numel() for w in method.weights().values())
    assert details["used"] == pytest.approx(used / weights, abs=1e-6)
    assert details["mask_rate"] == pytest.approx(8 * coded / weights / 3, abs=1e-6)


def test_evaluation_needs_what_is_stored_and_nothing_else() -> None:
    method = learned()
    x = tiny_tasks()[1].test.x
    before = method.predict(x, 1)
    used = method.masks.used()
    with torch.no_grad():
        for n, weight in method.weights().items():
            weight[~used[n]] = torch.nan
            method.scores[n].fill_(torch.nan)
    assert torch.equal(method.predict(x, 1), before)


def test_the_official_schedule_ends_with_the_best_epoch_and_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_tasks()[0]
    task = replace(task, val=task.val._replace(y=task.val.y.flip(0)))  # so that the loss soon rises
    losses: list[float] = []
    logits = network.logits

    def observed(context: Context, net: nn.Module, x: Tensor) -> Tensor:
        result = logits(context, net, x)
        losses.append(float(F.cross_entropy(result, task.val.y)))
        return result

    monkeypatch.setattr(network, "logits", observed)
    monkeypatch.setattr(wsn, "FLOOR", 3e-4)
    rates: list[float] = []
    by_validation = WinningSubnetworks.train_on_plateaus

    def retained(self: WinningSubnetworks, training: Any, *rest: Any) -> None:
        by_validation(self, training, *rest)
        rates.append(training.recipe.lr)

    monkeypatch.setattr(WinningSubnetworks, "train_on_plateaus", retained)
    method = WinningSubnetworks(tiny_context(), mode="official")
    method.learn(task)
    best = min(losses)
    assert best < losses[-1]
    assert rates == [5e-4], "halved once; a second time would be too small"
    assert len(losses) < 200
    assert epochs_by_hand(losses) == len(losses)
    assert all(torch.equal(m, selected(method.scores[n], 0.5)) for n, m in method.masks.of(0).items())
    result = F.cross_entropy(method.predict(task.val.x, 0), task.val.y)
    assert float(result) == pytest.approx(best, rel=1e-6), "the mask is that of the restored scores"


def epochs_by_hand(losses: Sequence[float]) -> int:
    """After how many epochs two times six of them have brought nothing."""
    best, bad, times = float("inf"), 0, 0
    for epoch, loss in enumerate(losses, 1):
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        if bad == 6:
            bad, times = 0, times + 1
        if times == 2:
            return epoch
    return len(losses)


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 1.5}, {"mode": "quick"}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="wsn"):
        WinningSubnetworks(tiny_context(), **settings)


def test_a_parameter_that_has_no_mask_is_refused() -> None:
    plain = tiny_context()

    def build(classes: int, seed: int) -> nn.Module:
        net = plain.build(classes, seed)
        net.get_submodule("linear").register_parameter("gain", nn.Parameter(torch.ones(16)))
        return net

    with pytest.raises(ModelError, match=r"linear\.gain"):
        WinningSubnetworks(replace(plain, build=build)).learn(tiny_tasks()[0])


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    check_two_tasks(WinningSubnetworks(small_context(name)), name)
