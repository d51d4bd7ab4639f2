"""Models that keep something outside parameters and buffers are refused by name, and leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import Halrp, Learner
from halrp.errors import ModelError
from halrp.training.loop import Training
from tests.helpers import FAST, digest, drawn, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)


class Net(nn.Module):
    """A hidden layer and a head; a subclass adds something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(10, 12), nn.Linear(12, 3)

    def between(self, y: Tensor) -> Tensor:
        return y

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.between(self.body(x)).relu()))


class MovingAverage(Net):
    """Subtracts a moving average that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(12)

    def between(self, y: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class Counter(Net):
    """Scales by how often it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = {"train": 0}

    def between(self, y: Tensor) -> Tensor:
        self.calls["train"] += self.training
        return y * (1 + self.calls["train"])


class Late(Net):
    """Begins to keep a moving average after some steps, which a single step does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.shift = nn.Buffer(torch.zeros(())), 0.0

    def between(self, y: Tensor) -> Tensor:
        if self.training:
            self.steps.add_(1)
            if self.steps > 3:
                self.shift += 1.0
        return y + self.shift


class Cache(Net):
    """Mixes the batch before into this one."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | float = 0.0

    def between(self, y: Tensor) -> Tensor:
        before, self.last = self.last, y.detach().mean()
        return y + before


class AlwaysDropout(Net):
    """Forgets `training=self.training`."""

    def between(self, y: Tensor) -> Tensor:
        return F.dropout(y)


class Rebound(Net):
    """Replaces its buffer in evaluation mode."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))

    def between(self, y: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class Calls(nn.Module):
    """Calls its body through a plain attribute, which a copy does not copy."""

    call: Callable[[Tensor], Tensor]

    def __init__(self, kind: str, frozen: bool = False) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(10, 12), nn.Linear(12, 3)
        body = nn.Linear(10, 12).requires_grad_(not frozen)
        if kind == "lambda":
            self.call = lambda x: body(x)
        elif kind == "self":
            self.call = lambda x: self.body(x)
        elif kind == "partial":
            self.call = partial(F.linear, weight=body.weight)
        else:
            self.layers = [body]

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x) if hasattr(self, "layers") else self.call(x)
        return cast(Tensor, self.fc((y + 0 * self.body(x)).relu()))


class Unused(Net):
    """Has a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(12, 12)
        self.fc = cast(nn.Linear, self._modules.pop("fc"))  # a head is the last layer


class Detached(Net):
    """Uses a weight in a way that gives it no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(F.linear(x, self.body.weight.data, self.body.bias).relu()))


EARLY: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "moving average": (MovingAverage, r"mean changed in training and is neither parameter nor buffer; make it an nn\."),
    "counter": (Counter, r"calls changed in training and is neither parameter nor buffer"),
    "cache": (Cache, r"other outputs when it sees the same rows again: last changed meanwhile"),
    "dropout": (
        AlwaysDropout,
        r"same rows again: does it draw random numbers.*F\.dropout needs training=self\.training",
    ),
    "rebound buffer": (Rebound, r"mean: the model writes to this buffer in evaluation mode.*only if self\.training"),
    "lambda": (partial(Calls, "lambda"), r"computes, through call, with a parameter of shape \(12, 10\) that is not"),
    "frozen lambda": (partial(Calls, "lambda", frozen=True), r"computes, through call, with a parameter"),
    "self in a lambda": (partial(Calls, "self"), r"computes, through call, with a parameter"),
    "partial": (partial(Calls, "partial"), r"computes, through call, with a parameter"),
    "list of layers": (partial(Calls, "list"), r"computes, through layers, with a parameter.*nn\.ModuleList"),
}
LATE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "late moving average": (Late, r"shift changed in training and is neither parameter nor buffer"),
    "unused layer": (Unused, r"spare\.weight had no gradient in training.*requires_grad_\(False\)"),
    "detached weight": (Detached, r"body\.weight had no gradient in training"),
}
REFUSED = EARLY | LATE


def state(learner: Learner) -> list[Any]:
    base = learner._committed.body
    return [list(learner.tasks), learner._committed.base is None, digest(base.module), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("base", ["first", "given"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_model_with_state_of_its_own_is_refused_by_name_and_leaves_no_trace(
    case: str, base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, message = REFUSED[case]
    trained: list[Training] = []
    original = Training.run

    def run(training: Training, *until: int) -> Training:
        trained.append(training)
        return original(training, *until)

    monkeypatch.setattr(Training, "run", run)
    model = drawn(build)
    before_model = digest(model)
    learner = Learner(model, method=ROOMY, recipe=FAST, base=base, store=tmp_path / "store")
    before = state(learner)
    with pytest.raises(ModelError, match=message):
        learner.learn("a", tiny_task("mlp", 0))
    assert state(learner) == before
    assert digest(model) == before_model
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not (tmp_path / "store" / "manifest.json").exists()
    # At the probe gradients are taken before anything trains.
    assert bool(trained) is (case in LATE and (base == "first" or case == "late moving average"))


def test_a_refused_learner_can_still_learn_what_is_right() -> None:
    class Sometimes(Net):
        """Keeps a plain attribute only for large inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.peak = torch.zeros(())

        def between(self, y: Tensor) -> Tensor:
            if self.training:
                self.peak = torch.maximum(self.peak, (y.detach().abs().max() - 50).clamp(min=0))
            return y + self.peak

    learner = Learner(drawn(Sometimes), method=ROOMY, recipe=FAST)
    x, y = tiny_task("mlp", 0)
    with pytest.raises(ModelError, match="peak changed in training"):
        learner.learn("a", (1000 * x, y))
    learner.learn("a", (x, y))
    with pytest.raises(ModelError, match="peak changed in training"):
        learner.learn("b", (1000 * x, y))
    expected = learner.predict(x, "a")
    learner.learn("b", (x, y))
    assert torch.equal(learner.predict(x, "a"), expected)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: nn.Sequential(nn.Linear(10, 12), nn.Dropout(), nn.Linear(12, 3)), id="dropout"),
        pytest.param(lambda: nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)), id="batch norm"),
    ],
)
def test_ordinary_state_is_not_refused(build: Callable[[], nn.Module]) -> None:
    learner = Learner(drawn(build), method=ROOMY, recipe=FAST)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number))


def test_a_shared_layer_that_is_not_used_is_no_reason_to_refuse() -> None:
    model = drawn(Unused)
    model.get_submodule("spare").requires_grad_(False)
    learner = Learner(model, method=ROOMY, recipe=FAST)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("mlp", number))
