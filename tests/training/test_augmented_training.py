"""Augmentation in the training loop: what it sees, what it draws from, and what it must give back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Halrp, Learner, Progress, Recipe, Store, seeding
from halrp.errors import DataError, SettingError
from halrp.provenance import describe
from halrp.training.batches import InMemory
from halrp.training.loop import Group, Hooks, Stage, Training
from tests.helpers import digest, drawn, net, tiny_task
from tests.store.stores import snapshot

SEED_KEY = (0, "base", "task", "stage")
RECIPE = Recipe(epochs=3, batch=8, lr=5e-3)
METHOD = Halrp.budget(growth_per_task=0.9)


@dataclass(frozen=True)
class Noise:
    """An augmentation with a setting."""

    size: float = 0.5

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        return x + self.size * torch.randn(x.shape, generator=generator)


def training(module: nn.Module, augment: Any) -> Training:
    data = InMemory(*tiny_task("conv"))
    groups = [Group(list(module.parameters()))]
    return Training(module, groups, data, RECIPE, Stage(3, SEED_KEY, "birds"), Hooks(augment=augment))


def test_every_batch_is_augmented_with_draws_of_its_epoch() -> None:
    ours, theirs = net("conv"), net("conv")
    training(ours, Noise()).run()
    x, y = tiny_task("conv")
    optimiser = torch.optim.Adam(theirs.parameters(), fused=True)
    theirs.train()
    for epoch in range(3):
        generator = seeding.generator(*SEED_KEY, "augment", epoch)
        order = torch.randperm(24, generator=seeding.generator(*SEED_KEY, "order", epoch))
        for step, rows in enumerate(order.split(8)):
            optimiser.param_groups[0]["lr"] = RECIPE.rate(3 * epoch + step, 9, 8, 24)
            optimiser.zero_grad()
            F.cross_entropy(theirs(Noise()(x[rows], generator)), y[rows]).backward()
            optimiser.step()
    assert digest(ours) == digest(theirs)
    plain = net("conv")
    training(plain, None).run()
    assert digest(plain) != digest(ours)


def test_an_augmentation_that_does_nothing_changes_nothing() -> None:
    plain, same = net("conv"), net("conv")
    training(plain, None).run()
    training(same, lambda x, generator: x).run()
    assert digest(plain) == digest(same)


def test_a_run_in_parts_draws_as_one_run_and_the_global_generator_stays() -> None:
    whole, parts, state = net("conv"), net("conv"), torch.get_rng_state()
    training(whole, Noise()).run()
    run = training(parts, Noise())
    run.run(until=1)
    run.run()
    assert digest(whole) == digest(parts)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_augmentation_may_write_to_its_input_without_changing_the_data(shuffle: bool) -> None:
    x, y = tiny_task("conv")
    original = x.clone()
    learner = Learner(net("conv"), method=METHOD, recipe=Recipe(epochs=2, batch=8, shuffle=shuffle))
    learner.learn("a", (x, y), augment=lambda x, generator: x.mul_(0.5))
    assert torch.equal(x, original)


def test_augmentation_keeps_no_gradient() -> None:
    factor = nn.Parameter(torch.ones(()))
    seen: list[Tensor] = []

    def augment(x: Tensor, generator: Generator) -> Tensor:
        seen.append(x * factor)
        return seen[-1]

    training(net("conv"), augment).run()
    assert len(seen) == 9
    assert not any(x.requires_grad for x in seen)


class RecordingNet(nn.Module):
    """Notes the mean of its inputs in each mode."""

    seen: ClassVar[dict[bool, list[float]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.body = net("conv")

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and len(x) == 2):  # what the check before training shows to a copy of the model
            self.seen[self.training].append(float(x.mean()))
        logits: Tensor = self.body(x)
        return logits


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("held_out", [False, True])
def test_all_stages_train_on_augmented_inputs_and_nothing_else_sees_them(held_out: bool, loader: bool) -> None:
    RecordingNet.seen = {True: [], False: []}
    stages: list[str] = []

    def watch(at: Progress) -> None:
        stages.append(at.stage)

    learner = Learner(drawn(RecordingNet), head="body.fc", method=METHOD, recipe=RECIPE, progress=watch)
    for name in "ab":
        task = tiny_task("conv", ord(name))
        source = DataLoader(TensorDataset(*task), batch_size=8) if loader else task
        learner.learn(name, source, val=task if held_out else None, augment=lambda x, generator: x * 0 + 100)
    expected = {"base", "warm-up", "fine-tune: mean", *(["fine-tune: full"] if held_out else [])}
    assert set(stages) == expected
    assert set(RecordingNet.seen[True]) == {100.0}
    assert len(RecordingNet.seen[True]) == 3 * len(stages)
    assert RecordingNet.seen[False]
    assert max(map(abs, RecordingNet.seen[False])) < 10


def test_an_augmented_task_does_not_depend_on_what_was_learned_before() -> None:
    def learn(names: str) -> Learner:
        learner = Learner(net("conv"), base="given", method=METHOD, recipe=RECIPE)
        for name in names:
            learner.learn(name, tiny_task("conv", ord(name)), augment=Noise())
        return learner

    x, _ = tiny_task("conv", 3)
    assert torch.equal(learn("ab").predict(x, "b"), learn("b").predict(x, "b"))


class Interrupt(BaseException):
    """What stops a process."""


def learn(store: Path, augment: Any, stop: int | None = None) -> list[tuple[str, int]]:
    """Learn two tasks as a script that is run again does; the finished epochs."""
    epochs: list[tuple[str, int]] = []

    def progress(at: Progress) -> None:
        if at.step == 0:
            epochs.append((at.stage, at.epoch))
            if len(epochs) == stop:
                raise Interrupt

    learner = Learner(
        net("conv"), method=METHOD, recipe=RECIPE, store=Store(store, checkpoint_every=0), progress=progress
    )
    for name in "ab":
        if name not in learner.tasks:
            learner.learn(name, tiny_task("conv", ord(name)), augment=augment)
    return epochs


@pytest.mark.parametrize("stop", [1, 4, 5])
def test_an_interrupted_task_goes_on_with_the_same_draws(tmp_path: Path, stop: int) -> None:
    whole = learn(tmp_path / "whole", Noise())
    with pytest.raises(Interrupt):
        learn(tmp_path / "parts", Noise(), stop)
    assert learn(tmp_path / "parts", Noise()) == whole[stop:]
    assert snapshot(tmp_path / "parts") == snapshot(tmp_path / "whole")


def test_another_augmentation_starts_an_interrupted_task_anew(tmp_path: Path) -> None:
    with pytest.raises(Interrupt):
        learn(tmp_path / "store", Noise(), 2)
    assert learn(tmp_path / "store", Noise(0.1))[0] == ("base", 1)


def test_a_task_tells_how_its_inputs_were_augmented(tmp_path: Path) -> None:
    learner = Learner(net("conv"), method=METHOD, recipe=RECIPE)
    learner.learn("a", tiny_task("conv"))
    learner.learn("b", tiny_task("conv", 1), augment=Noise(0.25))
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, net("conv")).tasks
    assert "augment" not in loaded["a"].provenance
    assert loaded["b"].provenance["augment"] == {"type": "Noise", "size": 0.25}


def test_functions_are_told_by_name_without_their_address() -> None:
    class Own:
        def __call__(self, x: Tensor, generator: Generator) -> Tensor:
            return x

    here = f"{__name__}.test_functions_are_told_by_name_without_their_address.<locals>"
    assert describe(Own()) == f"{here}.Own"
    assert describe(lambda x, generator: x) == f"{here}.<lambda>"
    assert describe(Own().__call__) == f"{here}.Own.__call__"
    assert describe(functools.partial(dict, 1, size=0.5)) == {
        "type": "functools.partial",
        "function": "builtins.dict",
        "arguments": [1],
        "keywords": {"size": 0.5},
    }
    assert describe(functools.partial(dict, torch.zeros(3)))["arguments"] == ["Tensor of torch.float32, shape (3,)"]


BAD: dict[str, tuple[Callable[[Tensor, Generator], Any], str]] = {
    "shape": (lambda x, generator: x[:, :, 1:], r"birds: augment changes the shape .*\[8, 3, 8, 8\].*\[8, 3, 7, 8\]"),
    "rows": (lambda x, generator: x[:-1], "shape"),
    "dtype": (lambda x, generator: x.double(), r"dtype .*torch.float32 to torch.float64"),
    "device": (lambda x, generator: x.to("meta"), r"device .*cpu to meta"),
    "nothing": (lambda x, generator: None, "gives NoneType"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_output_unlike_its_input_is_refused(case: str) -> None:
    augment, message = BAD[case]
    with pytest.raises(DataError, match=message):
        training(net("conv"), augment).run()
    learner = Learner(net("conv"), method=METHOD, recipe=RECIPE)
    with pytest.raises(DataError):
        learner.learn("birds", tiny_task("conv"), augment=augment)
    assert not learner.tasks


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(SettingError, match=r"birds: augment=3 cannot be called; give augment\(x, generator\)"):
        training(net("conv"), 3)
