"""Activations that are computed again: the same bits in less memory, with no more products than are asked for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from halrp import Halrp, Learner
from halrp.errors import SettingError
from halrp.store import task_file
from halrp.training.activations import DEAR, Again
from tests.helpers import CLASSES, FAST, digest, net, tiny_task
from tests.training.runs import METHOD, recipe, training

AGAIN: list[Again] = [True, "cheap"]


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """The bytes of every tensor that autograd keeps for a backward pass."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


class Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


class OwnCheckpointing(nn.Sequential):
    """A model that can compute its activations again, as those of transformers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.calls: list[str] = []

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        self.calls.append(f"enable {gradient_checkpointing_kwargs}")

    def gradient_checkpointing_disable(self) -> None:
        self.calls.append("disable")


class Wide(nn.Module):
    """Blocks of a convolution with many products, a batch norm, and a ReLU that writes over its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(self.block() for _ in range(3)))
        self.fc = nn.Linear(16, CLASSES)

    @staticmethod
    def block() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        logits: Tensor = self.fc(features)
        return logits


@pytest.mark.parametrize("again", AGAIN)
def test_activations_are_computed_again_and_the_result_is_bit_identical(again: Again) -> None:
    results, sizes = [], []
    for setting in (False, again):
        module = net("transformer")
        run = training(module, recipe(checkpoint_activations=setting), "transformer")
        with saved_bytes() as saved:
            run.run()
        results.append(digest(module))
        sizes.append(sum(saved))
        assert not any("forward" in vars(m) for m in module.modules())
    assert results[0] == results[1]
    assert sizes[1] < 0.5 * sizes[0]


def test_running_statistics_count_each_batch_once() -> None:
    plain = trained(Wide(), False)
    for again in AGAIN:
        module = trained(Wide(), again)
        assert digest(module) == digest(plain)
        assert [m.num_batches_tracked for m in norms(module)] == [m.num_batches_tracked for m in norms(plain)]


@pytest.mark.parametrize(("again", "convolutions"), [(False, 4), ("cheap", 4), (True, 7)])
def test_cheap_keeps_the_results_of_convolutions(again: Any, convolutions: int) -> None:
    assert DEAR <= 16 * 9
    module = Wide()
    run = training(module, recipe(checkpoint_activations=again, epochs=1), "conv")
    with Counted() as counted:
        run.run()
    assert counted.calls["aten::convolution"] % convolutions == 0
    assert counted.calls["aten::convolution"] // convolutions == norms(module)[0].num_batches_tracked
    assert all(m.inplace for m in module.modules() if isinstance(m, nn.ReLU))


def test_a_model_that_checkpoints_its_activations_itself_is_asked_to() -> None:
    module = OwnCheckpointing(*net("mlp").children())
    training(module, recipe(checkpoint_activations=True)).run()
    assert module.calls == ["enable {'use_reentrant': False}", "disable"]
    training(module, recipe(checkpoint_activations="cheap")).run()
    assert len(module.calls) == 2


@pytest.mark.parametrize("base", ["first", "given"])
@pytest.mark.parametrize("again", AGAIN)
def test_a_learner_checkpoints_activations_and_commits_the_same_bits(again: Again, base: Any) -> None:
    files = []
    for setting in (False, again):
        settings = dataclasses.replace(FAST, checkpoint_activations=setting)
        method = METHOD if base == "first" else Halrp.budget(bytes_per_task=20_000)
        learner = Learner(net("transformer"), method=method, recipe=settings, base=base)
        for number, name in enumerate("ab"):
            learner.learn(name, tiny_task("transformer", number))
        x, _ = tiny_task("transformer", 1)
        files.append((learner.predict(x, "a"), learner.predict(x, "b"), task_file.write(learner.tasks["b"])))
    assert torch.equal(files[0][0], files[1][0])
    assert torch.equal(files[0][1], files[1][1])
    assert files[0][2] != files[1][2]  # the setting is recorded


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(10, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.hidden(x).relu())


def test_activations_that_cannot_be_computed_again_are_refused_by_name() -> None:
    itself = OwnCheckpointing(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, CLASSES))
    with pytest.raises(SettingError, match=r"1 \(BatchNorm1d\) would count every batch twice"):
        training(itself, recipe(checkpoint_activations=True))
    for again in AGAIN:
        with pytest.raises(SettingError, match=f"{again!r}\\): Flat has neither gradient_checkpointing_enable nor an"):
            training(Flat(), recipe(checkpoint_activations=again))


def trained(module: nn.Module, again: Any) -> nn.Module:
    """A module after a training on images."""
    training(module, recipe(checkpoint_activations=again), "conv").run()
    return module


def norms(module: nn.Module) -> list[Any]:
    return [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
