"""A task is a function of the seed, the base and its own data: order, company and history leave no trace."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from halrp import Delta, Halrp, Learner, Progress, WarmUp
from halrp.errors import BudgetTooSmall, DivergedError
from halrp.training.recipe import Recipe
from tests.helpers import FAST, digest, net, tiny_task
from tests.test_forgetting import tensors

ROOMY = Halrp.budget(growth_per_task=0.9)


def learned(kind: str, order: Iterable[int], seed: int = 0, base: Any = "first", **settings: Any) -> dict[str, Delta]:
    learner = Learner(net(kind), recipe=FAST, method=ROOMY, seed=seed, base=base, **settings)
    for number in order:
        x, y = tiny_task(kind, number, examples=16, classes=2 + number % 3)
        learner.learn(f"t{number}", (x, y), val=(x, y))
    return dict(learner.tasks)


def same(first: Delta, other: Delta) -> bool:
    a, b = tensors(first), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) and first.view == other.view


@pytest.mark.parametrize("kind", ["conv", "transformer", "gru"])
def test_later_tasks_in_another_order_or_alone_are_bit_identical(kind: str) -> None:
    straight = learned(kind, [0, 1, 2, 3])
    shuffled = learned(kind, [0, 3, 1, 2])
    alone = learned(kind, [0, 2])
    assert all(same(straight[name], shuffled[name]) for name in straight)
    assert same(straight["t2"], alone["t2"])


def test_with_a_given_base_all_tasks_commute() -> None:
    straight = learned("conv", [0, 1, 2], base="given")
    reversed_ = learned("conv", [2, 1, 0], base="given")
    assert all(same(straight[name], reversed_[name]) for name in straight)


def test_another_seed_gives_other_deltas() -> None:
    first, other = learned("mlp", [0, 1], base="given"), learned("mlp", [0, 1], base="given", seed=1)
    assert not same(first["t1"], other["t1"])


def test_another_name_gives_another_delta() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY, base="given")
    assert not same(learner.learn("a", tiny_task("mlp", 0)), learner.learn("b", tiny_task("mlp", 0)))


def test_the_state_of_the_global_generators_does_not_matter() -> None:
    before = learned("transformer", [0, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        after = learned("transformer", [0, 1])
    assert same(before["t1"], after["t1"])


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Examples with noise from the generators of Python and numpy, as some augmentations draw it."""

    def __init__(self) -> None:
        self.x, self.y = tiny_task("mlp", 1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = random.gauss(0, 0.1) + np.random.normal(0, 0.1)  # noqa: NPY002
        return self.x[index] + noise, self.y[index]


def test_augmentations_that_draw_from_python_and_numpy_are_functions_of_the_names_too() -> None:
    deltas = []
    for _ in range(2):
        learner = Learner(net("mlp"), recipe=FAST, method=ROOMY, base="given")
        deltas.append(learner.learn("a", DataLoader(Augmented(), batch_size=8, shuffle=True)))
        random.random()
        np.random.random()  # noqa: NPY002
    assert same(*deltas)


def global_state() -> list[Any]:
    """All that a library call must leave as it was, apart from the model."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy[1].tolist(),
        numpy[2],
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
    ]


def model_state(model: torch.nn.Module) -> list[Any]:
    parameters = [(n, p.requires_grad, p.grad is None, id(p), p.stride()) for n, p in model.named_parameters()]
    return [digest(model), parameters, [(n, m.training, type(m)) for n, m in model.named_modules()]]


def base_state(learner: Learner) -> list[Any]:
    """All that a task that fails must leave as it was in the learner."""
    base = learner._committed.body
    tasks = {name: id(delta) for name, delta in learner.tasks.items()}
    return [learner._committed.base is None, digest(base.module), base.fingerprint, base.module.training, tasks]


class Stop(BaseException):
    """An interrupt that no `except Exception` catches."""


def use(learner: Learner) -> None:
    x, y = tiny_task("conv", 0)
    learner.learn("a", (x, y))
    learner.learn("b", DataLoader(Augmented3(), batch_size=8, shuffle=True), val=(x, y))
    learner.predict(x, "b")
    learner.module("b")
    learner.export("b")


class Augmented3(Augmented):
    def __init__(self) -> None:
        self.x, self.y = tiny_task("conv", 1)


@pytest.mark.parametrize("training", [True, False])
def test_no_call_changes_the_model_or_any_global_state(training: bool) -> None:
    model = net("conv").train(training)
    next(model.parameters()).requires_grad_(False)
    model.get_submodule("norm").train(not training)
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    before = [global_state(), model_state(model)]
    use(Learner(model, recipe=FAST, method=ROOMY))
    assert [global_state(), model_state(model)] == before


@pytest.mark.parametrize("stage", ["base", "warm-up", "fine-tune"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, RuntimeError])
def test_an_interrupted_task_leaves_no_trace_and_can_be_learned_again(stage: str, error: type[BaseException]) -> None:
    armed = True

    def progress(at: Progress) -> None:
        if armed and at.stage.startswith(stage) and (stage == "base" or at.task == "b"):
            raise error

    model = net("conv")
    learner = Learner(model, recipe=FAST, method=ROOMY, progress=progress)
    if stage != "base":
        learner.learn("a", tiny_task("conv", 0))
    name = "a" if stage == "base" else "b"
    data = tiny_task("conv", 0 if stage == "base" else 1)
    before = [global_state(), model_state(model), base_state(learner)]
    with pytest.raises(error):
        learner.learn(name, data, val=data)
    assert [global_state(), model_state(model), base_state(learner)] == before
    armed = False
    again = learner.learn(name, data, val=data)
    fresh = Learner(net("conv"), recipe=FAST, method=ROOMY)
    if stage != "base":
        fresh.learn("a", tiny_task("conv", 0))
    assert same(again, fresh.learn(name, data, val=data))
    assert digest(learner._committed.ready.module) == digest(fresh._committed.ready.module)


def test_an_interrupt_while_the_base_is_committed_leaves_no_base(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY)
    before = base_state(learner)

    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halrp.seeding.fingerprint", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn("a", tiny_task("mlp", 0))
    assert base_state(learner) == before
    assert learner._committed.base is None
    assert not learner.tasks
    learner.learn("a", tiny_task("mlp", 0))
    fresh = Learner(net("mlp"), recipe=FAST, method=ROOMY)
    fresh.learn("a", tiny_task("mlp", 0))
    assert digest(learner._committed.ready.module) == digest(fresh._committed.ready.module)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"recipe": Recipe(epochs=2, batch=8, lr=1e20), "method": replace(ROOMY, start=WarmUp())}, DivergedError),
        ({"recipe": FAST, "method": Halrp.budget(10)}, BudgetTooSmall),
    ],
)
def test_a_task_that_fails_leaves_no_trace(settings: dict[str, Any], error: type[Exception]) -> None:
    model = net("mlp")
    learner = Learner(model, base="given", **settings)
    before = [global_state(), model_state(model), base_state(learner)]
    with pytest.raises(error):
        learner.learn("a", tiny_task("mlp", 0))
    assert [global_state(), model_state(model), base_state(learner)] == before


def test_learning_inside_no_grad_and_under_another_default_type_is_the_same() -> None:
    expected = learned("mlp", [0, 1])
    with torch.no_grad():
        assert same(expected["t1"], learned("mlp", [0, 1])["t1"])
    model, tasks = net("mlp"), [tiny_task("mlp", n, examples=16, classes=2 + n % 3) for n in range(2)]
    torch.set_default_dtype(torch.float64)
    try:
        learner = Learner(model, recipe=FAST, method=ROOMY)
        for number, task in enumerate(tasks):
            learner.learn(f"t{number}", task, val=task)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(expected["t1"], learner.tasks["t1"])
