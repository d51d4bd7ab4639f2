"""Cross-fitting: examples are trained on by heads that have not seen them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import FromProbe, Halrp, Learner, Recipe
from halrp.errors import SettingError
from halrp.method import probe
from halrp.method.cross_fit import CrossFit
from halrp.method.start import Starts
from halrp.model.batch import Batch
from halrp.objectives import Classification
from halrp.training.batches import loss_of
from halrp.training.run import TaskRun
from tests.helpers import CLASSES, FAST, digest, drawn, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)


@pytest.fixture(scope="module", autouse=True)
def heads_are_fitted_quickly() -> None:
    """They are not: how well a head is fitted is asked here."""


class Caught(FromProbe):
    """A start at the probe that shows its heads, and what they learn from."""

    cross_fit: ClassVar[CrossFit | None]
    run: ClassVar[TaskRun]

    def __call__(self, *arguments: Any) -> Starts:
        starts = super().__call__(*arguments)
        Caught.run = arguments[2]
        (start,) = starts.by_view.values()
        Caught.cross_fit = start.cross_fit
        return starts


def learned(kind: str, data: Any = None, recipe: Recipe = FAST, method: Halrp = ROOMY, **settings: Any) -> Learner:
    settings = {"val": tiny_task(kind, 1)} | settings
    learner = Learner(net(kind), base="given", recipe=recipe, method=replace(method, start=Caught(held_out=0)))
    learner.learn("a", tiny_task(kind, examples=40) if data is None else data, **settings)
    return learner


@pytest.mark.parametrize("kind", ["mlp", "conv", "transformer"])
def test_each_head_was_fitted_without_its_fold(kind: str) -> None:
    learner = learned(kind)
    cross_fit, run = Caught.cross_fit, Caught.run
    assert cross_fit is not None
    features = probe.features(learner._committed.ready.module.eval(), cross_fit.path, run.data.train, 8, ())
    assert features is not None
    assert len(cross_fit.heads) == 5
    head = probe.fit(cross_fit.heads[0], run.data.objective, features, run_features(learner, run), from_zero=True)
    for number, ours in enumerate(cross_fit.heads):
        others = features.rows(cross_fit.fold != number)
        expected = probe.fit_with(head.penalty, ours, run.data.objective, others)
        for value, reference in zip(ours.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(value, reference)
        assert not any(value.requires_grad for value in ours.parameters())


def run_features(learner: Learner, run: TaskRun) -> probe.Features | None:
    assert Caught.cross_fit is not None
    assert run.data.val is not None
    return probe.features(learner._committed.ready.module.eval(), Caught.cross_fit.path, run.data.val, 8, ())


def test_rows_with_folds_have_the_outputs_of_their_heads_and_the_own_head_no_slope() -> None:
    learned("mlp")
    cross_fit, run = Caught.cross_fit, Caught.run
    assert cross_fit is not None
    model = net("mlp").requires_grad_(True)
    plain, folded = run.data.train, cross_fit.run(run).data.train
    head = model.get_submodule(cross_fit.path)
    with cross_fit.installed(model):
        ((x, y),), (((_, fold), _),) = plain.batches(100, None), folded.batches(100, None)
        outputs = folded.call(model, (x, fold))
        assert torch.equal(plain.call(model, x), model(x))
        loss_of(folded, model, (x, fold), y).backward()
    body = nn.Sequential(*list(model.children())[:-1])
    expected = torch.stack([cross_fit.heads[int(k)](row) for k, row in zip(fold, body(x), strict=True)])
    torch.testing.assert_close(outputs, expected)
    assert all(bool((p.grad == 0).all()) for p in head.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
    assert torch.equal(folded.call(model, (x, fold)), model(x))  # the heads are gone


def test_in_the_end_the_head_is_fitted_to_the_features_of_the_fine_tuned_network() -> None:
    learner = learned("mlp", recipe=Recipe(epochs=3, batch=8, lr=0.03), method=replace(ROOMY, precision="float32"))
    cross_fit, run = Caught.cross_fit, Caught.run
    assert cross_fit is not None
    module = learner.module("a").eval()
    train, val = (
        probe.features(module, cross_fit.path, data, 8, ()) for data in (run.data.train, run.data.val) if data
    )
    assert train is not None
    head: Any = module.get_submodule(cross_fit.path)
    expected: Any = probe.fit(head, run.data.objective, train, val, from_zero=True).head
    # The stored head is rounded to int8.
    torch.testing.assert_close(
        head.weight, expected.weight, rtol=0, atol=float(expected.weight.detach().abs().max()) / 60
    )


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [({"loader": True}, FAST), ({"examples": 9}, FAST)],
    ids=["loader", "too few examples"],
)
def test_where_rows_cannot_be_told_apart_the_head_trains_along(settings: dict[str, Any], recipe: Recipe) -> None:
    x, y = tiny_task("mlp", examples=settings.get("examples", 40))
    data: Any = DataLoader(TensorDataset(x, y), batch_size=8) if "loader" in settings else (x, y)
    learned("mlp", data, recipe)
    assert Caught.cross_fit is None


def test_an_augmentation_gets_inputs_without_folds() -> None:
    shapes = set()

    def augment(x: Batch, generator: torch.Generator) -> Batch:
        assert isinstance(x, Tensor)
        shapes.add(tuple(x.shape[1:]))
        return x + 0.01 * torch.randn(x.shape, generator=generator)

    learned("mlp", augment=augment)
    assert Caught.cross_fit is not None
    assert shapes == {tuple(tiny_task("mlp")[0].shape[1:])}


@pytest.mark.parametrize(
    "recipe", [FAST, replace(FAST, accumulate=2), replace(FAST, patience=1), replace(FAST, ema=0.9)]
)
def test_the_same_task_has_the_same_bits_in_all_recipes(recipe: Recipe) -> None:
    modules = [learned("conv", recipe=recipe).module("a") for _ in range(2)]
    assert Caught.cross_fit is not None
    assert digest(modules[0]) == digest(modules[1])


def size_of_slope(body: nn.Module, outputs: Tensor, y: Tensor) -> float:
    """The norm of the gradient of the layers before the head."""
    gradients = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), list(body.parameters()))
    return float(torch.cat([gradient.flatten() for gradient in gradients]).norm())


def test_the_slope_through_heads_of_other_folds_has_the_size_of_that_of_other_examples() -> None:
    objective, trained_on, crossed = Classification(CLASSES), [], []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        y = torch.arange(2100) % CLASSES
        x = torch.randn(CLASSES, 20, generator=generator)[y] + 1.5 * torch.randn(2100, 20, generator=generator)
        body = drawn(lambda: nn.Sequential(nn.Linear(20, 256), nn.ReLU()), seed)
        given, head = body(x), drawn(lambda: nn.Linear(256, CLASSES), seed)
        train, val = (probe.Features(given[i : i + 50].detach(), y[i : i + 50]) for i in (0, 50))
        fitted, fold = probe.fit(head, objective, train, val, from_zero=True), probe.folds(train.y, 5)
        heads = [probe.fit_with(fitted.penalty, head, objective, train.rows(fold != k)) for k in range(5)]
        true = size_of_slope(body, fitted.head(body(x[100:])), y[100:])
        outputs = torch.stack([fold_head(body(x[:50])) for fold_head in heads], 1)[torch.arange(50), fold]
        trained_on.append(size_of_slope(body, fitted.head(body(x[:50])), y[:50]) / true)
        crossed.append(size_of_slope(body, outputs, y[:50]) / true)
    assert max(trained_on) < 0.5
    assert min(crossed) > 0.8
    assert max(crossed) < 3


@pytest.mark.parametrize("folds", [1, -1, 2.5, "five"])
def test_a_number_of_folds_that_holds_nothing_out_is_refused(folds: Any) -> None:
    with pytest.raises(SettingError, match="folds"):
        FromProbe(folds=folds)


class Steps(FromProbe):
    """A start at the probe that shows by how much it shortens steps."""

    step: ClassVar[float]

    def _fit_head(self, *arguments: Any) -> tuple[CrossFit | None, float]:
        cross_fit, Steps.step = super()._fit_head(*arguments)
        return cross_fit, Steps.step


@pytest.mark.parametrize("folds", [5, 0])
def test_steps_are_shorter_where_the_head_has_memorised_its_examples(folds: int) -> None:
    def step(examples: int, width: int) -> float:
        x = torch.randn(2 * examples, width, generator=torch.Generator().manual_seed(3))
        y = (x[:, :2].sum(1) > 0).long()
        body = drawn(lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)))
        method = replace(ROOMY, start=Steps(folds=folds))
        learner = Learner(body, base="given", method=method, recipe=FAST, progress=None)
        learner.learn("a", (x[:examples], y[:examples]), val=(x[examples:], y[examples:]))
        return Steps.step

    assert step(40, 64) < 0.71 < step(600, 8) <= 1


def test_the_error_of_a_head_is_the_mean_square_of_p_minus_y() -> None:
    outputs, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(5)), torch.arange(20) % 3
    expected = (outputs.softmax(1) - nn.functional.one_hot(y, 3)).square().sum(1).mean()
    assert probe.error(Classification(3), outputs, y) == pytest.approx(float(expected), rel=1e-5)
