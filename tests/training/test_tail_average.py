"""The mean of the parameters over the last steps is what a training leaves, and what is committed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Training
from halrp.training.stopping import Validation
from tests.helpers import FAST, digest, net, tiny_task
from tests.training.runs import assert_close, recipe, training


def iterates(settings: Recipe, **options: Any) -> list[list[Tensor]]:
    """The parameters after each step of a training without an average."""
    module, steps = net("mlp").double(), list[list[Tensor]]()
    note = {"after_step": lambda: steps.append([p.detach().clone() for p in module.parameters()])}
    training(module, settings, hooks=note, **options).run()
    return steps


def mean(steps: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parameters).mean(0) for parameters in zip(*steps, strict=True)]


def assert_is(module: nn.Module, expected: list[Tensor]) -> None:
    for result, tensor in zip(module.parameters(), expected, strict=True):
        # A running mean of a few numbers in float64.
        torch.testing.assert_close(result.detach(), tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("share", "last"), [(0.5, 4), (1.0, 9), (0.34, 3), (0.01, 1)])
def test_a_training_leaves_the_mean_over_its_last_steps(share: float, last: int) -> None:
    steps = iterates(recipe())
    assert len(steps) == 9
    module = net("mlp").double()
    run = training(module, recipe(average=share))
    for epoch in (1, 2, 3):  # evaluating in between changes nothing
        run.run(epoch)
    assert_is(module, mean(steps[-last:]))
    run._updates.train()
    assert_is(module, steps[-1])


def test_before_its_first_step_the_parameters_are_evaluated_as_they_are() -> None:
    steps, module = iterates(recipe()), net("mlp").double()
    training(module, recipe(average=0.5)).run(1)
    assert all(map(torch.equal, (p.detach() for p in module.parameters()), steps[2]))


def test_several_batches_are_one_step_of_the_mean() -> None:
    settings = recipe(accumulate=2)
    steps, module = iterates(settings), net("mlp").double()
    assert len(steps) == 6
    training(module, dataclasses.replace(settings, average=0.5)).run()
    assert_is(module, mean(steps[3:]))


@pytest.mark.parametrize("until", [1, 2, 3])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_training_resumes_bit_identically(kind: str, until: int, tmp_path: Path) -> None:
    settings = recipe(average=0.5, exact_statistics=True, dropout=0.3)
    whole, part, second = net(kind), net(kind), net(kind)
    training(whole, settings, kind).run()
    training(part, settings, kind, checkpoints=Checkpoints(tmp_path, "key")).run(until)
    resumed = training(second, settings, kind, checkpoints=Checkpoints(tmp_path, "key"))
    assert resumed.epoch == until
    resumed.run()
    assert digest(second) == digest(whole)


def test_early_stopping_compares_and_leaves_means() -> None:
    steps, module = iterates(recipe(epochs=4)), net("mlp").double()
    seen: list[list[Tensor]] = []

    def validate(evaluated: nn.Module) -> Validation:
        seen.append([p.detach().clone() for p in evaluated.parameters()])
        return Validation(1.0, (0.5, 0.6, 0.9, 0.7)[len(seen) - 1])

    training(module, recipe(epochs=4, average=0.5, patience=2), validate=validate).run()
    for parameters, expected in zip(seen, (steps[2], steps[5], mean(steps[6:9]), mean(steps[6:])), strict=True):
        for result, tensor in zip(parameters, expected, strict=True):
            torch.testing.assert_close(result, tensor, rtol=1e-12, atol=1e-12)
    assert all(map(torch.equal, (p.detach() for p in module.parameters()), seen[2]))


def test_a_frozen_parameter_keeps_its_bits() -> None:
    module = net("mlp")
    first = next(module.parameters())
    before = first.detach().clone()
    training(module, recipe(average=1.0), hooks={"after_backward": lambda: first.grad.zero_()}).run()  # type: ignore[union-attr]
    assert torch.equal(first.detach(), before)


def test_the_mean_is_of_parameters_in_float32_where_a_model_has_half_of_it() -> None:
    module = net("mlp").bfloat16()
    run = training(module, recipe(average=1.0)).run()
    assert {average.dtype for average in run._updates._average.averages} == {torch.float32}  # type: ignore[union-attr]
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


def test_the_base_and_tasks_are_committed_with_it_and_warm_up_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[str, float] = {}

    def note(run: Any, until: int | None = None) -> Any:
        shares[run.stage.name] = run.recipe.average
        return ran(run, until)

    ran = Training.run
    monkeypatch.setattr(Training, "run", note)
    settings = dataclasses.replace(FAST, epochs=3, average=0.5)
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=settings, progress=None)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number))
    assert shares == {"base": 0.5, "warm-up": 0.0, "fine-tune: mean": 0.5}
    plain = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST, progress=None)
    plain.learn("a", tiny_task("mlp", 0))
    with pytest.raises(AssertionError):
        assert_close(plain.module("a"), learner.module("a"))
