"""The library's default recipe in the laboratory: which methods have it, and how others can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from halrp import Halrp, Recipe
from halrp.errors import SettingError
from halrp.lab.methods import Method, make, network
from halrp.lab.methods.check import check_method
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.records.schema import Record
from halrp.lab.report.documents.cells import BEYOND_PAPER as SHOWN
from halrp.lab.report.documents.cells import trained_by
from halrp.lab.run.cell import Cell
from halrp.training.loop import Training
from halrp.training.recipe import BEYOND_PAPER

DEFAULT = replace(TINY, automatic=BEYOND_PAPER)


def recipes(method: Method, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes of all trainings while a method learns two tasks."""
    seen: list[Recipe] = []
    ran = Training.run

    def note(run: Training, until: int | None = None) -> Training:
        seen.append(run.recipe)
        return ran(run, until)

    monkeypatch.setattr(Training, "run", note)
    for task in tiny_tasks()[:2]:
        method.learn(task)
    return seen


def test_the_default_method_has_the_default_recipe_with_the_epochs_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make("halrp", tiny_context(), bytes_per_task=6000)
    assert isinstance(method, HalrpMethod)
    assert method.method == Halrp.budget(bytes_per_task=6000)
    assert method.method.rest == method.method.precision == "int8"
    final = [recipe for recipe in recipes(method, monkeypatch) if recipe.average]
    assert {(r.average, r.exact_statistics, r.epochs, r.batch, r.lr) for r in final} == {
        (0.5, True, TINY.epochs, TINY.batch, TINY.lr)
    }
    assert method.learner is not None
    assert all(0 < delta.bytes <= 6000 for delta in [*method.learner.tasks.values()][1:])


def test_the_run_may_set_what_the_default_recipe_leaves_open_or_all_of_it() -> None:
    set_here = make("halrp", tiny_context(recipe=replace(TINY, average=0.25)))
    assert (set_here.context.recipe.average, set_here.context.recipe.automatic) == (0.25, BEYOND_PAPER[1:])
    assert make("halrp", tiny_context(), recipe="run").context.recipe == TINY
    with pytest.raises(SettingError, match=r"halrp\(recipe='mine'\) is unknown; choose 'default' or 'run'"):
        make("halrp", tiny_context(), recipe="mine")


@pytest.mark.parametrize("name", ["halrp-official", "halrp-paper"])
def test_the_published_methods_are_trained_by_the_recipe_of_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(name, tiny_context(), growth=0.9)
    assert isinstance(method, HalrpMethod)
    assert method.method == (Halrp.official(growth=0.9) if name == "halrp-official" else Halrp.paper(growth=0.9))
    assert {tuple(getattr(r, n) for n in BEYOND_PAPER) for r in recipes(method, monkeypatch)} == {(0.0, False, 0.0)}


@pytest.mark.parametrize("name", ["stl", "wsn", "be", "mtl", "ewc"])
def test_other_methods_take_the_default_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, last) = made = [make(name, replace(tiny_context(2), recipe=recipe)) for recipe in (TINY, DEFAULT)]
    x = tiny_tasks()[1].test.x
    for method in made[:-1]:
        for task in tiny_tasks()[:2]:
            method.learn(task)
    assert {(r.average, r.exact_statistics) for r in recipes(last, monkeypatch)} == {(0.5, True)}
    assert not torch.equal(last.predict(x, 1), made[0].predict(x, 1))


@pytest.mark.parametrize("name", ["stl", "wsn", "ewc"])
def test_with_it_they_keep_the_contract(name: str) -> None:
    check_method(name, context=tiny_context(recipe=DEFAULT))


def test_masked_weights_of_earlier_tasks_are_bit_identical_under_an_average() -> None:
    method: Any = make("wsn", tiny_context(recipe=replace(TINY, average=1.0)))
    first, second, third = tiny_tasks()
    method.learn(first)
    used, before = method.masks.used(), {n: w.detach().clone() for n, w in method.weights().items()}
    for task in (second, third):
        method.learn(task)
    for name, weight in method.weights().items():
        assert torch.equal(weight.detach()[used[name]], before[name][used[name]])


def test_tables_show_runs_of_another_recipe_apart() -> None:
    def named(**recipe: Any) -> str:
        cell = Cell("wsn", "digits", "digits-net", recipe=recipe)
        return trained_by(Record.of({"cell": cell.canonical(), "resolved": cell.resolved(), "rows": []}))

    assert sorted(SHOWN) == sorted(BEYOND_PAPER)
    assert named() == named(lr=1e-2) == ""
    assert named(automatic=["average", "dropout"]) == "default recipe"
    assert named(average=0.5, exact_statistics=True) == "average=0.5, exact_statistics=true"
    plain, other = (Cell("wsn", "digits", "digits-net", recipe=r) for r in ({}, {"automatic": ["average"]}))
    assert plain.name != other.name


def test_the_recipe_is_settled_for_the_examples_of_the_task() -> None:
    task = tiny_tasks()[0]
    assert network.recipe_of(tiny_context(), task) == TINY
    assert network.recipe_of(tiny_context(recipe=DEFAULT), task).average == 0.5
