"""What stays in memory while a task is learned: the base once, and what the task owns."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from halrp import Halrp, Learner, Progress, Recipe
from halrp.model.base import Base
from halrp.training.loop import Training
from tests.helpers import FAST, drawn, net, tiny_task


def test_the_warmed_up_network_is_gone_when_fine_tuning_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[weakref.ref[Any]] = []
    trainable = Base.trainable

    def recorded(self: Base, *arguments: Any) -> nn.Module:
        module = trainable(self, *arguments)
        free.extend(weakref.ref(part) for part in (module, *module.parameters()))
        return module

    monkeypatch.setattr(Base, "trainable", recorded)
    alive: list[int] = []

    def progress(at: Progress) -> None:
        if at.stage.startswith("fine-tune"):
            alive.append(sum(reference() is not None for reference in free))

    learner = Learner(net("conv"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST, base="given")
    learner.progress = progress
    learner.learn("a", tiny_task("conv"), val=tiny_task("conv", 1))
    assert len(free) > 5
    assert set(alive) == {0}


def test_a_view_that_was_not_chosen_is_gone_when_the_other_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: dict[str, weakref.ref[Training]] = {}
    make = Training.__init__

    def recorded(self: Training, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        trainings[self.stage.name] = weakref.ref(self)

    monkeypatch.setattr(Training, "__init__", recorded)
    last: dict[str, bool] = {}

    def progress(at: Progress) -> None:
        if at.stage.startswith("fine-tune") and at.epoch == at.epochs:
            last.update({name: training() is not None for name, training in trainings.items()})

    method = replace(Halrp.budget(growth_per_task=0.9), trial=0.5)
    learner = Learner(net("conv"), method=method, recipe=replace(FAST, epochs=5), base="given", progress=progress)
    view = learner.learn("a", tiny_task("conv"), val=tiny_task("conv", 1)).view
    other = {"mean": "full", "full": "mean"}[view]
    assert last == {"warm-up": False, f"fine-tune: {view}": True, f"fine-tune: {other}": False}


def bytes_of_tensors() -> int:
    """Bytes of all memory that tensors hold, their gradients included."""
    gc.collect()
    storages = {}
    for tensor in [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]:
        for part in (tensor, tensor.grad if tensor.is_leaf else None):
            if part is not None and not part.is_meta:
                storages[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("base", ["first", "given"])
def test_fine_tuning_needs_the_base_once_and_little_more(base: Any) -> None:
    width = 256
    model = drawn(
        lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 3))
    )
    x, y = torch.zeros(8, width), torch.arange(8) % 3
    size = sum(parameter.nbytes for parameter in model.parameters())
    before, during = bytes_of_tensors(), list[int]()

    def progress(at: Progress) -> None:
        if at.task == "b" and at.stage.startswith("fine-tune") and at.epoch == at.epochs:
            during.append(bytes_of_tensors() - before)

    method = Halrp.budget(growth_per_task=0.05)
    learner = Learner(model, method=method, recipe=Recipe(epochs=3, batch=4), base=base, progress=progress)
    for name in "ab":
        learner.learn(name, (x, y), val=(x, y))
    # The task's 5 % of factors, with their start, gradients and two moments, on top of the base.
    assert len(during) == 1
    assert size < during[0] < 1.5 * size
    assert bytes_of_tensors() - before < 1.3 * size


def test_a_finished_training_leaves_no_gradients() -> None:
    gradients: list[bool] = []
    method = replace(Halrp.budget(growth_per_task=0.9), importance=Watching(gradients))
    Learner(net("mlp"), method=method, recipe=FAST, base="given").learn("a", tiny_task("mlp"))
    assert gradients == [False]


class Watching:
    """An importance that looks for gradients of the warmed-up network."""

    counts_kernel = True

    def __init__(self, gradients: list[bool]) -> None:
        self.gradients = gradients

    def __call__(self, module: nn.Module, weights: Any, data: Any, batch: int) -> Any:
        self.gradients.append(any(parameter.grad is not None for parameter in module.parameters()))
        return {name: weight.new_ones(()) for name, weight in weights.items()}
