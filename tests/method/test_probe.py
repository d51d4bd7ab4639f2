"""The probe: a head that is fitted on frozen features, against scikit-learn, and the features that it is fitted on."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

from halrp.errors import DivergedError
from halrp.method import probe
from halrp.method.probe import PENALTIES, Features, fit
from halrp.objectives import Classification, Regression
from halrp.training.batches import InMemory
from tests.helpers import drawn, net, tiny_task

KEY = (0, "base", "task")
CLASSES = Classification(3)


@pytest.fixture(scope="module", autouse=True)
def heads_are_fitted_quickly() -> None:
    """They are not: how well they are fitted is what is asked here."""


def labelled(examples: int, seed: int = 0, noise: float = 2.0) -> Features:
    """Features of three classes that overlap, in a unit that is not one."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    y = torch.arange(examples) % 3
    x = 5 * (centres[y] + noise * torch.randn(examples, 6, generator=generator, dtype=torch.float64))
    return Features(x, y)


def measured_values(examples: int, seed: int = 0) -> Features:
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(examples, 6, generator=generator, dtype=torch.float64)
    slopes = torch.randn(6, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return Features(x, x @ slopes + torch.randn(examples, 2, generator=generator, dtype=torch.float64) + 4)


def linear(outputs: int = 3, seed: int = 0) -> nn.Linear:
    return cast(nn.Linear, drawn(lambda: nn.Linear(6, outputs), seed).double())


def mean_square(data: Features) -> float:
    return float(data.x.square().mean())


# ---- fitting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1.0, 0.1, 0.003])
def test_a_classifying_head_is_that_of_a_logistic_regression_with_the_same_penalty(
    c: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PENALTIES", (c,))
    data = labelled(60)
    head = cast(nn.Linear, fit(linear(), CLASSES, data, labelled(30, 1), from_zero=True).head)
    # Sum of losses + ‖W‖²/2C there, mean of losses + c·m/2·‖W‖² here; neither penalises the bias.
    expected = LogisticRegression(C=1 / (60 * c * mean_square(data)), tol=1e-10, max_iter=10_000)
    expected.fit(data.x.numpy(), data.y.numpy())
    # L-BFGS ends where the loss changes by less than 1e-9, which leaves slopes of about 1e-5.
    torch.testing.assert_close(head.weight, torch.from_numpy(expected.coef_), rtol=1e-3, atol=1e-4)
    bias = head.bias - head.bias.mean()  # equal biases change nothing
    torch.testing.assert_close(bias, torch.from_numpy(expected.intercept_), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("c", [1.0, 0.1, 0.003])
def test_a_head_for_numbers_is_that_of_a_ridge_regression_with_the_same_penalty(
    c: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PENALTIES", (c,))
    data = measured_values(60)
    objective = Regression(2, standardise=False)
    head = cast(nn.Linear, fit(linear(2), objective, data, measured_values(20, 1), from_zero=True).head)
    # The sum of squares there is the mean over examples and both values here, times 2 · 60.
    expected = Ridge(alpha=0.5 * c * mean_square(data) * 2 * 60).fit(data.x.numpy(), data.y.numpy())
    torch.testing.assert_close(head.weight, torch.from_numpy(expected.coef_), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.bias, torch.from_numpy(expected.intercept_), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("examples", "noise"), [(15, 3.0), (300, 1.0)])
def test_the_penalty_with_the_lowest_validation_loss_is_taken(
    examples: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, val = labelled(examples, 0, noise), labelled(90, 1, noise)
    chosen = fit(linear(), CLASSES, train, val, from_zero=True)
    losses = {}
    for c in PENALTIES:
        monkeypatch.setattr(probe, "PENALTIES", (c,))
        alone = fit(linear(), CLASSES, train, val, from_zero=True)
        assert alone.validation is not None
        losses[c] = alone.validation.loss
    assert chosen.validation is not None
    assert chosen.penalty == min(losses, key=losses.__getitem__)
    assert chosen.validation.loss == pytest.approx(
        min(losses.values()), abs=1e-3
    )  # fitted from zero, not along the path


def test_few_examples_need_a_stronger_penalty_than_many() -> None:
    few, many = (fit(linear(), CLASSES, labelled(n), labelled(90, 1), from_zero=True).penalty for n in (12, 600))
    assert few > many


def test_loss_and_score_are_those_of_the_fitted_head_on_the_validation_data() -> None:
    val = labelled(30, 1)
    result = fit(linear(), CLASSES, labelled(60), val, from_zero=True)
    outputs = result.head(val.x).detach()
    assert result.validation is not None
    assert result.validation.loss == pytest.approx(float(nn.functional.cross_entropy(outputs, val.y)), rel=1e-12)
    assert result.validation.score == pytest.approx(float((outputs.argmax(1) == val.y).double().mean()), rel=1e-6)


def test_without_validation_data_folds_decide_and_all_examples_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labelled(30)
    result = fit(linear(), CLASSES, data, None, from_zero=True)
    assert result.validation is None
    folds = probe.folds(data.y, 5)
    losses = dict.fromkeys(PENALTIES, 0.0)
    unit = mean_square(data)
    for c in PENALTIES:
        for fold in range(5):
            inside, outside = data.rows(folds != fold), data.rows(folds == fold)
            model = LogisticRegression(C=1 / (24 * c * unit), tol=1e-9, max_iter=10_000)
            model.fit(inside.x.numpy(), inside.y.numpy())
            outputs = torch.from_numpy(model.decision_function(outside.x.numpy()))
            losses[c] += float(nn.functional.cross_entropy(outputs, outside.y, reduction="sum"))
    assert result.penalty == min(losses, key=losses.__getitem__)
    monkeypatch.setattr(probe, "PENALTIES", (result.penalty,))
    alone = fit(linear(), CLASSES, data, labelled(30, 1), from_zero=True)
    for ours, expected in zip(result.head.parameters(), alone.head.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("y", [torch.arange(40) % 4, torch.arange(40) // 10, torch.randn(40)])
def test_every_fold_has_its_share_of_each_target(y: Tensor) -> None:
    fold = probe.folds(y, 4)
    if not y.is_floating_point():
        assert all(int(((y == label) & (fold == number)).sum()) in (2, 3) for label in range(4) for number in range(4))
    quarters = y.sort(stable=True).indices.view(-1, 4)  # neighbours go to different folds
    assert all(sorted(fold[rows].tolist()) == [0, 1, 2, 3] for rows in quarters)


def test_targets_of_several_numbers_are_dealt_too() -> None:
    assert probe.folds(torch.randn(21, 3), 5).bincount().tolist() == [5, 4, 4, 4, 4]


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_fewer_examples_than_folds_give_a_head_all_the_same(examples: int) -> None:
    data = labelled(examples)
    result = fit(linear(), CLASSES, data, None, from_zero=True)
    assert bool((result.head(data.x).argmax(1) == data.y).all())
    assert examples > 1 or result.penalty == PENALTIES[0]


@pytest.mark.parametrize("unit", [0.03, 30.0])
def test_the_unit_of_the_features_does_not_matter(unit: float) -> None:
    train, val = labelled(60), labelled(60, 1)
    plain = fit(linear(), CLASSES, train, val, from_zero=True)
    scaled = fit(linear(), CLASSES, Features(unit * train.x, train.y), Features(unit * val.x, val.y), from_zero=True)
    assert plain.validation is not None
    assert scaled.validation is not None
    # The loss is the same function of W times the unit; how fast it is minimised is not.
    assert scaled.validation.loss == pytest.approx(plain.validation.loss, rel=1e-2)


def test_a_head_that_starts_from_zero_does_not_depend_on_its_draw() -> None:
    heads = [fit(linear(seed=seed), CLASSES, labelled(60), labelled(30, 1), from_zero=True).head for seed in (0, 1)]
    for first, second in zip(heads[0].parameters(), heads[1].parameters(), strict=True):
        assert torch.equal(first, second)


def several_layers() -> nn.Module:
    return drawn(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))).double()


@pytest.mark.parametrize("val", [None, labelled(60, 1, 1.0)], ids=["folds", "validation"])
def test_a_head_of_several_layers_is_fitted_and_no_strong_penalty_leaves_it_at_zero(val: Features | None) -> None:
    head, train = several_layers(), labelled(90, noise=1.0)
    before = [parameter.detach().clone() for parameter in head.parameters()]
    result = fit(head, CLASSES, train, val, from_zero=False)
    held_out = probe.measured(result.head, CLASSES, labelled(300, 2, 1.0))
    assert held_out.score > 0.8
    assert held_out.loss < 0.7  # ln 3 is that of a head at zero
    for parameter, value in zip(head.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("val", [None, labelled(30, 1)], ids=["folds", "validation"])
def test_the_same_data_give_the_same_bits(val: Features | None) -> None:
    heads = [fit(several_layers(), CLASSES, labelled(15), val, from_zero=False).head for _ in range(2)]
    for first, second in zip(heads[0].parameters(), heads[1].parameters(), strict=True):
        assert torch.equal(first, second)


def test_a_head_is_fitted_also_where_gradients_are_off_and_leaves_none() -> None:
    with torch.no_grad():
        result = fit(linear(), CLASSES, labelled(60), None, from_zero=True)
    assert bool(torch.cat([p.flatten() for p in result.head.parameters()]).any())
    assert all(parameter.grad is None for parameter in result.head.parameters())


def test_features_that_are_not_finite_are_refused() -> None:
    data = labelled(30)
    data.x[3, 2] = torch.inf
    with pytest.raises(DivergedError, match="scale of the inputs"):
        fit(linear(), CLASSES, data, labelled(30, 1), from_zero=True)


# ---- features -------------------------------------------------------------------------------------------------------


def features(module: nn.Module, path: str, x: Tensor, y: Tensor, **options: Any) -> Features | None:
    return probe.features(module.eval(), path, InMemory(x, y), 8, KEY, **options)


@pytest.mark.parametrize(("kind", "path"), [("mlp", "4"), ("conv", "fc"), ("transformer", "fc"), ("gru", "fc")])
def test_features_are_what_the_head_gets(kind: str, path: str) -> None:
    module, (x, y) = net(kind), tiny_task(kind, examples=20)
    result = features(module, path, x, y)
    assert result is not None
    assert torch.equal(result.y, y)
    torch.testing.assert_close(module.get_submodule(path)(result.x), module(x))
    assert not result.x.requires_grad
    assert not module.get_submodule(path)._forward_hooks


class Around(nn.Module):
    """A network that does something with its head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head, self.kind = nn.Linear(10, 6), nn.Linear(6, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.body(x).relu()
        if self.kind == "reshaped":
            return cast(Tensor, self.head(hidden[:, None])[:, 0])
        if self.kind == "named":
            return cast(Tensor, self.head(input=hidden))
        outputs: Tensor = self.head(hidden)
        if self.kind == "post-processed":
            return 2 * outputs
        if self.kind == "twice":
            return outputs + 0 * cast(Tensor, self.head(hidden))
        return hidden[:, :3] if self.kind == "unused" else outputs


@pytest.mark.parametrize("kind", ["post-processed", "twice", "reshaped", "named", "unused"])
def test_there_are_no_features_where_outputs_are_not_those_of_one_call_of_the_head(kind: str) -> None:
    module = drawn(lambda: Around(kind))
    assert features(module, "head", *tiny_task("mlp")) is None
    assert not module.get_submodule("head")._forward_hooks


def test_of_more_features_than_fit_in_memory_examples_spread_over_the_data_are_taken() -> None:
    module, (x, y) = drawn(lambda: Around("plain")), tiny_task("mlp", examples=40)
    every, some = features(module, "head", x, y), features(module, "head", x, y, most=10 * 6 * 4)
    assert every is not None
    assert some is not None
    chosen = torch.arange(10) * 4 + 3
    assert torch.equal(some.x, every.x[chosen])
    assert torch.equal(some.y, every.y[chosen])


class WritesOver(nn.Module):
    """A network that changes its features or its outputs in place once the head has been called."""

    def __init__(self, changed: str) -> None:
        super().__init__()
        self.head, self.changed = nn.Linear(10, 3), changed

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        (x if self.changed == "features" else outputs).mul_(2)
        return outputs


def test_features_are_those_before_the_network_writes_over_them() -> None:
    x, y = tiny_task("mlp")
    result = features(drawn(lambda: WritesOver("features")), "head", x, y)
    assert result is not None
    assert torch.equal(result.x, tiny_task("mlp")[0])


def test_there_are_no_features_where_outputs_are_changed_in_place() -> None:
    assert features(drawn(lambda: WritesOver("outputs")), "head", *tiny_task("mlp")) is None


def test_no_more_features_are_held_than_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    cat = torch.cat

    def recorded(tensors: list[Tensor], *arguments: Any) -> Tensor:
        held.append(sum(tensor.untyped_storage().nbytes() for tensor in tensors))
        return cat(tensors, *arguments)

    module, (x, y) = drawn(lambda: Around("plain")), tiny_task("mlp", examples=400)
    monkeypatch.setattr(torch, "cat", recorded)
    assert features(module, "head", x, y, most=20 * 6 * 4) is not None
    assert held[0] == 20 * 6 * 4
