"""Heads of a user's own classes, and models whose outputs are not the logits alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from halrp import Halrp, Learner, Recipe, WarmUp, Whitened, explain
from halrp.errors import DataError, DivergedError, HeadError, ModelError, SettingError, UnknownTaskError
from tests.helpers import CLASSES, FAST, drawn, net, tiny_task

METHOD = Halrp.budget(growth_per_task=0.9)


class PlainLinear(nn.Linear):
    """As in timm's MobileNets: a subclass whose forward is that of nn.Linear, in other words."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


class Cosine(nn.Linear):
    """A head with a forward, a signature and a setting of its own."""

    def __init__(self, scale: float, width: int, classes: int) -> None:
        super().__init__(width, classes, bias=False)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(input), F.normalize(self.weight))


class OwnConv(nn.Conv2d):
    """A convolution as a head."""


HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: PlainLinear(12, CLASSES),
    "without bias": lambda: PlainLinear(12, CLASSES, bias=False),
    "cosine": lambda: Cosine(8.0, 12, CLASSES),
}


def mlp(head: Callable[[], nn.Module]) -> nn.Module:
    return drawn(lambda: nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), head()))


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_of_a_subclass_is_rebuilt_for_each_task_with_its_own_forward(kind: str, tmp_path: Path) -> None:
    learner = Learner(mlp(HEADS[kind]), method=METHOD, recipe=replace(FAST, epochs=40))
    assert learner.head == "4"
    for number, name in enumerate("abc"):
        learner.learn(name, tiny_task("mlp", number, classes=2 + number))
    x, y = tiny_task("mlp", 2, classes=4)
    assert (learner.predict(x, "c").argmax(1) == y).float().mean() > 0.6  # a quarter by chance
    head: Any = learner.export("c").get_submodule("4")
    assert isinstance(head, nn.Linear)
    assert type(head) is type(mlp(HEADS[kind]).get_submodule("4"))
    assert head.out_features == 4
    assert getattr(head, "scale", 8.0) == 8.0
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, mlp(HEADS[kind]))
    assert torch.equal(loaded.predict(x, "c"), learner.predict(x, "c"))


@pytest.mark.parametrize("kind", HEADS)
def test_mixed_batches_use_the_forward_of_a_subclass(kind: str) -> None:
    learner = Learner(mlp(HEADS[kind]), method=METHOD, recipe=FAST)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number, classes=2 + number))
    x = tiny_task("mlp", 5)[0]
    mixed = learner.predict(x, ["a", "b"] * (len(x) // 2))
    for row, name in ((0, "a"), (1, "b")):
        alone = learner.predict(x[row::2], name)
        # The same sums in another order: a few roundings of float32.
        torch.testing.assert_close(mixed[row::2, : alone.shape[1]], alone, rtol=1e-5, atol=1e-5)


def test_a_convolution_of_a_subclass_is_a_head_too() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), OwnConv(8, CLASSES, 1)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.head(self.conv(x).relu()).mean((2, 3)))

    learner = Learner(drawn(Model), head="head", method=METHOD, recipe=FAST, base="given")
    learner.learn("a", tiny_task("conv", classes=5))
    head: Any = learner.export("a").get_submodule("head")
    assert (type(head), head.out_channels) == (OwnConv, 5)


def test_a_convolution_that_could_be_the_head_is_named_where_none_is_found() -> None:
    with pytest.raises(HeadError, match=r"'1', is a Conv2d, not an nn.Linear; .*layers that could serve: 1$"):
        Learner(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 3, 1)))


class Spare(nn.Module):
    """The last layer is not the one that makes the outputs, which is read without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc, self.spare = nn.Linear(10, 12), nn.Linear(12, CLASSES), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x).relu(), self.fc.weight, self.fc.bias)


@pytest.mark.parametrize("base", ["given", "first"])
def test_a_head_that_takes_no_part_in_the_outputs_is_refused_before_training(
    base: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn(Spare)
    model.get_submodule("spare").requires_grad_(False)
    Learner(model, head="fc", recipe=FAST, base=base).learn("a", tiny_task("mlp"))
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    for head in (None, "spare"):
        with pytest.raises(HeadError, match="a: the model's outputs do not depend on its head 'spare'"):
            Learner(model, head=head, recipe=FAST, base=base).learn("a", tiny_task("mlp"))


class WithTemperature(nn.Linear):
    """A head with a parameter besides weight and bias."""

    def __init__(self) -> None:
        super().__init__(12, CLASSES)
        self.temperature = nn.Parameter(torch.ones(()))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "another parameter": (WithTemperature, "is a WithTemperature with temperature besides weight and bias"),
    "a parametrization": (
        lambda: weight_norm(nn.Linear(12, CLASSES)),
        r"is a ParametrizedLinear with parametrizations.*remove_parametrizations",
    ),
    "another kind": (lambda: nn.Bilinear(12, 12, CLASSES), "is a Bilinear; it must be an nn.Linear"),
}


@pytest.mark.parametrize("named", [None, "4"])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_head_that_cannot_be_rebuilt_is_refused_without_contradiction(kind: str, named: str | None) -> None:
    build, message = REFUSED[kind]
    model = mlp(build)
    with pytest.raises(HeadError, match=message) as error:
        Learner(model, head=named)
    assert "layers that could serve: 0, 2" in str(error.value)
    assert error.value.args[0] in str(explain(model, named))


class Outputs(NamedTuple):
    """What torchvision's GoogLeNet gives in training mode."""

    logits: Tensor
    aux: Tensor


class Auxiliary(nn.Module):
    """A net with an auxiliary output in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.aux, self.fc = nn.Linear(10, 12), nn.Linear(12, 5), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Any:
        hidden = self.hidden(x).relu()
        return Outputs(self.fc(hidden), self.aux(hidden)) if self.training else self.fc(hidden)


@pytest.mark.parametrize("base", ["first", "given"])
def test_a_tuple_in_training_mode_is_refused_before_training(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    learner = Learner(drawn(Auxiliary), method=METHOD, recipe=FAST, base=base)
    with pytest.raises(ModelError, match=r"a: in training mode the model gives a Outputs.*aux_logits=False"):
        learner.learn("a", tiny_task("mlp"))


def test_a_head_beside_the_logits_that_nothing_trains_is_refused() -> None:
    class Both(Auxiliary):
        def forward(self, x: Tensor) -> Any:
            hidden = self.hidden(x).relu()
            return Outputs(self.fc(hidden), self.aux(hidden))

    with pytest.raises(ModelError, match=r"aux\.weight had no gradient"):
        Learner(drawn(Both), method=METHOD, recipe=FAST).learn("a", tiny_task("mlp"))


@pytest.fixture(scope="module")
def learned() -> Learner:
    learner = Learner(net("mlp"), method=METHOD, recipe=FAST, base="given")
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number))
    return learner


X = tiny_task("mlp")[0]
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a list": ({"x": X.tolist()}, DataError, r"x\[0\] is a list; .*torch\.as_tensor"),
    "an array": ({"x": X.numpy()}, DataError, r"x is a ndarray; .*torch\.as_tensor"),
    "a number": ({"x": torch.tensor(1.0)}, DataError, "single number"),
    "no rows": ({"x": X[:0]}, DataError, "no rows"),
    "no values": ({"x": X.to("meta")}, DataError, "meta"),
    "too narrow": ({"x": X[:, :7]}, DataError, r"shape \(24, 7\) and type torch\.float32"),
    "another type": ({"x": X.double()}, DataError, r"type torch\.float64"),
    "whole numbers": ({"x": X.long()}, DataError, r"type torch\.int64"),
    "batch 0": ({"batch": 0}, SettingError, "batch=0"),
    "batch below zero": ({"batch": -1}, SettingError, "batch=-1"),
    "batch as a text": ({"batch": "8"}, SettingError, "batch='8'"),
    "batch as a truth value": ({"batch": True}, SettingError, "batch=True"),
    "half a batch": ({"batch": 1.5}, SettingError, "batch=1.5"),
    "a number as a task": ({"task": 1}, UnknownTaskError, "task is a int"),
    "numbers as tasks": ({"task": [0, 1] * 12}, UnknownTaskError, "0 among the tasks is no name"),
    "a task that is not there": ({"task": "c"}, UnknownTaskError, "no task named 'c'"),
    "too few tasks": ({"task": ["a", "b"]}, DataError, "2 tasks for 24 rows"),
    "mixed and too narrow": ({"x": X[:, :7], "task": ["a", "b"] * 12}, DataError, r"shape \(24, 7\)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_predicted_is_refused_by_type(kind: str, learned: Learner) -> None:
    arguments, error, message = WRONG[kind]
    with pytest.raises(error, match=message):
        learned.predict(**{"x": X, "task": "a", **arguments})


def test_names_of_tasks_may_be_an_array_as_a_list_or_a_tuple(learned: Learner) -> None:
    names = np.array(["a", "b"] * 12)
    expected = learned.predict(X, names.tolist())
    assert torch.equal(learned.predict(X, tuple(names.tolist())), expected)


@pytest.mark.parametrize("lr", [1e6, 1e12, 1e20, 1e30])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_learning_rate_that_is_far_too_high_is_reported_as_divergence(kind: str, lr: float) -> None:
    for method in (replace(METHOD, start=WarmUp()), replace(METHOD, decompose=Whitened())):
        learner = Learner(net(kind), method=method, recipe=Recipe(epochs=2, batch=8, lr=lr), base="given")
        with pytest.raises(DivergedError, match=r"lower (Recipe\(lr=|the learning rate)"):
            learner.learn("a", tiny_task(kind), val=tiny_task(kind, 1))
