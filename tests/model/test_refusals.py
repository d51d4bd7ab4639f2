"""Bad input: one typed error that says what to do, and a learner that is as it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Halrp, Learner, Recipe, WarmUp
from halrp.errors import (
    BatchOfOneError,
    BudgetTooSmall,
    DataError,
    DivergedError,
    HeadError,
    LabelError,
    ModelError,
    SettingError,
    TaskError,
    UnknownTaskError,
)
from tests.helpers import FAST, digest, drawn, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)
X, Y = tiny_task("conv", 1)
NAN = X.clone()
NAN[3, 0, 0, 0] = float("nan")


def loader(x: Tensor, y: Tensor, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(x, y), batch_size=batch)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "name used twice": ({"name": "a"}, TaskError, r"'a' is already learned.*choose another name"),
    "no name": ({"name": ""}, TaskError, r"non-empty string"),
    "name of another type": ({"name": 3}, TaskError, r"non-empty string, got 3"),
    "label out of range": ({"classes": 2}, LabelError, r"b: train: label 2 does not fit classes=2.*classes=3"),
    "validation label out of range": ({"val": (X, Y + 1)}, LabelError, r"b: val: label 3.*classes=3"),
    "negative label": ({"train": (X, Y - 1)}, LabelError, r"labels run from -1"),
    "float label": ({"train": (X, Y.float())}, LabelError, r"class indices, got torch\.float32"),
    "not a number": ({"train": (NAN, Y)}, DataError, r"1 of 24 inputs hold NaN.*clean or drop"),
    "not a number in validation": ({"val": (NAN, Y)}, DataError, r"b: val: 1 of 24"),
    "not a number in a loader": ({"train": loader(NAN, Y, 6)}, DataError, r"hold NaN"),
    "empty": ({"train": (X[:0], Y[:0])}, DataError, r"empty"),
    "lengths": ({"train": (X, Y[:5])}, DataError, r"24 inputs but 5 targets"),
    "one example": ({"train": (X[:1], Y[:1])}, BatchOfOneError, r"batch of one example.*two or more"),
    "loader with a remainder of one": ({"train": loader(X[:13], Y[:13], 4)}, BatchOfOneError, r"drop_last=True"),
    "loader of single examples": ({"train": loader(X, Y, 1)}, BatchOfOneError, r"two or more"),
    "inputs of another shape": ({"train": (X[:, :2], Y)}, ModelError, r"fails on inputs of shape .*check the inputs"),
    "inputs of another type": (
        {"train": (X.double(), Y)},
        DataError,
        r"train: the inputs are torch\.float64.*x\.to\(torch\.float32\)",
    ),
}


def state(learner: Learner) -> list[Any]:
    tasks = [(name, id(delta)) for name, delta in learner.tasks.items()]
    base = learner._committed.body
    return [
        tasks,
        learner._committed.base is None,
        digest(base.module),
        base.fingerprint,
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture(scope="module")
def learner() -> Learner:
    learner = Learner(net("conv"), recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("conv", 0))
    return learner


@pytest.mark.parametrize("case", BAD)
def test_a_bad_task_is_refused_and_the_learner_is_as_it_was(case: str, learner: Learner) -> None:
    arguments, error, message = BAD[case]
    before = state(learner)
    with pytest.raises(error, match=message) as caught:
        learner.learn(**{"name": "b", "train": (X, Y), **arguments})
    assert type(caught.value) is error
    assert state(learner) == before


def test_single_examples_with_batch_norm_are_refused_and_without_it_learned() -> None:
    single = Recipe(epochs=2, batch=1)
    with pytest.raises(BatchOfOneError, match="batch size 1"):
        Learner(net("conv"), recipe=single, method=ROOMY).learn("a", (X, Y))
    learner = Learner(net("mlp"), recipe=single, method=ROOMY)
    learner.learn("a", tiny_task("mlp", 0, examples=4))
    learner.learn("b", tiny_task("mlp", 1, examples=1, classes=1))


@pytest.mark.parametrize("use", ["predict", "module", "export"])
def test_an_unknown_task_is_refused_with_those_that_are_known(use: str, learner: Learner) -> None:
    calls: dict[str, Callable[[str | None], Any]] = {
        "predict": lambda task: learner.predict(X, task),
        "module": learner.module,
        "export": learner.export,
    }
    with pytest.raises(UnknownTaskError, match=r"^no task named 'birds' has been learned; learned: 'a'$"):
        calls[use]("birds")


@pytest.mark.parametrize("task", [None, "a"])
@pytest.mark.parametrize("use", ["predict", "module", "export"])
def test_before_the_first_task_there_is_nothing_to_use(use: str, task: str | None) -> None:
    fresh = Learner(net("conv"), recipe=FAST)
    with pytest.raises(UnknownTaskError, match=r"no base yet|none yet"):
        fresh.predict(X, task) if use == "predict" else getattr(fresh, use)(task)


def test_predicting_nothing_is_refused(learner: Learner) -> None:
    with pytest.raises(DataError, match="at least one example"):
        learner.predict(X[:0], "a")


class Outputs(nn.Module):
    """A net whose output is changed by a function."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.fc, self.change = nn.Linear(10, 12), nn.Linear(12, 3), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.fc(self.body(x).relu()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y.unsqueeze(1), r"outputs of shape \(2, 1, 3\); classification takes 2 dimensions"),
        (lambda y: y[:, :2], r"outputs of shape \(2, 2\)"),
        (lambda y: (y, y), r"gives a tuple of 2, not a tensor"),
        (lambda y: y.sum(), r"outputs of shape \(\)"),
    ],
)
def test_an_output_that_is_not_one_logit_per_class_is_refused(change: Callable[[Tensor], Any], message: str) -> None:
    learner = Learner(drawn(lambda: Outputs(change)), recipe=FAST, method=ROOMY)
    before = state(learner)
    with pytest.raises(ModelError, match=message + r".*Learner\(\.\.\., (head|output)="):
        learner.learn("a", tiny_task("mlp", 0))
    assert state(learner) == before


def test_a_head_in_the_middle_of_the_model_is_refused() -> None:
    learner = Learner(net("mlp"), head="2", recipe=FAST, method=ROOMY)
    with pytest.raises(ModelError, match=r"head of 3 classes at '2'.*'2' is the layer that makes the logits"):
        learner.learn("a", tiny_task("mlp", 0))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"head": "nothing"}, HeadError, r"no module named 'nothing'.*could serve"),
        ({"head": "1"}, HeadError, r"'1' is a ReLU"),
        ({"base": "second"}, SettingError, r"base='second'.*'first' or 'given'"),
        ({"recipe": Recipe(epochs=1)}, SettingError, r"epochs=1.*warm_up=1.*give more epochs"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_trained(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Learner(net("mlp"), **settings)


@pytest.mark.parametrize("unit", ["bytes", "parameters"])
@pytest.mark.parametrize("kind", ["conv", "mlp", "transformer"])
def test_a_budget_too_small_names_the_minimum_which_then_suffices(kind: str, unit: str) -> None:
    def learner(bound: int) -> Learner:
        method = Halrp.budget(bound) if unit == "bytes" else Halrp.budget(parameters_per_task=bound)
        return Learner(net(kind), recipe=FAST, method=method, base="given")

    small = learner(20)
    before = state(small)
    task = tiny_task(kind, 0)
    with pytest.raises(BudgetTooSmall, match=rf"20 {unit} per task is too small.*largest: .*raise it") as caught:
        small.learn("a", task)
    assert state(small) == before
    match = re.search(r"at least ([\d,]+)", str(caught.value))
    assert match is not None
    minimum = int(match[1].replace(",", ""))
    delta = learner(minimum).learn("a", task)
    assert getattr(delta, unit) <= minimum
    with pytest.raises(BudgetTooSmall):
        learner(minimum - 1).learn("a", task)


@pytest.mark.parametrize("base", ["first", "given"])
def test_training_that_diverges_is_reported_and_leaves_no_trace(base: Any) -> None:
    method = replace(ROOMY, start=WarmUp())
    learner = Learner(net("mlp"), recipe=Recipe(epochs=3, batch=8, lr=1e25), method=method, base=base)
    before = state(learner)
    with pytest.raises(DivergedError, match=r"a: the loss became (nan|inf) in epoch .*lower Recipe\(lr="):
        learner.learn("a", tiny_task("mlp", 0))
    assert state(learner) == before


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = net("mlp")
    model.lock = cast(Any, threading.Lock())
    with pytest.raises(ModelError, match=r"cannot be copied.*copy\.deepcopy"):
        Learner(model)


def test_a_model_that_writes_to_its_buffers_in_evaluation_mode_is_refused() -> None:
    class Drifting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(10, 12), nn.Linear(12, 3)
            self.mean = nn.Buffer(torch.zeros(12))

        def forward(self, x: Tensor) -> Any:
            y = self.body(x)
            self.mean.lerp_(y.detach().mean(0), 0.1)
            return self.fc(y - self.mean)

    learner = Learner(drawn(Drifting), recipe=FAST, method=ROOMY)
    with pytest.raises(ModelError, match=r"mean: the model writes to this buffer.*only if self\.training"):
        learner.learn("a", tiny_task("mlp", 0))
