"""Any optimiser and scheduler of torch: each step is torch's own, and a resumed training is bit-identical."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import lr_scheduler

from halrp import Halrp, Learner, Recipe, seeding
from halrp.errors import CheckpointWarning, SettingError
from halrp.provenance import describe, recalled_recipe, recalled_settings
from halrp.training.batches import InMemory
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Stage, Training
from tests.helpers import FAST, digest, net, tiny_task

SEED_KEY = (0, "base", "task", "stage")
EPOCHS, STEPS = 3, 9


class ScheduleFree(torch.optim.Optimizer):
    """SGD that evaluates the mean of its iterates: it switches between them in `train` and `eval`."""

    def __init__(self, groups: Any, lr: float = 1e-2) -> None:
        super().__init__(groups, {"lr": lr, "count": 0, "training": False})

    def _switch(self, training: bool) -> None:
        for group in self.param_groups:
            for p in group["params"] if group["training"] != training else ():
                if "other" in self.state[p]:
                    value = p.detach().clone()
                    p.data.copy_(self.state[p]["other"])
                    self.state[p]["other"].copy_(value)
            group["training"] = training

    def train(self) -> None:
        self._switch(True)

    def eval(self) -> None:
        self._switch(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["training"]
            group["count"] += 1
            for p in group["params"]:
                state = self.state[p]
                if "other" not in state:
                    state["other"], state["step"] = p.clone(), 0
                state["step"] += 1
                p.sub_(p.grad, alpha=group["lr"])
                state["other"].lerp_(p, 1 / group["count"])


def with_nesterov(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=0.9, nesterov=True)


def as_single_group(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for group in reversed(groups) for p in group["params"]], lr=1e-2)


OPTIMISERS: dict[str, Any] = {
    "adam": "adam",
    "adamw": "adamw",
    "AdamW": torch.optim.AdamW,
    "amsgrad": functools.partial(torch.optim.AdamW, amsgrad=True, betas=(0.8, 0.99)),
    "RMSprop": functools.partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "function": with_nesterov,
    "other groups": as_single_group,
    "schedule-free": ScheduleFree,
}


def linear_decay(optimiser: torch.optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / (steps + 1))


SCHEDULERS: dict[str, Any] = {
    "CosineAnnealingLR": lr_scheduler.CosineAnnealingLR,
    "OneCycleLR": functools.partial(lr_scheduler.OneCycleLR, max_lr=2e-2),
    "ExponentialLR": functools.partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "LinearLR": lr_scheduler.LinearLR,
    "function": linear_decay,
}


def training(recipe: Recipe, module: nn.Module, folder: Path | None = None, l2: float = 0.0) -> Training:
    """Batches of 5, 5 and 3 examples, three times."""
    x, y = tiny_task("mlp", examples=13)
    data = InMemory(x.to(next(module.parameters()).dtype), y)
    first, *rest = module.parameters()
    groups = [Group([first], l2=l2), Group(rest, l2=l2)]
    checkpoints = None if folder is None else Checkpoints(folder, "key")
    return Training(module, groups, data, recipe, Stage(EPOCHS, SEED_KEY, "birds", "s"), checkpoints=checkpoints)


def recipe(optimiser: Any = "adam", **settings: Any) -> Recipe:
    return Recipe(epochs=EPOCHS, batch=5, lr=1e-2, optimiser=optimiser, **{"schedule": "constant", **settings})


def plain_loop(module: nn.Module, optimiser: torch.optim.Optimizer, scheduler: Any = None, l2: float = 0.0) -> None:
    """The same training as anybody would write it."""
    x, y = tiny_task("mlp", examples=13)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(13, generator=seeding.generator(*SEED_KEY, "order", epoch)).split(5):
            optimiser.zero_grad()
            penalty = sum(p.square().sum() for p in module.parameters())
            (F.cross_entropy(module(x[rows].double()), y[rows]) + l2 / 2 * penalty).backward()
            optimiser.step()
            if scheduler is not None:
                scheduler.step()


def assert_equal(ours: nn.Module, theirs: nn.Module) -> None:
    for result, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        # Nine steps in float64, fused here and not there.
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


REFERENCES: dict[str, tuple[Any, dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "default decay": ("adamw", {}, lambda p: torch.optim.AdamW(p, lr=1e-2)),
    "decay": ("adamw", {"weight_decay": 0.3}, lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3)),
    "class": (torch.optim.AdamW, {"weight_decay": 0.3}, lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3)),
    "partial": (
        functools.partial(torch.optim.AdamW, weight_decay=0.3, betas=(0.5, 0.9)),
        {},
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.3, betas=(0.5, 0.9)),
    ),
    "coupled": ("adam", {"weight_decay": 0.3}, lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.3)),
    "sgd": (
        "sgd",
        {"weight_decay": 0.3, "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.3, momentum=0.9),
    ),
    "RMSprop": (torch.optim.RMSprop, {}, lambda p: torch.optim.RMSprop(p, lr=1e-2)),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_training_is_torchs_own_loop(name: str) -> None:
    optimiser, settings, reference = REFERENCES[name]
    ours, theirs = net("mlp").double(), net("mlp").double()
    training(recipe(optimiser, **settings), ours).run()
    plain_loop(theirs, reference(theirs.parameters()))
    assert_equal(ours, theirs)


def test_a_penalty_stays_a_penalty_when_weight_decay_is_decoupled() -> None:
    ours, theirs = net("mlp").double(), net("mlp").double()
    training(recipe("adamw", weight_decay=0.0), ours, l2=0.1).run()
    plain_loop(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.0), l2=0.1)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_stepped_after_every_step(name: str) -> None:
    reference: dict[str, Callable[[Any], Any]] = {
        "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
        "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=2e-2, total_steps=STEPS),
        "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=STEPS),
        "function": lambda o: linear_decay(o, STEPS),
    }
    ours, theirs = net("mlp").double(), net("mlp").double()
    # OneCycleLR has no rate for a step after the last.
    training(recipe("adamw", scheduler=SCHEDULERS[name]), ours).run(EPOCHS)
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    plain_loop(theirs, optimiser, reference[name](optimiser))
    assert_equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_resumed_training_is_bit_identical_with_every_optimiser(name: str, tmp_path: Path) -> None:
    whole, first, second = net("mlp"), net("mlp"), net("mlp")
    settings = recipe(OPTIMISERS[name], schedule="cosine")
    training(settings, whole, tmp_path / "whole").run(1)
    training(settings, whole, tmp_path / "whole").run()
    uninterrupted = net("mlp")
    training(settings, uninterrupted).run()
    training(settings, first, tmp_path / "parts").run(2)
    resumed = training(settings, second, tmp_path / "parts")
    assert resumed.epoch == 2
    resumed.run()
    assert digest(second) == digest(uninterrupted) == digest(whole)
    assert digest(first) != digest(second)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_resumed_training_is_bit_identical_with_every_scheduler(name: str, tmp_path: Path) -> None:
    whole, second = net("mlp"), net("mlp")
    settings = recipe("adamw", scheduler=SCHEDULERS[name])
    training(settings, whole).run()
    training(settings, net("mlp"), tmp_path).run(2)
    training(settings, second, tmp_path).run()
    assert digest(second) == digest(whole)


def test_what_is_evaluated_in_between_does_not_change_the_training() -> None:
    stopped, whole = net("mlp"), net("mlp")
    run = training(recipe(ScheduleFree), stopped)
    for epoch in range(1, EPOCHS + 1):
        run.run(epoch)
    training(recipe(ScheduleFree), whole).run()
    assert digest(stopped) == digest(whole)


def test_an_optimiser_with_its_own_average_gives_the_average() -> None:
    module = net("mlp")
    weight = next(module.parameters())
    iterates: list[Tensor] = []
    run = training(recipe(ScheduleFree), module)
    for number in range(EPOCHS):
        run.run(number + 1)
        run._updates.train()
        iterates.append(weight.detach().clone())
        run._updates.evaluate()
    assert not torch.equal(weight, iterates[-1])


CHANGES: dict[str, tuple[str, Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "a shape": (
        "NAdam",
        lambda tensors, facts: tensors.update({"moment/1/mu_product": torch.ones(3)}),
        "moment/1/mu_product is",
    ),
    "below zero": ("Adagrad", lambda tensors, facts: tensors["moment/0/sum"].fill_(-1), "moment/0/sum is not finite"),
    "a moment less": ("RMSprop", lambda tensors, facts: tensors.pop("moment/0/grad_avg"), "lacks moment/0/grad_avg"),
    "a number of no group": ("schedule-free", lambda _, facts: facts["groups"][0].update(x=1), "x is 1"),
    "a count that is a text": ("schedule-free", lambda _, facts: facts["groups"][0].update(count="9"), "count is '9'"),
    "a switch that is a number": ("schedule-free", lambda _, facts: facts["groups"][1].update(training=1), "is 1"),
    "a group less": ("schedule-free", lambda _, facts: facts["groups"].pop(), "not those of this optimiser"),
    "numbers that are a list": ("schedule-free", lambda _, facts: facts.update(numbers=[1]), "not those of this"),
    "too many steps": ("schedule-free", lambda _, facts: facts["numbers"].update({"0/step": 99}), "number of steps"),
    "a number less": ("schedule-free", lambda _, facts: facts["numbers"].pop("0/step"), "lacks moment/0/step"),
    "a number of no parameter": ("schedule-free", lambda _, facts: facts["numbers"].update({"99/step": 1}), "99/step"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_no_optimiser_of_the_kind_has_is_set_aside(change: str, tmp_path: Path) -> None:
    name, apply, reason = CHANGES[change]
    settings = recipe(OPTIMISERS[name])
    training(settings, net("mlp"), tmp_path).run(2)
    checkpoints = Checkpoints(tmp_path, "key")
    loaded = checkpoints.load("s", 10**9)
    assert loaded is not None
    apply(*loaded)
    checkpoints.save("s", *loaded)
    module, whole = net("mlp"), net("mlp")
    with pytest.warns(CheckpointWarning, match=reason):
        run = training(settings, module, tmp_path)
    assert run.epoch == 0
    run.run()
    training(settings, whole).run()
    assert digest(module) == digest(whole)


class Hoarder(torch.optim.SGD):
    """An optimiser that remembers a list."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [1, 2]
        return super().step(closure)


def test_an_optimiser_that_cannot_be_saved_trains_with_a_warning(tmp_path: Path) -> None:
    module, whole = net("mlp"), net("mlp")
    with pytest.warns(CheckpointWarning, match=r"birds: .*Hoarder remembers 'history', of type list"):
        training(recipe(Hoarder), module, tmp_path).run()
    training(recipe(torch.optim.SGD), whole).run()
    assert digest(module) == digest(whole)
    assert not any(tmp_path.iterdir())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name": ({"optimiser": "lion"}, r"optimiser='lion'\) is unknown; choose 'adam', 'sgd', 'adamw', a class"),
    "a number": ({"optimiser": 3}, r"optimiser=3\) is unknown"),
    "LBFGS": ({"optimiser": torch.optim.LBFGS}, r"LBFGS\) evaluates the loss several times"),
    "SparseAdam": ({"optimiser": functools.partial(torch.optim.SparseAdam, eps=1e-3)}, "SparseAdam.*sparse gradients"),
    "a rate": ({"optimiser": functools.partial(torch.optim.AdamW, lr=0.1)}, r"give it as Recipe\(lr=0.1\)"),
    "momentum": ({"optimiser": "adamw", "momentum": 0.9}, "means nothing to this optimiser"),
    "a text": ({"scheduler": "cosine"}, r"scheduler='cosine'\) cannot be called"),
    "a plateau": ({"scheduler": lr_scheduler.ReduceLROnPlateau}, "follows a score and not the steps"),
    "two warm-ups": ({"scheduler": linear_decay, "rate_warm_up": 3}, r"rate_warm_up=3\).*SequentialLR"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_optimise_is_refused_with_a_remedy(kind: str) -> None:
    settings, message = REFUSED[kind]
    with pytest.raises(SettingError, match=message):
        Recipe(**settings)


partial: Any = functools.partial  # with arguments that the types rule out

USELESS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"optimiser": lambda groups: None}, "gives NoneType; it must return a torch.optim.Optimizer"),
    "a part": ({"optimiser": lambda groups: torch.optim.SGD(groups[:1])}, "optimises other parameters"),
    "an argument": ({"optimiser": partial(torch.optim.SGD, mass=1)}, "SGD.*cannot be made.*mass"),
    "no argument": ({"scheduler": lr_scheduler.ExponentialLR}, "ExponentialLR.*cannot be made for 9 steps.*gamma"),
    "no scheduler": ({"scheduler": lambda optimiser, steps: steps}, "gives int; it must return an LRScheduler"),
}


@pytest.mark.parametrize("kind", USELESS)
def test_a_function_that_makes_nothing_useful_is_refused_before_training(kind: str) -> None:
    settings, message = USELESS[kind]
    module = net("mlp")
    before = digest(module)
    with pytest.raises(SettingError, match=message):
        training(recipe(**settings), module)
    assert digest(module) == before


@pytest.mark.parametrize("optimiser", ["adamw", torch.optim.AdamW, torch.optim.Rprop])
@pytest.mark.parametrize("scheduler", [None, lr_scheduler.CosineAnnealingLR])
def test_torchs_own_are_recorded_by_name_and_recalled(optimiser: Any, scheduler: Any) -> None:
    given = recipe(optimiser, scheduler=scheduler)
    recorded = describe(given)
    assert all(isinstance(recorded[n], str) for n in ("optimiser", "scheduler") if n in recorded)
    assert recalled_recipe({"recipe": recorded}) == given


def test_a_partial_of_torchs_own_is_recalled_with_its_arguments() -> None:
    given = functools.partial(torch.optim.AdamW, betas=(0.5, 0.9), amsgrad=True)
    recalled: Any = recalled_recipe({"recipe": describe(recipe(given))}).optimiser
    assert recalled.func is torch.optim.AdamW
    assert recalled.keywords == {"betas": [0.5, 0.9], "amsgrad": True}
    ours, theirs = net("mlp"), net("mlp")
    training(recipe(given), ours).run()
    training(recipe(recalled), theirs).run()
    assert digest(ours) == digest(theirs)


FOREIGN: dict[str, Any] = {
    "a function": with_nesterov,
    "a class": ScheduleFree,
    "a partial": functools.partial(with_nesterov),
    "a partial with a function": partial(torch.optim.AdamW, foreach=with_nesterov),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_not_torchs_own_is_recorded_by_name_and_asked_for(kind: str, tmp_path: Path) -> None:
    recorded = describe(recipe(FOREIGN[kind]))
    _, recalled, _ = recalled_settings({"recipe": recorded, "method": {}}, Halrp.budget(), None, 0)
    assert isinstance(recalled, SettingError)
    assert "optimiser" in str(recalled)


def test_a_store_learned_with_a_function_loads_and_learning_asks_for_the_recipe(tmp_path: Path) -> None:
    settings = Recipe(epochs=2, batch=8, optimiser=with_nesterov, scheduler=linear_decay)
    method = Halrp.budget(growth_per_task=0.9)
    first = Learner(net("mlp"), method=method, recipe=settings, base="given", store=tmp_path)
    x, _ = data = tiny_task("mlp")
    first.learn("a", data)
    loaded = Learner.load(tmp_path, net("mlp"))
    assert torch.equal(loaded.predict(x, "a"), first.predict(x, "a"))
    with pytest.raises(SettingError, match=r"with_nesterov.*recipe=\.\.\."):
        loaded.learn("b", data)
    loaded.recipe = FAST
    loaded.learn("b", data)


@pytest.mark.parametrize("hostile", [["adam"], {"type": "functools.partial"}, "os.system", 3, "torch.optim.Optimizer"])
def test_a_record_of_no_optimiser_is_an_error(hostile: Any) -> None:
    with pytest.raises((SettingError, ValueError)):
        recalled_recipe({"recipe": describe(Recipe()) | {"optimiser": hostile}})
