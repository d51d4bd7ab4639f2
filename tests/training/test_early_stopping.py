"""Early stopping gives the best epoch, and balanced sampling draws classes evenly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Learner, Progress, Recipe
from halrp.errors import CheckpointWarning, SettingError
from halrp.training.batches import InMemory
from halrp.training.checkpoint import Checkpoints
from halrp.training.stopping import Validation
from tests.helpers import FAST, digest, net, tiny_task
from tests.training.runs import METHOD, recipe, training


class Scores:
    """Validation with scores that a test gives."""

    def __init__(self, *scores: tuple[float, float]) -> None:
        self.rest = iter(scores)
        self.parameters: list[list[Tensor]] = []

    def __call__(self, module: nn.Module) -> Validation:
        assert not module.training
        self.parameters.append([p.detach().clone() for p in module.parameters()])
        score, loss = next(self.rest)
        return Validation(loss, score)


@pytest.mark.parametrize(
    ("scores", "epochs", "best"),
    [
        ([(0.5, 1.0), (0.7, 1.0), (0.6, 0.1), (0.7, 1.0), (0.9, 0.0)], 4, 2),
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.8), (0.5, 0.9), (0.4, 0.1), (0.0, 0.0)], 5, 3),
        ([(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.4, 1.0), (0.5, 1.0), (0.6, 1.0)], 6, 6),
    ],
)
@pytest.mark.parametrize("ema", [None, 0.9])
def test_training_stops_without_a_better_epoch_and_gives_the_best(
    scores: list[tuple[float, float]], epochs: int, best: int, ema: float | None
) -> None:
    module, validate = net("mlp"), Scores(*scores)
    reports: list[Progress] = []
    run = training(module, recipe(epochs=6, patience=2, ema=ema), validate=validate, notify=reports.append).run()
    assert run.epoch == len(validate.parameters) == epochs
    assert [(r.validation_score, r.validation_loss) for r in reports] == scores[:epochs]
    assert all(map(torch.equal, module.parameters(), validate.parameters[best - 1]))


def test_an_interrupted_search_for_the_best_epoch_is_resumed(tmp_path: Path) -> None:
    scores = [(0.5, 1.0), (0.7, 1.0), (0.6, 0.1), (0.7, 1.0), (0.9, 0.0)]
    settings = recipe(epochs=6, patience=2)
    for until in (1, 2, 3, 4):
        whole, second = net("conv"), net("conv")
        training(whole, settings, "conv", validate=Scores(*scores)).run()
        checkpoints = Checkpoints(tmp_path / str(until), "key")
        training(net("conv"), settings, "conv", validate=Scores(*scores), checkpoints=checkpoints).run(until)
        rest = Scores(*scores[until:])
        training(second, settings, "conv", validate=rest, checkpoints=checkpoints).run()
        assert digest(second) == digest(whole)
        assert len(rest.parameters) == 4 - until


@pytest.mark.parametrize(
    "best", [None, [-1, 1.0, 0.5], [3, 1.0, 0.5], [1, float("nan"), 0.5], [1, 1.0], "1", [1.5, 1, 1]]
)
def test_a_best_epoch_that_cannot_be_is_set_aside(best: Any, tmp_path: Path) -> None:
    settings, checkpoints = recipe(epochs=6, patience=2), Checkpoints(tmp_path, "key")
    training(net("mlp"), settings, validate=Scores((0.1, 1.0), (0.2, 1.0)), checkpoints=checkpoints).run(2)
    loaded = checkpoints.load("s", 10**9)
    assert loaded is not None
    checkpoints.save("s", loaded[0], loaded[1] | {"best": best})
    with pytest.warns(CheckpointWarning, match="best epoch is"):
        assert training(net("mlp"), settings, validate=Scores(), checkpoints=checkpoints).epoch == 0


def test_the_tensors_of_the_best_epoch_are_checked(tmp_path: Path) -> None:
    settings, checkpoints = recipe(epochs=6, patience=2), Checkpoints(tmp_path, "key")
    training(net("mlp"), settings, validate=Scores((0.1, 1.0)), checkpoints=checkpoints).run(1)
    loaded = checkpoints.load("s", 10**9)
    assert loaded is not None
    del loaded[0]["best/parameter/1"]
    checkpoints.save("s", *loaded)
    with pytest.warns(CheckpointWarning, match="lacks parameter/1"):
        assert training(net("mlp"), settings, validate=Scores(), checkpoints=checkpoints).epoch == 0


def test_a_learner_commits_the_best_epoch(tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(0)
    x, y = tiny_task("mlp", examples=60)
    val = tiny_task("mlp", examples=60)
    y = torch.where(torch.rand(60, generator=noise) < 0.5, torch.randint(3, (60,), generator=noise), y)
    settings = Recipe(epochs=40, batch=10, lr=3e-2, patience=5, schedule="constant")
    reports: list[Progress] = []
    learner = Learner(net("mlp"), method=METHOD, recipe=settings, progress=reports.append)
    learner.learn("a", (x, y), val=val)
    measured = [(report.validation_score or 0.0, -(report.validation_loss or 0.0)) for report in reports]
    assert 5 < len(measured) < 40
    assert measured.index(max(measured)) == len(measured) - 6
    logits = learner.predict(val[0], "a")
    assert float((logits.argmax(1) == val[1]).double().mean()) == pytest.approx(max(measured)[0])
    assert float(F.cross_entropy(logits, val[1])) == pytest.approx(-max(measured)[1], rel=1e-5)
    learner.learn("b", (x, y), val=val)
    stages = {report.stage for report in reports if report.validation_score is not None}
    assert "warm-up" not in stages
    assert any(stage.startswith("fine-tune") for stage in stages)


def test_patience_without_validation_data_is_refused_before_training() -> None:
    learner = Learner(net("mlp"), method=METHOD, recipe=dataclasses.replace(FAST, patience=2))
    with pytest.raises(SettingError, match=r"birds: Recipe\(patience=2\).*no validation data; give val="):
        learner.learn("birds", tiny_task("mlp"))
    assert not learner.tasks
    with pytest.raises(SettingError, match="no validation data"):
        training(net("mlp"), recipe(patience=2))


def rare() -> tuple[Tensor, Tensor]:
    """The last class has 2 of 60 examples, and no class is sorted."""
    x, y = tiny_task("mlp", examples=60)
    y = torch.where((y == 2) & (torch.arange(60) > 6), 0, y)
    return x, y


def labels_seen(settings: Recipe) -> Tensor:
    seen: list[Tensor] = []

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return F.cross_entropy(module(x), y)

    training(net("mlp"), settings, data=InMemory(*rare()), hooks={"loss": loss}).run()
    return torch.cat(seen).bincount()


def test_balanced_sampling_draws_every_class_equally_often() -> None:
    plain, balanced = labels_seen(recipe(epochs=10)), labels_seen(recipe(epochs=10, balanced=True))
    assert plain.tolist() == [380, 200, 20]
    assert balanced.sum() == 600
    # The mean of 600 even draws of three classes is 200, its standard deviation 11.5.
    assert (balanced - 200).abs().max() < 40
    assert labels_seen(recipe(epochs=10, balanced=True)).tolist() == balanced.tolist()


def test_balanced_sampling_needs_classes_in_memory() -> None:
    data = tiny_task("mlp")
    learner = Learner(net("mlp"), method=METHOD, recipe=dataclasses.replace(FAST, balanced=True))
    with pytest.raises(SettingError, match=r"birds: Recipe\(balanced=True\).*WeightedRandomSampler"):
        learner.learn("birds", DataLoader(TensorDataset(*data), batch_size=8))
    assert not learner.tasks
    for targets in (torch.rand(24), torch.zeros(24, 2, dtype=torch.long)):
        with pytest.raises(SettingError, match=r"birds: Recipe\(balanced=True\) needs one class per example"):
            training(net("mlp"), recipe(balanced=True), data=InMemory(data[0], targets))
    learner.learn("birds", data)
