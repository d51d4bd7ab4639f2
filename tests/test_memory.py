"""What stays in memory while a task is learned: the base once, and what the task owns."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from halrp import FromProbe, Halrp, Learner, Progress, Recipe, WarmUp
from halrp.method.weight_gradients import Sketched
from halrp.model.base import Base
from halrp.model.per_task import PerTask
from halrp.training.loop import Training
from tests.helpers import FAST, address, drawn, net, tiny_task


@pytest.mark.parametrize(("start", "copy"), [(WarmUp(), "trainable"), (FromProbe(), "owning_copy")])
def test_the_warmed_up_network_is_gone_when_fine_tuning_begins(
    start: Any, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[weakref.ref[Any]] = []
    trainable = getattr(Base, copy)

    def recorded(self: Base, *arguments: Any) -> nn.Module:
        module: nn.Module = trainable(self, *arguments)
        free.extend(weakref.ref(part) for part in (module, *module.parameters()))
        return module

    monkeypatch.setattr(Base, copy, recorded)
    alive: list[int] = []

    def progress(at: Progress) -> None:
        if at.stage.startswith("fine-tune"):
            alive.append(sum(reference() is not None for reference in free))

    method = replace(Halrp.budget(growth_per_task=0.9), start=start)
    learner = Learner(net("conv"), method=method, recipe=FAST, base="given")
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

    method = replace(Halrp.budget(growth_per_task=0.9), trial=0.5, start=WarmUp())
    learner = Learner(net("conv"), method=method, recipe=replace(FAST, epochs=5), base="given", progress=progress)
    view = learner.learn("a", tiny_task("conv"), val=tiny_task("conv", 1)).view
    other = {"mean": "full", "full": "mean"}[view]
    assert last == {"warm-up": False, f"fine-tune: {view}": True, f"fine-tune: {other}": False}


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Let the garbage collector look at objects that are made from now on: all that is loaded are some millions."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


WIDTH = 251
"""Of a layer whose size no other tensor has."""


def weights_in_memory() -> int:
    """How many pieces of memory are as large as the weight of such a layer; gradients included."""
    gc.collect()
    addresses = set()
    tensors = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor)]
    for tensor in (value for value in tensors if type(value) is not PerTask):  # which has no memory of its own
        for part in (tensor, tensor.grad if tensor.is_leaf else None):
            if part is not None and not part.is_meta and part.untyped_storage().nbytes() == 4 * WIDTH**2:
                addresses.add(address(part))
    return len(addresses)


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("base", ["first", "given"])
def test_while_fine_tuning_the_base_is_in_memory_once(base: Any) -> None:
    layers = (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
    model = drawn(lambda: nn.Sequential(*layers))
    x, y = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    during: list[int] = []

    def progress(at: Progress) -> None:
        if at.task == "b" and at.stage.startswith("fine-tune") and at.epoch == at.epochs:
            during.append(weights_in_memory())

    method = Halrp.budget(growth_per_task=0.05)
    learner = Learner(model, method=method, recipe=Recipe(epochs=3, batch=4), base=base, progress=progress)
    for name in "ab":
        learner.learn(name, (x, y), val=(x, y))
    assert during == [4]  # two layers of the user's model, and of the base
    assert weights_in_memory() == 4


@pytest.mark.usefixtures("only_new_objects")
def test_a_start_at_the_probe_has_the_base_once_and_one_gradient_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.method.weight_gradients.SUMMED", 0)  # gradients of layers this small would be summed
    layers = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = drawn(lambda: nn.Sequential(*layers, nn.Linear(WIDTH, 3)))
    x, y = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    counts: list[int] = []
    add = Sketched.add

    def recorded(self: Sketched, *arguments: Any) -> None:
        counts.append(weights_in_memory())
        add(self, *arguments)

    monkeypatch.setattr(Sketched, "add", recorded)

    def progress(at: Progress) -> None:
        counts.append(weights_in_memory())

    method = replace(Halrp.budget(parameters_per_task=9000), start=FromProbe(components=2))
    learner = Learner(model, method=method, recipe=Recipe(epochs=3, batch=4), base="given", progress=progress)
    learner.learn("a", (x, y))
    # Four layers of the user's model and of the base; a gradient, and the gradient times the size of its batch.
    assert len(counts) > 10
    assert max(counts) <= 10


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
