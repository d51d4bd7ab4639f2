"""The modules before all that a task changes are computed once for each example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import FromProbe, Halrp, Learner, Recipe
from halrp.method.front import Front
from halrp.training.run import TaskRun
from tests.helpers import CLASSES, drawn

LAYERS, WIDTH = 12, 16
METHOD = Halrp.budget(growth_per_task=0.9)
RECIPE = Recipe(epochs=3, batch=8, lr=5e-3)
FRONT = tuple(f"blocks.{number}" for number in range(LAYERS - 8))
"""The blocks before the last eight."""


class Block(nn.Module):
    """A layer that gives a tensor, or a tuple with a tensor."""

    def __init__(self, in_tuple: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout, self.in_tuple = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout), in_tuple

    def forward(self, x: Tensor) -> Any:
        """x (N, width), changed a little."""
        y = x + self.dropout(torch.tanh(self.linear(x)))
        return (y,) if self.in_tuple else y


class Chain(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, in_tuple: bool = False, **settings: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(in_tuple, **settings) for _ in range(LAYERS))
        self.fc = nn.Linear(WIDTH, CLASSES)

    def shortcut(self, x: Tensor, early: Tensor, inputs: Tensor) -> Tensor:
        """What reaches the head: the last block's output, and perhaps the second's."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        inputs, x = x, torch.relu(self.stem(x))
        early = x
        for number, block in enumerate(self.blocks):
            given = block(x)
            x = given[0] if isinstance(given, tuple) else given
            early = x if number == 1 else early
        logits: Tensor = self.fc(self.shortcut(x, early, inputs))
        return logits


class WithShortcut(Chain):
    """The second block's output reaches the head."""

    def shortcut(self, x: Tensor, early: Tensor, inputs: Tensor) -> Tensor:
        return x + early


class WithRareShortcut(Chain):
    """The same, but only where a batch has a larger number than the first rows."""

    def shortcut(self, x: Tensor, early: Tensor, inputs: Tensor) -> Tensor:
        return x + early if inputs.max() > data()[0][:4].max() else x


class OfRows(Chain):
    """Rows that depend on the others in their batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) if self.training else x)


class Encoder(Chain):
    """Rows (N, length, width), weighed by what the shape of an early block's output says; their mean has a class."""

    def shortcut(self, x: Tensor, early: Tensor, inputs: Tensor) -> Tensor:
        weights = torch.ones(early.shape[:2], dtype=early.dtype, device=early.device).cumsum(1)
        return (x * weights[:, :, None]).mean(1) / early.size(1)


def data(seed: int = 0, examples: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(examples) % CLASSES
    pattern = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
    return pattern[y] + torch.randn(examples, WIDTH, generator=generator), y


class Seen:
    """The fronts that are looked for inside a block, and the tasks for which."""

    fronts: list[Front | None]
    runs: list[TaskRun]


@contextmanager
def watching(used: bool = True) -> Iterator[Seen]:
    seen, original = Seen(), Front.of
    seen.fronts, seen.runs = [], []

    def of(net: nn.Module, run: TaskRun, near: Any) -> Front | None:
        seen.fronts.append(original(net, run, near) if used else None)
        seen.runs.append(run)
        return seen.fronts[-1]

    with patch.object(Front, "of", staticmethod(of)):
        yield seen


def learned(build: Callable[[], nn.Module] = Chain, recipe: Recipe = RECIPE, **settings: Any) -> Learner:
    method = replace(METHOD, start=FromProbe(reach=settings.pop("reach", 1e-9)))
    learner = Learner(drawn(build), base="given", head="fc", recipe=recipe, method=method, progress=None)
    settings = {"train": data(), "val": data(2)} | settings
    learner.learn("a", **settings)
    return learner


@pytest.mark.parametrize("in_tuple", [False, True])
def test_what_it_holds_is_what_its_last_module_gives(in_tuple: bool) -> None:
    with watching() as seen:
        learner = learned(partial(Chain, in_tuple))
    (front,) = seen.fronts
    assert front is not None
    assert front.chain.paths == FRONT
    net: Any = learner._committed.ready.module
    for (x, _), rows in ((data(), front.train), (data(2), front.val)):
        x = torch.relu(net.stem(x))
        for block in net.blocks[: len(FRONT)]:
            x = block(x)[0] if in_tuple else block(x)
        assert rows is not None
        torch.testing.assert_close(rows, x)


@pytest.mark.parametrize(
    "build", [Chain, partial(Chain, True), WithShortcut, WithRareShortcut], ids=["chain", "tuples", "shortcut", "rare"]
)
def test_a_task_is_the_same_with_it_and_without(build: Callable[[], nn.Module]) -> None:
    x, _ = data(3)
    with watching() as seen:
        ours = learned(build)
    with watching(used=False):
        plain = learned(build)
    (front,) = seen.fronts
    assert front is not None
    assert front.chain.paths == (FRONT[:2] if build is WithShortcut else FRONT)
    assert ours.tasks["a"].ranks == plain.tasks["a"].ranks
    torch.testing.assert_close(ours.predict(x, "a"), plain.predict(x, "a"), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(ours.predict(x, "a"), ours.predict(x, None), atol=1e-2)


def test_a_model_may_ask_for_shapes_inside_which_training_and_validation_data_have_of_their_own() -> None:
    (x, y), (xv, yv) = data(), data(2)
    given: dict[str, Any] = {"train": (x[:, None].repeat(1, 3, 1), y), "val": (xv[:, None].repeat(1, 2, 1), yv)}
    with watching() as seen:
        ours = learned(Encoder, **given)
    with watching(used=False):
        plain = learned(Encoder, **given)
    (front,) = seen.fronts
    assert front is not None
    assert front.chain.paths == FRONT
    assert {shape[0]: {kind.shape[0] for kind in kinds} for shape, kinds in front.chain.kinds.items()} == {
        3: {3},
        2: {2},
    }
    assert ours.tasks["a"].ranks == plain.tasks["a"].ranks
    torch.testing.assert_close(ours.predict(xv[:, None], "a"), plain.predict(xv[:, None], "a"), rtol=1e-3, atol=1e-3)


def test_forward_passes_inside_are_left_out() -> None:
    computed = Counter[str]()

    class Counting(Block):
        name = ""

        def forward(self, x: Tensor) -> Any:
            computed[self.name] += 1
            return super().forward(x)

    def build() -> nn.Module:
        net = Chain()
        for number in range(LAYERS):
            block = net.blocks[number] = Counting()
            block.name = f"blocks.{number}"
        return net

    counts = []
    for epochs in (2, 6):
        computed.clear()
        learned(build, replace(RECIPE, epochs=epochs))
        counts.append(dict(computed))
    more = {name: counts[1][name] - counts[0][name] for name in computed}
    assert more == {f"blocks.{n}": 0 if f"blocks.{n}" in FRONT else 4 * 40 // RECIPE.batch for n in range(LAYERS)}


def test_the_models_modules_have_their_own_forward_afterwards() -> None:
    learner = learned()
    nets = [learner._committed.ready.module, learner.module("a"), learner.export("a")]
    assert not [name for net in nets for name, module in net.named_modules() if "forward" in vars(module)]


def shifted(x: Any, generator: torch.Generator) -> Any:
    """An augmentation."""
    return x + 0.1 * torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (partial(Chain, dropout=0.1), {}),
        (OfRows, {}),
        (Chain, {"augment": shifted}),
        (Chain, {"train": DataLoader(TensorDataset(*data()), batch_size=8)}),
        (Chain, {"recipe": replace(RECIPE, autocast=torch.bfloat16)}),
        (Chain, {"recipe": replace(RECIPE, checkpoint_activations="cheap")}),
    ],
    ids=["dropout", "rows", "augmentation", "loader", "precision", "activations"],
)
def test_there_is_none_where_rows_may_be_others_in_every_epoch(
    build: Callable[[], nn.Module], settings: dict[str, Any]
) -> None:
    with watching() as seen:
        learned(build, **settings)
    assert seen.fronts == [None]


def test_there_is_none_where_the_rows_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.method.front.MOST_BYTES", 80 * WIDTH * 4 - 1)
    with watching() as seen:
        learned()
    assert seen.fronts == [None]


def test_there_is_none_where_a_task_changes_all_layers() -> None:
    with watching() as seen:
        learned(reach=1.0)
    assert seen.fronts == [None]


def test_a_layer_whose_weight_a_task_changes_elsewhere_is_not_part_of_it() -> None:
    def build() -> nn.Module:
        net = Chain()
        tied: Any = net.blocks
        tied[LAYERS - 1].linear.weight = tied[1].linear.weight
        return net

    with watching() as seen:
        learned(build)
    front = seen.fronts[0]
    assert front is None or "blocks.1" not in front.chain.paths


def test_an_interrupted_task_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def interrupt(at: Any) -> None:
        if at.stage.startswith("fine-tune") and at.epoch == 2:
            raise KeyboardInterrupt

    def learner(store: str, progress: Any = None) -> Learner:
        method = replace(METHOD, start=FromProbe(reach=1e-9))
        return Learner(
            drawn(Chain),
            base="given",
            head="fc",
            recipe=RECIPE,
            method=method,
            store=tmp_path / store,
            progress=progress,
        )

    with watching() as seen:
        expected = learner("one")
        expected.learn("a", data(), val=data(2))
        with pytest.raises(KeyboardInterrupt):
            learner("two", interrupt).learn("a", data(), val=data(2))
        again = learner("two")
        again.learn("a", data(), val=data(2))
    assert len(seen.fronts) == 3
    assert None not in seen.fronts
    x, _ = data(3)
    assert torch.equal(expected.predict(x, "a"), again.predict(x, "a"))
