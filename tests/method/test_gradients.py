"""A start from gradients: against dense float64 gradients, and as a choice of the method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from halrp import Exact, Flat, GradientNorm, Gradients, Halrp, Learner, Legacy, Recipe, WarmUp, Whitened
from halrp.errors import ModelError, SettingError
from halrp.method.importance import MeanSquare
from halrp.method.start import Start, Starts
from halrp.provenance import method_settings, recalled_method
from halrp.store import task_file
from halrp.training.batches import InMemory
from tests.helpers import FAST, digest, drawn, net, tiny_task

LONGER = Recipe(epochs=25, batch=8, lr=0.01)
LIGHT = Halrp(allocate=Flat(2), start=Gradients())


class Caught(Gradients):
    """A start from gradients that shows what it found, and what its network was."""

    starts: ClassVar[Starts]
    net: ClassVar[nn.Module]

    def __call__(self, *arguments: Any) -> Starts:
        Caught.starts = super().__call__(*arguments)
        return Caught.starts

    def _sketch(self, net: nn.Module, *arguments: Any) -> None:
        super()._sketch(net, *arguments)
        Caught.net = net


def caught(model: nn.Module, method: Halrp, data: Any, recipe: Recipe = FAST) -> tuple[Starts, nn.Module]:
    learner = Learner(model, method=replace(method, start=Caught()), recipe=recipe, base="given")
    learner.learn("a", data, val=data)
    return Caught.starts, Caught.net


@pytest.fixture(scope="module")
def dense() -> tuple[Starts, dict[str, Tensor], dict[str, Tensor]]:
    """A start in both views, and the gradient and the mean square that autograd gives in float64."""
    data = tiny_task("conv")
    starts, module = caught(net("conv").double(), Halrp.budget(growth_per_task=0.9), (data[0].double(), data[1]))
    weights = {n: p for n, p in module.named_parameters() if n in starts.by_view["mean"].recovered}
    module.requires_grad_(False)
    for weight in weights.values():
        weight.requires_grad_(True)
    loss = functional.cross_entropy(module(data[0].double()), data[1])
    gradient = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    everything = InMemory(data[0].double(), data[1])
    return starts, gradient, MeanSquare()(module, weights, everything, FAST.batch)


@pytest.mark.parametrize("view", ["mean", "full"])
def test_scores_are_the_decrease_of_the_best_step_along_each_singular_direction(dense: Any, view: str) -> None:
    starts, gradient, _ = dense
    start: Start = starts.by_view[view]
    for name, scores in start.scores.items():
        matrix = gradient[name].flatten(1)
        if view == "mean" and gradient[name].dim() > 2:
            matrix = gradient[name].flatten(2).sum(2) / gradient[name][0, 0].numel() ** 0.5
        sigma = torch.linalg.svdvals(matrix)[: len(scores)]
        expected = sigma.square() / (4 * start.recovered[name].importance)
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-12)


def test_importance_is_the_mean_square_of_single_gradients(dense: Any) -> None:
    starts, _, mean_square = dense
    for name, layer in starts.by_view["full"].recovered.items():
        # The batches are drawn by the seed, so the mean over batches is of others than in the stored order.
        assert layer.importance == pytest.approx(float(mean_square[name]), rel=0.7)


@pytest.mark.parametrize("view", ["mean", "full"])
def test_components_start_at_p_zero_along_the_leading_right_vectors(dense: Any, view: str) -> None:
    starts, gradient, _ = dense
    for name, factors in starts.by_view[view].factors.items():
        assert not factors.p.any()
        assert bool((factors.r == 1).all() & (factors.s == 1).all())
        if not factors.rank:
            continue
        wide = factors.q.shape[1] == gradient[name][0].numel()
        matrix = gradient[name].flatten(1) if wide else gradient[name].flatten(2).sum(2)
        _, _, vt = torch.linalg.svd(matrix, full_matrices=False)
        cosine = (vt[0] @ factors.q[0]).abs() / factors.q[0].norm()
        assert float(cosine) == pytest.approx(1, abs=1e-6)
        torch.testing.assert_close(factors.q.norm(dim=1), torch.full_like(factors.q[:, 0], factors.q.shape[1] ** 0.25))


def test_the_predicted_loss_is_that_of_the_whole_gradient_and_the_share_that_of_its_components(dense: Any) -> None:
    starts, gradient, _ = dense
    start = starts.by_view["full"]
    for name, layer in start.recovered.items():
        assert layer.predicted == pytest.approx(float(gradient[name].square().sum()) / (4 * layer.importance), rel=1e-6)
        if name in start.factors:
            part = start.scores[name][: start.factors[name].rank].sum()
            assert layer.share == pytest.approx(float(part) / layer.predicted, rel=1e-6)
        else:
            assert layer.share == 1


def test_the_outputs_are_unchanged_where_fine_tuning_starts() -> None:
    x, y = tiny_task("conv")
    starts, module = caught(net("conv"), Halrp.budget(growth_per_task=0.9), (x, y))
    learner = Learner(net("conv"), method=LIGHT, recipe=FAST, base="given")
    base = learner._committed.ready
    for start in starts.by_view.values():
        owned = {**starts.owned, **start.dense}
        view = base.tuning_view(start.factors, owned, 3)
        torch.testing.assert_close(view(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "conv", "transformer", "gru"])
def test_a_task_is_learned_from_gradients_in_every_model(kind: str) -> None:
    model = net(kind)
    before = digest(model)
    x, y = tiny_task(kind, examples=48)
    learner = Learner(model, method=Halrp.budget(growth_per_task=0.9), recipe=LONGER, base="given")
    base = digest(learner._committed.ready.module)
    learner.learn("a", (x, y), val=(x, y))
    assert float((learner.predict(x, "a").argmax(1) == y).float().mean()) > 0.9
    assert digest(model) == before
    assert digest(learner._committed.ready.module) == base


# ---- which start ------------------------------------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    for kind in (Gradients, WarmUp):
        call = kind.__call__

        def recorded(self: Any, *arguments: Any, call: Any = call) -> Starts:
            names.append(type(self).__name__)
            result: Starts = call(self, *arguments)
            return result

        monkeypatch.setattr(kind, "__call__", recorded)
    return names


@pytest.mark.parametrize(
    ("base", "method", "expected"),
    [
        ("given", Halrp.budget(growth_per_task=0.9), "Gradients"),
        ("given", Halrp.paper(), "WarmUp"),
        ("given", Halrp.official(), "WarmUp"),
        ("given", replace(Halrp.budget(growth_per_task=0.9), decompose=Whitened()), "WarmUp"),
        ("given", replace(Halrp.budget(growth_per_task=0.9), start=WarmUp()), "WarmUp"),
        ("first", Halrp.budget(growth_per_task=0.9), "WarmUp"),
        ("first", LIGHT, "Gradients"),
    ],
)
def test_the_base_decides_what_the_method_leaves_open(
    called: list[str], base: Any, method: Halrp, expected: str
) -> None:
    learner = Learner(net("mlp"), method=method, recipe=FAST, base=base)
    for name in "ab":
        learner.learn(name, tiny_task("mlp"))
    assert set(called) == {expected}


def test_a_learner_of_a_store_starts_as_the_one_that_made_it(called: list[str], tmp_path: Path) -> None:
    for base in ("first", "given"):
        folder = tmp_path / base
        learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST, base=base, store=folder)
        for name in "ab":
            learner.learn(name, tiny_task("mlp"))
        loaded = Learner.load(folder, net("mlp"))
        for each in (learner, loaded):
            each._committed.store = None
            each.learn("c", tiny_task("mlp", 1))
        assert task_file.write(learner.tasks["c"]) == task_file.write(loaded.tasks["c"])
    assert called == ["WarmUp"] * 3 + ["Gradients"] * 4


class Here:
    """An engine that works at once."""

    def submit(self, function: Any, *arguments: Any) -> Any:
        result = function(*arguments)
        return type("Done", (), {"result": lambda self: result})()


@pytest.mark.parametrize("base", ["first", "given"])
def test_workers_start_as_the_learner_would(base: Any, called: list[str]) -> None:
    tasks = {name: (tiny_task("mlp", i),) for i, name in enumerate("abc")}
    written = []
    for engine in (None, Here()):
        learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST, base=base)
        written.append([task_file.write(delta) for delta in learner.learn_many(tasks, engine).values()])
    assert written[0] == written[1]
    assert set(called) == {{"first": "WarmUp", "given": "Gradients"}[base]}


def test_a_start_that_is_left_open_leaves_settings_and_files_as_they_were() -> None:
    assert "start" not in method_settings(Halrp.budget())
    light = replace(Halrp.budget(), start=Gradients(100))
    assert method_settings(light)["start"] == {"type": "Gradients", "examples": 100, "components": 64}
    for method in (light, replace(Halrp.budget(), start=WarmUp())):
        assert recalled_method({"method": method_settings(method)}) == method


# ---- data ---------------------------------------------------------------------------------------------------------


def examples_of(start: Gradients, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The batches that a start takes gradients of."""
    taken: list[Tensor] = []
    batches = Gradients._batches

    def recorded(self: Gradients, *arguments: Any) -> Any:
        for x, y in batches(self, *arguments):
            taken.append(x)
            yield x, y

    monkeypatch.setattr(Gradients, "_batches", recorded)
    method = Halrp(allocate=Flat(1), start=start)
    Learner(net("mlp"), method=method, recipe=Recipe(epochs=2, batch=4), base="given").learn(
        "a", tiny_task("mlp", examples=40)
    )
    return taken


def test_at_most_the_given_number_of_examples_is_read_and_they_are_spread_over_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = examples_of(Gradients(examples=12), monkeypatch)
    assert [len(x) for x in taken] == [4, 4, 4]
    x = tiny_task("mlp", examples=40)[0]
    rows = sorted(int((x == row).all(1).nonzero()[0]) for row in torch.cat(taken))
    assert len(set(rows)) == 12
    assert rows[0] < 12 <= 28 <= rows[-1]


def test_two_passes_see_the_same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.method.sketch.OVERSAMPLING", 1)
    taken = examples_of(Gradients(components=1), monkeypatch)
    assert len(taken) == 20
    assert all(torch.equal(first, second) for first, second in zip(taken[:10], taken[10:], strict=True))


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"decompose": Whitened()}, "decompose=Whitened"),
        ({"scales": Legacy()}, "scales=Legacy"),
        ({"scales": Exact(3)}, "scales=Exact"),
        ({"importance": GradientNorm()}, "importance=GradientNorm"),
        ({"initial": "random"}, "initial='random'"),
    ],
)
def test_choices_that_would_have_no_effect_are_refused(choice: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=r"start=WarmUp\(\)") as refusal:
        Halrp(allocate=Flat(3), start=Gradients(), **choice)
    assert named in str(refusal.value)


@pytest.mark.parametrize("setting", ["examples", "components"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_numbers_that_leave_nothing_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{setting}={value}"):
        Gradients(**{setting: value})


def test_a_start_without_its_calls_is_refused() -> None:
    with pytest.raises(SettingError, match="start='gradient'"):
        Halrp(allocate=Flat(3), start="gradient")  # type: ignore[arg-type]


def test_a_weight_that_no_gradient_reaches_is_refused_by_name() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.used(x).relu())
            return outputs

    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    learner = Learner(drawn(Idle), head="head", method=LIGHT, recipe=FAST, base="given")
    with pytest.raises(ModelError, match=r"idle\.weight had no gradient"):
        learner.learn("a", (x, torch.arange(12) % 3))
    assert not learner.tasks
