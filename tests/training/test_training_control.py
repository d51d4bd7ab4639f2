"""Settings of a recipe that shape the steps: rates, weight decay, clipping, accumulation, warm-up, moving average."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from halrp import Learner, Progress, Recipe, WarmUp, seeding
from halrp.errors import SettingError
from halrp.lab.run.cell import Cell
from halrp.objectives import TokenClassification
from halrp.provenance import describe, recalled_recipe
from halrp.training.batches import InMemory
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Stage, Training
from halrp.training.recipe import Rates
from tests.helpers import CLASSES, FAST, digest, net, tiny_task
from tests.training.runs import METHOD, SEED_KEY, assert_close, recipe, trained, training


class Notes:
    """The groups of every training that a learner makes: stage, factor, weight decay and shapes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.groups: dict[str, list[tuple[float, float | None, list[tuple[int, ...]]]]] = {}
        original = Training.run

        def run(training: Training, until: int | None = None) -> Training:
            self.groups[training.stage.name] = [
                (group["rate_factor"], group.get("weight_decay"), [tuple(p.shape) for p in group["params"]])
                for group in training._updates.optimiser.param_groups
            ]
            return original(training, until)

        patch.setattr(Training, "run", run)

    def factors(self, stage: str) -> dict[float, int]:
        """The number of parameters with each factor."""
        counts: dict[float, int] = {}
        for factor, _, shapes in self.groups[stage]:
            counts[factor] = counts.get(factor, 0) + len(shapes)
        return counts


def test_every_kind_of_parameter_has_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(monkeypatch)
    rates = {"head": 10, "scales": 2, "factors": 3, "norms": 4, "biases": 5, "dense": 6}
    learner = Learner(net("conv"), method=METHOD, recipe=dataclasses.replace(FAST, rates=rates))
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("conv", number))
    # Two parameters of the head; norms have weight and bias; features.0 and hidden have a bias.
    assert notes.factors("base") == {10: 2, 4: 4, 5: 2, 6: 3}
    assert notes.factors("warm-up") == {10: 2, 4: 4, 5: 2, 6: 3}
    (stage,) = (name for name in notes.groups if name.startswith("fine-tune"))
    delta = learner.tasks["b"]
    factors = delta.factors.values()
    dense = [name for name in delta.owned if name in ("features.0.weight", "conv.weight", "hidden.weight")]
    expected = {10: 2, 4: 4, 5: 2, 6: len(dense), 2: 2 * len(factors), 3: 2 * sum(f.p.numel() > 0 for f in factors)}
    assert notes.factors(stage) == {factor: count for factor, count in expected.items() if count}
    assert expected[2] > 0


def test_a_rate_of_zero_keeps_a_kind_as_it_is() -> None:
    results = []
    for rates in ({}, {"head": 0}):
        learner = Learner(net("mlp"), method=METHOD, recipe=dataclasses.replace(FAST, rates=rates))
        learner.learn("a", tiny_task("mlp"))
        results.append(learner.module("a").get_parameter("4.weight").detach().clone())
    drawn = Learner(net("mlp"), method=METHOD, recipe=dataclasses.replace(FAST, rates={"head": 0}, epochs=4))
    drawn.learn("a", tiny_task("mlp"))
    assert torch.equal(results[1], drawn.module("a").get_parameter("4.weight"))
    assert not torch.equal(*results)


def test_weight_decay_leaves_norms_biases_and_scales_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(monkeypatch)
    settings = dataclasses.replace(FAST, optimiser="adamw", weight_decay=0.25)
    method = dataclasses.replace(METHOD, start=WarmUp())
    learner = Learner(net("conv"), method=method, recipe=settings, base="given")
    learner.learn("a", tiny_task("conv"))
    for groups in notes.groups.values():
        assert {decay for _, decay, _ in groups} == {0.0, 0.25}
        # What is pulled to zero are matrices, kernels, and the head with its bias.
        assert all(len(shape) > 1 or shape == (CLASSES,) for _, decay, shapes in groups if decay for shape in shapes)
        assert all(len(shape) == 1 for _, decay, shapes in groups if not decay for shape in shapes)


def test_rates_are_recorded_and_recalled_and_come_as_json() -> None:
    given = Recipe(rates={"head": 10, "norms": 0.5})
    assert given.rates == Rates(head=10, norms=0.5)
    assert recalled_recipe({"recipe": describe(given)}) == given
    cell = Cell("halrp-paper", "digits", "digits-net", recipe={"rates": {"head": 10}, "optimiser": "adamw", "ema": 0.9})
    assert cell.make_recipe().rates == Rates(head=10)


def gradient_norms(settings: Recipe) -> list[float]:
    module, norms = net("mlp").double(), []
    run = training(module, settings)
    original = run._updates.optimiser.step

    def step(*arguments: Any, **keywords: Any) -> Any:
        norms.append(float(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]).norm()))
        return original(*arguments, **keywords)

    run._updates.optimiser.step = step  # type: ignore[method-assign]
    run.run()
    return norms


def test_clipping_bounds_the_norm_of_the_gradient() -> None:
    free, clipped = gradient_norms(recipe()), gradient_norms(recipe(clip=0.05))
    assert min(free) > 0.05
    assert clipped == pytest.approx([0.05] * 9, rel=1e-4)
    loose = gradient_norms(recipe(clip=100.0))
    assert loose == free


def test_accumulated_batches_are_one_large_batch() -> None:
    large = trained(recipe(batch=12, momentum=0.9, optimiser="sgd", schedule="exponential"))
    small = trained(recipe(batch=4, accumulate=3, momentum=0.9, optimiser="sgd", schedule="exponential"))
    # Sums of twelve numbers in another order, three times.
    assert_close(small, large, 1e-12)


def test_the_loss_of_an_incomplete_step_is_the_mean_over_its_examples() -> None:
    steps: list[int] = []
    settings = recipe(epochs=1, batch=5, accumulate=2, optimiser="sgd")
    ours = trained(settings, examples=13, hooks={"after_step": lambda: steps.append(1)})
    assert len(steps) == 2
    theirs = net("mlp").double()
    x, y = tiny_task("mlp", examples=13)
    order = torch.randperm(13, generator=seeding.generator(*SEED_KEY, "order", 0))
    for rows in order.split([10, 3]):
        theirs.zero_grad()
        F.cross_entropy(theirs(x[rows].double()), y[rows]).backward()
        with torch.no_grad():
            for p in theirs.parameters():
                p.sub_(1e-2 * p.grad)  # type: ignore[operator]
    assert_close(ours, theirs, 1e-12)


def test_a_step_in_which_no_target_counts_changes_nothing() -> None:
    nothing = torch.full((8, 3), -100)
    data = InMemory(torch.randn(8, 3, 4), nothing, objective=TokenClassification(2))
    module = nn.Linear(4, 2)
    before = digest(module)
    settings = Recipe(batch=2, accumulate=2, optimiser="sgd", schedule="constant", lr=1.0)
    Training(module, [Group(list(module.parameters()))], data, settings, Stage(1, (0,))).run()
    assert digest(module) == before


def test_accumulation_counts_steps_and_resumes(tmp_path: Path) -> None:
    reports: list[Progress] = []
    settings = recipe(accumulate=2, schedule="cosine")
    whole = trained(settings, notify=reports.append)
    assert {report.steps for report in reports} == {2}
    trained(dataclasses.replace(settings, epochs=3), checkpoints=Checkpoints(tmp_path, "key"))
    assert digest(trained(settings, checkpoints=Checkpoints(tmp_path, "key"))) == digest(whole)
    run = training(net("mlp").double(), settings, checkpoints=Checkpoints(tmp_path, "key"))
    assert (run.epoch, run._updates.step) == (3, 6)


@pytest.mark.parametrize("warm_up", [4, 0.5])
def test_the_rate_rises_to_its_schedule(warm_up: float) -> None:
    settings = recipe(rate_warm_up=warm_up)
    steps = 4 if warm_up == 4 else 4.5
    expected = [1e-2 * min(1.0, (step + 1) / steps) for step in range(9)]
    assert [settings.rate(step, 9, 4, 12) for step in range(9)] == pytest.approx(expected, rel=1e-12)
    rates: list[float] = []
    run = training(net("mlp"), settings, hooks={"after_step": lambda: rates.append(run_rate())})

    def run_rate() -> float:
        return float(run._updates.optimiser.param_groups[0]["lr"])

    run.run()
    assert rates == pytest.approx(expected, rel=1e-12)


def test_the_moving_average_is_evaluated_and_training_continues_without_it() -> None:
    raw, averaged = net("mlp").double(), net("mlp").double()
    iterates = [[p.detach().clone() for p in raw.parameters()]]
    note = {"after_step": lambda: iterates.append([p.detach().clone() for p in raw.parameters()])}
    training(raw, recipe(), hooks=note).run()
    run = training(averaged, recipe(ema=0.7))
    for epoch in (1, 2, 3):  # evaluating in between changes nothing
        run.run(epoch)
    average, *rest = iterates
    for step, parameters in enumerate(rest):
        decay = min(0.7, (1 + step) / (10 + step))
        average = [decay * a + (1 - decay) * p for a, p in zip(average, parameters, strict=True)]
    for result, expected in zip(averaged.parameters(), average, strict=True):
        torch.testing.assert_close(result.detach(), expected, rtol=1e-12, atol=1e-12)
    run._updates.train()
    assert_close(averaged, raw, 0)


def test_a_training_with_an_average_resumes_bit_identically(tmp_path: Path) -> None:
    settings = recipe(ema=0.9)
    whole, part, second = net("mlp"), net("mlp"), net("mlp")
    training(whole, settings).run()
    training(part, settings, checkpoints=Checkpoints(tmp_path, "key")).run(2)
    training(second, settings, checkpoints=Checkpoints(tmp_path, "key")).run()
    assert digest(second) == digest(whole)


def test_the_average_is_committed() -> None:
    outputs = []
    x, _ = data = tiny_task("mlp")
    for ema in (None, 0.5):
        learner = Learner(net("mlp"), method=METHOD, recipe=dataclasses.replace(FAST, ema=ema), base="given")
        learner.learn("a", data, val=data)
        outputs.append(learner.predict(x, "a"))
    assert not torch.equal(*outputs)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rates of no kind": ({"rates": {"heads": 2}}, r"'heads': \.\.\.\}\) is no kind of parameter; choose from \['head'"),
    "rates below zero": ({"rates": {"head": -1}}, r"rates=\{'head': -1\}\) is out of range; give a factor of 0"),
    "rates that are a number": ({"rates": 3}, r"rates=3\) is no mapping"),
    "weight decay": ({"weight_decay": -0.1}, r"weight_decay=-0.1\) is out of range; give a number of 0 or more"),
    "clip": ({"clip": 0}, r"clip=0\) is out of range; give a norm above 0"),
    "accumulate": ({"accumulate": 0}, r"accumulate=0\) is out of range; give a whole number of at least 1"),
    "half a batch": ({"accumulate": 1.5}, r"accumulate=1.5\)"),
    "warm-up": ({"rate_warm_up": 1.5}, r"rate_warm_up=1.5\) is out of range; give steps, or a share below 1"),
    "ema": ({"ema": 1.0}, r"ema=1.0\) is out of range; give a decay in \[0, 1\)"),
    "average": ({"average": 1.5}, r"average=1.5\) is out of range; give a share in \[0, 1\], such as 0.5"),
    "two averages": ({"average": 0.5, "ema": 0.9}, r"ema=0.9, average=0.5\): there is one average of the parameters"),
    "dropout": ({"dropout": 1.0}, r"dropout=1.0\) is out of range; give a share in \[0, 1\), such as 0.4"),
    "statistics": ({"exact_statistics": 1}, r"exact_statistics=1\) is out of range; give True or False"),
    "patience": ({"patience": 0}, r"patience=0\) is out of range; give a number of epochs"),
    "balanced": ({"balanced": 1}, r"balanced=1\) is out of range; give True or False"),
    "order": ({"balanced": True, "shuffle": False}, r"balanced=True, shuffle=False\)"),
    "compile": ({"compile": "yes"}, r"compile='yes'\)"),
    "activations": ({"checkpoint_activations": None}, r"checkpoint_activations=None\)"),
    "autocast": ({"autocast": torch.float64}, r"autocast=torch.float64\) is unknown; give torch.bfloat16 or"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_value_is_named_with_a_remedy(kind: str) -> None:
    settings, message = BAD[kind]
    with pytest.raises(SettingError, match=message):
        Recipe(**settings)


LEFT = {"drop_last", "momentum", "scheduler", "balanced_steps", "automatic", "average"}
"""Settings that are at their defaults below."""
CONTROL = Recipe(
    rates={"head": 2}, weight_decay=0.1, clip=1.0, accumulate=2, rate_warm_up=0.1, ema=0.9, patience=3, balanced=True,
    compile=True, checkpoint_activations=True, optimiser="adamw", autocast=torch.float16,
    exact_statistics=True, dropout=0.4,
)  # fmt: skip


def test_settings_are_recorded_where_they_are_not_at_their_defaults_and_recalled() -> None:
    assert recalled_recipe({"recipe": describe(CONTROL)}) == CONTROL
    later = {field.name for field in dataclasses.fields(Recipe) if field.metadata}
    assert not later & describe(Recipe()).keys()
    assert later - describe(CONTROL).keys() == LEFT
    for settings in (Recipe.auto(batch=7), Recipe(balanced_steps=True, average=0.5)):
        assert recalled_recipe({"recipe": describe(settings)}) == settings
