"""What can be known before training is refused before training: nothing is built, trained or written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from halrp import Delta, Halrp, Learner, Recipe, explain
from halrp.errors import BudgetTooSmall, DataError, HalrpError, LabelError, ModelError, SettingError
from halrp.model.base import Base
from halrp.store import task_file
from tests.helpers import FAST, Pairs, drawn, net, tiny_task

X, Y = tiny_task("conv")


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a step is trained."""

    def train(*_: object) -> None:
        raise AssertionError("something is trained")

    monkeypatch.setattr("halrp.training.loop.Training.run", train)


@pytest.fixture
def unbuilt(untrained: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a network is built, too."""

    def build(*_: object) -> None:
        raise AssertionError("a network is built")

    monkeypatch.setattr(Base, "trainable", build)


def learner(method: Halrp | None = None, store: Path | None = None) -> Learner:
    return Learner(net("conv"), method=method, recipe=FAST, base="given", store=store)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    "method",
    [
        Halrp.budget(500),
        Halrp.budget(500, precision="float32", view="full"),
        Halrp.budget(bytes_total=2_000, tasks=4),
        Halrp.budget(parameters_per_task=30),
        Halrp.budget(growth_per_task=0.01),
    ],
    ids=str,
)
def test_a_budget_that_is_too_small_is_refused_before_anything_is_built(method: Halrp, tmp_path: Path) -> None:
    with pytest.raises(BudgetTooSmall, match="raise it to at least"):
        learner(method, tmp_path).learn("a", (X, Y), val=(X, Y))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unbuilt")
def test_a_head_that_no_budget_pays_for_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(BudgetTooSmall, match=r"fc\.weight"):
        learner(Halrp.budget(100_000)).learn("a", (X, Y), classes=10_000_000_000)  # 480 GB


def refused_or_learned(kind: str, base: Any, budget: int) -> Delta:
    """A task with a long name, learned on a base within a budget."""
    data = tiny_task(kind)
    learner = Learner(net(kind), recipe=Recipe(epochs=20, batch=128), base=base)
    if base == "first":
        learner.learn("first", data)
    learner.method = Halrp.budget(budget)
    return learner.learn("n" * 40, data, val=data)


@pytest.mark.parametrize("base", ["first", "given"])
@pytest.mark.parametrize("kind", ["conv", "mlp", "transformer", "grouped"])
def test_the_smallest_budget_of_the_error_suffices(kind: str, base: Any) -> None:
    with pytest.raises(BudgetTooSmall) as refused:
        refused_or_learned(kind, base, 10)
    named = re.search(r"raise it to at least ([\d,]+), use", str(refused.value))
    assert named is not None
    smallest = int(named[1].replace(",", ""))
    with pytest.raises(BudgetTooSmall):
        refused_or_learned(kind, base, smallest - 1)
    delta = refused_or_learned(kind, base, smallest)
    assert len(task_file.write(delta)) == delta.bytes <= smallest
    # For the default recipe, whose text also names every setting that it leaves open.
    stated = explain(net(kind), base=base).fixed_bytes
    assert stated is not None
    assert smallest <= stated < smallest + 256


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("classes", ["3", True, 0, -1, 2.0, 3.5, None.__class__, [3]], ids=repr)
def test_classes_that_are_no_number_are_refused(classes: Any) -> None:
    with pytest.raises(SettingError, match=r"a: train: classes=.* at least 1"):
        learner().learn("a", (X, Y), classes=classes)


def test_a_number_of_classes_from_numpy_is_one() -> None:
    four: Any = np.int64(4)
    assert learner(Halrp.budget(growth_per_task=0.9)).learn("a", (X, Y), classes=four).classes == 4


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 50], r"49 of 0 … 50 never occur, the first of them 1; pass classes=51 .* re-map the labels to 0 … 1"),
        ([1, 2], r"1 of 0 … 2 never occur, the first of them 0; pass classes=3"),
        ([0, 10_000_000], r"pass classes=10000001"),
        ([2**62], r"re-map the labels to 0 … 0"),
    ],
)
def test_labels_with_gaps_are_refused_without_a_number_of_classes(labels: list[int], message: str) -> None:
    y = torch.tensor(labels)[torch.arange(len(X)) % len(labels)]
    for source in ((X, y), torch.utils.data.DataLoader(Pairs(X, y), batch_size=5)):
        with pytest.raises(LabelError, match=message):
            learner().learn("a", source)


def test_labels_with_gaps_are_fine_with_a_number_of_classes() -> None:
    y = torch.tensor([0, 4])[torch.arange(len(X)) % 2]
    assert learner(Halrp.budget(growth_per_task=0.9)).learn("a", (X, y), classes=5).classes == 5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_any_whole_type_are_accepted(dtype: torch.dtype) -> None:
    assert learner(Halrp.budget(growth_per_task=0.9)).learn("a", (X, Y.to(dtype))).classes == 3


WRONG: dict[str, tuple[dict[str, Any], type[HalrpError], str]] = {
    "inputs in double precision": ({"train": (X.double(), Y)}, DataError, r"a: train: .*float64.*x\.to"),
    "inputs in half precision": ({"train": (X.half(), Y)}, DataError, r"a: train: .*float16.*x\.to"),
    "validation data in double precision": ({"val": (X.double(), Y)}, DataError, r"a: val: .*float64.*x\.to"),
    "validation data of another shape": ({"val": (X[:, :2], Y)}, ModelError, r"a: val: .*shape \(2, 2, 8, 8\)"),
    "validation data of fewer dimensions": ({"val": (X[0], Y[:3])}, ModelError, r"a: val: .*shape \(2, 8, 8\)"),
    "validation labels that do not fit": ({"val": (X, Y + 5)}, LabelError, "a: val: label 7"),
    "a loader of other shapes": (
        {"val": torch.utils.data.DataLoader(Pairs(X[:, :2], Y), batch_size=4)},
        ModelError,
        r"a: val: .*shape \(2, 2, 8, 8\)",
    ),
    "inputs without values": ({"train": (X.to("meta"), Y)}, DataError, "a: train: .*meta"),
    "labels without values": ({"train": (X, Y.to("meta"))}, DataError, "a: train: .*meta"),
}


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("base", ["first", "given"])
@pytest.mark.parametrize("kind", WRONG)
def test_data_that_the_model_cannot_take_are_refused_before_training(kind: str, base: Any, tmp_path: Path) -> None:
    changes, error, message = WRONG[kind]
    method = Halrp.budget(growth_per_task=0.9)
    learning = Learner(net("conv"), method=method, recipe=FAST, base=base, store=tmp_path)
    with pytest.raises(error, match=message):
        learning.learn("a", **({"train": (X, Y), "val": (X, Y)} | changes))
    assert not list(tmp_path.iterdir())
    assert not learning.tasks


def test_a_model_on_several_devices_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 20, device="meta"), nn.Linear(20, 3))
    message = r"several devices, .* on cpu and .* on meta; .*model\.to"
    with pytest.raises(ModelError, match=message):
        Learner(model)
    assert "several devices" in str(explain(model))


def test_a_model_without_values_is_refused_and_can_be_explained() -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3))).to("meta")
    with pytest.raises(ModelError, match=r"0\.weight: it is on the meta device"):
        Learner(model, recipe=Recipe())
    assert explain(model).fixed_bytes is not None
