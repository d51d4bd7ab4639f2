"""Dropout of the inputs of the last linear layers: only while tasks are fine-tuned, and only by rule."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.training.auto import AVERAGE, DROPOUT, DROPOUT_STEPS, chosen, chosen_for
from halrp.training.dropout import dropout, last_linear_layers
from halrp.training.loop import Training
from halrp.training.recipe import BEYOND_PAPER
from tests.helpers import FAST, digest, net, tiny_task
from tests.training.runs import recipe, training


def test_the_inputs_of_two_linear_layers_before_the_head_are_dropped_in_training_alone() -> None:
    module = nn.Sequential(nn.Linear(10, 10), *net("mlp").children())
    seen: dict[int, Tensor] = {}
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        layer.register_forward_hook(lambda _, x, y, number=number: seen.update({number: x[0]}))
    x = torch.ones(400, 10)
    assert last_linear_layers(module) == layers[1:3]
    plain, before = module(x), dict(seen)
    with torch.random.fork_rng(), dropout(module, 0.25):
        torch.manual_seed(0)
        module(x)
        assert torch.equal(seen[0], before[0])
        gone = seen[1] == 0
        torch.testing.assert_close(seen[1], torch.where(gone, 0, before[1] / 0.75))
        # 4000 draws: their standard error is 0.007.
        assert float(gone.float().mean()) == pytest.approx(0.25, abs=0.03)
        hidden, last = (F.linear(seen[i], layers[i].weight, layers[i].bias).relu() for i in (1, 2))
        assert bool(((seen[2] == 0) & (hidden > 0)).any())
        assert torch.equal(seen[3], last)
        assert torch.equal(module.eval()(x), plain)
    assert torch.equal(module.train()(x), plain)
    assert not any(layer._forward_pre_hooks for layer in layers)


def test_without_other_linear_layers_the_inputs_of_the_head_are_dropped() -> None:
    head = nn.Linear(3, 2)
    assert last_linear_layers(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), head)) == [head]
    assert last_linear_layers(nn.Conv2d(3, 3, 1)) == []


def test_a_training_with_it_is_another_one_and_leaves_no_hook() -> None:
    plain, dropped, again = net("mlp"), net("mlp"), net("mlp")
    training(plain, recipe()).run()
    for module in (dropped, again):
        run = training(module, recipe(dropout=0.5))
        run.run(1)
        torch.rand(3)  # what is drawn elsewhere does not matter
        run.run()
    assert digest(dropped) == digest(again) != digest(plain)
    assert not any(m._forward_pre_hooks for m in dropped.modules())


def test_an_interrupted_training_leaves_no_hook() -> None:
    module = net("mlp")
    with pytest.raises(RuntimeError):
        training(module, recipe(dropout=0.5), hooks={"after_step": _fail}).run()
    assert not any(m._forward_pre_hooks for m in module.modules())


def _fail() -> None:
    raise RuntimeError


def test_only_fine_tuning_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: dict[str, float] = {}

    def note(run: Any, until: int | None = None) -> Any:
        shares[run.stage.name] = run.recipe.dropout
        return ran(run, until)

    ran = Training.run
    monkeypatch.setattr(Training, "run", note)
    settings = dataclasses.replace(FAST, epochs=3, dropout=0.4)
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=settings, progress=None)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number))
    assert shares == {"base": 0.0, "warm-up": 0.0, "fine-tune: mean": 0.4}


@pytest.mark.parametrize(("examples", "share"), [(31, 0.0), (100, DROPOUT), (200, DROPOUT), (4000, DROPOUT)])
def test_by_default_it_depends_on_the_number_of_steps(examples: int, share: float) -> None:
    settings = chosen(Recipe.auto(), tiny_task("mlp", examples=examples), given=False)
    assert (settings.average, settings.exact_statistics, settings.dropout) == (AVERAGE, True, share)
    plain = dataclasses.replace(Recipe(), automatic=settings.automatic, average=AVERAGE, exact_statistics=True)
    assert dataclasses.replace(settings, dropout=0.0, batch=128) == plain, "all else is as the paper"


@pytest.mark.parametrize(("examples", "batch"), [(31, 128), (32, 16), (101, 51), (128, 64), (129, 128), (4000, 128)])
def test_by_default_a_pass_over_few_examples_has_two_steps(examples: int, batch: int) -> None:
    assert chosen(Recipe.auto(), tiny_task("mlp", examples=examples), given=False).batch == batch
    assert chosen(Recipe.auto(batch=100), tiny_task("mlp", examples=examples), given=False).batch == 100
    assert chosen_for(Recipe.auto(), None, given=False).batch == 128


def test_what_is_given_decides_the_steps_and_is_left_as_it_is() -> None:
    enough = chosen_for(Recipe.auto(epochs=DROPOUT_STEPS), 10, given=False)
    assert (enough.dropout, chosen_for(Recipe.auto(epochs=DROPOUT_STEPS - 1), 10, given=False).dropout) == (DROPOUT, 0)
    assert chosen_for(Recipe.auto(epochs=3, dropout=0.2), 10, given=False).dropout == 0.2
    assert chosen_for(Recipe.auto(epochs=15), 10, given=False, batch=5).dropout == DROPOUT
    assert chosen_for(Recipe.auto(ema=0.9), 10, given=False).average == 0, "there is one average already"


def test_on_a_given_base_none_of_it_is_chosen() -> None:
    settings = chosen_for(Recipe.auto(), 5000, given=True)
    assert [getattr(settings, name) for name in BEYOND_PAPER] == [getattr(Recipe(), name) for name in BEYOND_PAPER]
