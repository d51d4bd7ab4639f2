"""A store remembers how its tasks were learned: a learner that is loaded from it learns on in the same way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import (
    Budget,
    Exact,
    Flat,
    FromProbe,
    GradientNorm,
    Halrp,
    Keep,
    Learner,
    Legacy,
    LossRate,
    MeanSquare,
    Plain,
    Prototypes,
    Prune,
    Recipe,
    WarmUp,
    Whitened,
)
from halrp.errors import SettingError
from halrp.provenance import KNOWN, describe, method_settings, recalled_method, recalled_settings
from halrp.store import task_file
from tests.helpers import FAST, net, tiny_task

METHODS = {
    "budget": Halrp.budget(),
    "bytes": Halrp.budget(8_000, warm_up=2, view="full"),
    "prototypes": Halrp.budget(prototypes=Prototypes(width=64, unknown=0.1)),
    "growth": Halrp.budget(growth_per_task=0.5),
    "paper": Halrp.paper(),
    "official": Halrp.official(cap=7),
    "whitened": Halrp(allocate=Flat(3), decompose=Whitened(0.1), scales=Exact(None), initial="random"),
    "pruned": Halrp(allocate=Budget(parameters=900), compress=Prune(kind="relative", scope="layer", bound=False)),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_recalled_from_its_settings(name: str) -> None:
    assert recalled_method({"method": method_settings(METHODS[name])}) == METHODS[name]


def test_every_choice_of_the_library_can_be_recalled() -> None:
    choices = [
        Prototypes(),
        Budget(),
        Exact(),
        Flat(),
        GradientNorm(),
        Keep(),
        Legacy(),
        LossRate(),
        MeanSquare(),
        Plain(),
        Prune(),
    ]
    assert set(KNOWN.values()) == {type(choice) for choice in (*choices, Whitened(), WarmUp(), FromProbe())}


def test_a_loaded_learner_learns_the_next_task_as_the_first_learner_would(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": METHODS["growth"], "recipe": replace(FAST, lr=2e-3), "seed": 7}
    first = Learner(net("conv"), **settings)
    for seed, name in enumerate("ab"):
        first.learn(name, tiny_task("conv", seed))
    first.save(tmp_path)
    loaded = Learner.load(tmp_path, net("conv", 3))
    assert (loaded.method, loaded.recipe, loaded.seed) == (settings["method"], settings["recipe"], 7)
    for learner in (first, loaded):
        learner.learn("c", tiny_task("conv", 2))
    assert task_file.write(loaded.tasks["c"]) == task_file.write(first.tasks["c"])


def test_given_settings_come_before_recalled_ones(tmp_path: Path) -> None:
    Learner(net("mlp"), method=METHODS["growth"], recipe=FAST, seed=7, base="given", store=tmp_path).learn(
        "a", tiny_task("mlp")
    )
    other = Halrp.budget(growth_per_task=0.6)
    loaded = Learner.load(tmp_path, net("mlp"), method=other, recipe=Recipe(epochs=4), seed=0)
    assert (loaded.method, loaded.recipe, loaded.seed) == (other, Recipe(epochs=4), 0)


def test_epochs_that_the_recalled_warm_up_uses_up_are_refused_before_training(tmp_path: Path) -> None:
    method = replace(Halrp.budget(growth_per_task=0.9, warm_up=3), start=WarmUp())
    recipe = replace(FAST, epochs=4)
    Learner(net("mlp"), method=method, recipe=recipe, base="given", store=tmp_path).learn("a", tiny_task("mlp"))
    loaded = Learner.load(tmp_path, net("mlp"), recipe=FAST)
    with pytest.raises(SettingError, match=r"epochs=2.*warm_up=3"):
        loaded.learn("b", tiny_task("mlp", 1))


@dataclass(frozen=True)
class Foreign(MeanSquare):
    """A choice from outside the library."""


Foreign.__name__ = Foreign.__qualname__ = "MeanSquare"  # as a user may call it


def test_a_method_of_foreign_parts_loads_and_predicts_and_learning_asks_for_it(tmp_path: Path) -> None:
    method = replace(METHODS["growth"], importance=Foreign())
    first = Learner(net("mlp"), method=method, recipe=FAST, base="given", store=tmp_path)
    x, _ = data = tiny_task("mlp")
    first.learn("a", data)
    loaded = Learner.load(tmp_path, net("mlp"))
    assert torch.equal(loaded.predict(x, "a"), first.predict(x, "a"))
    with pytest.raises(SettingError, match=rf"'{__name__}.MeanSquare' is not a choice of this library.*method=\.\.\."):
        loaded.learn("b", data)
    assert list(loaded.tasks) == ["a"]
    loaded.method = method
    loaded.learn("b", data)
    assert Learner.load(tmp_path, net("mlp"), method=method).method == method


GOOD = method_settings(Halrp.budget(5_000))
HOSTILE: dict[str, Any] = {
    "nothing": None,
    "a list": [1],
    "no fields": {},
    "another type": GOOD | {"type": "Recipe"},
    "a field more": GOOD | {"extra": 1},
    "a foreign choice": GOOD | {"scales": "my_package.unit_scales"},
    "a choice without a type": GOOD | {"scales": {"sweeps": 1}},
    "a choice of another field": GOOD | {"scales": {"type": "Keep"}},
    "a text for a number": GOOD | {"l1": "0"},
    "a truth value for a number": GOOD | {"warm_up": True},
    "a fraction of a sweep": GOOD | {"scales": {"type": "Exact", "sweeps": 1.5}},
    "a budget below zero": GOOD | {"allocate": {"type": "Budget", "bytes": -1}},
    "not a number": GOOD | {"l2": float("nan")},
    "a name that is a list": GOOD | {"scales": {"type": ["Exact"]}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_settings_that_make_no_method_are_a_setting_error(kind: str) -> None:
    with pytest.raises(SettingError, match="does not give the method"):
        recalled_method({"method": HOSTILE[kind]})


def test_a_recipe_that_this_version_does_not_train_with_is_asked_for_when_it_is_needed() -> None:
    old = describe(Recipe()) | {"autocast": "torch.float64"}
    method, recipe, seed = recalled_settings({"method": GOOD, "recipe": old, "seed": 3}, None, None, None)
    assert method == Halrp.budget(5_000)
    assert isinstance(recipe, SettingError)
    assert seed == 3
    learner = Learner(net("mlp"), base="given")
    learner._recipe = recipe
    with pytest.raises(SettingError, match=r"float64.*pass Learner\.load\(\.\.\., recipe="):
        learner.learn("a", tiny_task("mlp"))
    learner.recipe = FAST
    assert learner.recipe == FAST
