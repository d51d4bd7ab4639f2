"""Models whose weights are tied, held twice, called twice, bare or parametrized, against dense references."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from halrp import Halrp, Learner, Plan
from halrp.model.factors import Factors
from halrp.model.layers.merged import ParametrizedRule
from halrp.model.layers.registry import Decision
from halrp.model.plan import plan
from halrp.model.views import clone, merged_view, task_view
from tests.helpers import FAST, drawn, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)


class Headed(nn.Module):
    """Parts with a head `fc` after them."""

    first_layer: Any
    two: Any
    conv: Any
    gru: Any

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.fc = nn.Linear(12, 3)


class Tied(Headed):
    """Two square layers, which a test may tie, under a head."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__(first_layer=nn.Linear(12, 12), two=nn.Linear(12, 12))
        if tie:
            self.two.weight = self.first_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.two(self.first_layer(x).tanh()).tanh()))


class Twice(Headed):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__(first_layer=nn.Linear(12, 12), conv=nn.Conv1d(1, 8, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first_layer(self.first_layer(x).tanh()).tanh()
        return cast(Tensor, self.fc(self.conv(y.unsqueeze(1)).mean(1)))


class Named(Twice):
    """One layer under two names, both of which are called."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.first_layer
        self.folded = nn.Sequential(self.conv)

    def forward(self, x: Tensor) -> Tensor:
        y = self.again(self.first_layer(x).tanh()).tanh()
        return cast(Tensor, self.fc(self.folded(y.unsqueeze(1)).mean(1)))


class Lists(nn.Module):
    """Bare parameters: in a list, in a dictionary and on the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.several = nn.ParameterList([nn.Parameter(torch.randn(12, 12) / 4) for _ in range(2)])
        self.named = nn.ParameterDict({"key": torch.randn(12, 12) / 4})
        self.direct = nn.Parameter(torch.randn(12, 12) / 4)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        for weight in (*self.several, self.named["key"], self.direct):
            x = (x @ weight).tanh()
        return cast(Tensor, self.fc(x))


class TiedInOne(Headed):
    """A recurrent layer, two of whose own weights are one parameter."""

    def __init__(self) -> None:
        super().__init__(gru=nn.GRU(6, 12, num_layers=2, batch_first=True))
        self.gru.weight_hh_l1 = self.gru.weight_hh_l0

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.gru(x.unflatten(1, (2, 6)))[0][:, -1]))


class Mine(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 2 * x @ self.weight.T


def subclassed() -> nn.Module:
    return nn.Sequential(Mine(12, 12), nn.Tanh(), nn.Linear(12, 3))


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "twice": Twice,
    "named": Named,
    "lists": Lists,
    "tied in one": TiedInOne,
    "mine": subclassed,
}


def random_factors(model: nn.Module, planned: Plan) -> dict[str, Factors]:
    """Trainable factors for every adapted parameter."""
    g = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> nn.Parameter:
        return nn.Parameter(1 + 0.3 * torch.randn(*shape, generator=g, dtype=torch.float64))

    return {
        n: Factors(draw(t.shape[0]), draw(t.shape[1]), draw(t.shape[0], 2), draw(2, t.shape[1]))
        for n, t in planned.named("adapted").items()
    }


@pytest.mark.parametrize("case", UNUSUAL)
def test_a_view_computes_and_differentiates_as_the_model_with_merged_weights(case: str) -> None:
    model = drawn(UNUSUAL[case]).double()
    planned = plan(model)
    factors = random_factors(model, planned)
    dense = copy.deepcopy(model)
    weights = dict(dense.named_parameters())
    with torch.no_grad():
        for name, part in factors.items():
            weights[name].copy_(part.merged(weights[name]))
    view = task_view(model, planned, factors, {})
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(view(x), dense(x), rtol=1e-10, atol=1e-12)
    view(x).square().sum().backward()
    dense(x).square().sum().backward()
    for name, part in factors.items():
        copies = part.map(lambda t: t.detach().clone().requires_grad_())
        copies.merged(model.get_parameter(name).detach()).backward(weights[name].grad)
        for tensor, expected in zip(part.tensors(), copies.tensors(), strict=True):
            torch.testing.assert_close(tensor.grad, expected.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_models_learn_and_export(case: str) -> None:
    model = drawn(UNUSUAL[case])
    x, y = torch.randn(12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
    learner = Learner(model, recipe=FAST, method=ROOMY)
    learner.learn("a", (x, y))
    learner.learn("b", (x, 2 - y))
    exported = learner.export("b")
    torch.testing.assert_close(exported(x), learner.predict(x, "b"), rtol=1e-5, atol=1e-6)
    assert [n for n, _ in exported.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert list(exported.state_dict()) == list(model.state_dict())


def test_tied_layers_are_adapted_together_through_the_merged_weight_and_stay_tied() -> None:
    model = drawn(Tied)
    planned = plan(model)
    parameter = planned.parameters["first_layer.weight"]
    assert parameter.aliases == ("first_layer.weight", "two.weight")
    assert not parameter.by_rule
    assert "tied" in parameter.reason
    assert "two.weight" not in planned.parameters
    factors = {n: f.map(lambda t: t.detach().float()) for n, f in random_factors(model, planned).items()}
    head = {n: model.get_parameter(n).detach() for n in ("fc.weight", "fc.bias")}
    exported = clone(merged_view(model, planned, factors, head, 3))
    assert exported.get_parameter("first_layer.weight") is exported.get_parameter("two.weight")


def test_a_module_under_two_names_keeps_its_rule() -> None:
    planned = plan(drawn(Named))
    assert planned.parameters["first_layer.weight"].by_rule
    assert planned.parameters["conv.weight"].by_rule


def test_a_subclass_goes_through_the_merged_weight() -> None:
    assert not plan(subclassed()).parameters["0.weight"].by_rule


def weight_normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(10, 12)), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))


def test_a_weight_normed_layer_has_its_directions_adapted_and_its_lengths_owned() -> None:
    model = drawn(weight_normed)
    planned = plan(model).parameters
    assert planned["0.parametrizations.weight.original0"].kind == "owned"
    assert planned["0.parametrizations.weight.original1"].kind == "adapted"
    assert "parametrized by the model" in planned["0.parametrizations.weight.original1"].reason
    learner = Learner(model, recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("mlp", 0))
    delta = learner.learn("b", tiny_task("mlp", 1))
    assert "0.parametrizations.weight.original1" in {*delta.factors, *delta.dense}
    x = tiny_task("mlp", 1)[0]
    torch.testing.assert_close(learner.export("b")(x), learner.predict(x, "b"), rtol=1e-5, atol=1e-6)


def test_a_store_whose_tasks_own_their_directions_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def owned(*_: Any) -> Decision:
        return Decision("owned", "other", "as an earlier version planned it")

    x = tiny_task("mlp", 1)[0]
    with monkeypatch.context() as earlier:
        earlier.setattr(ParametrizedRule, "plan", owned)
        learner = Learner(drawn(weight_normed), recipe=FAST, method=ROOMY, store=tmp_path, base="given")
        assert "plain/0.parametrizations.weight.original1" in learner.learn("a", tiny_task("mlp", 1)).precisions
        expected = learner.predict(x, "a")
    loaded = Learner.load(tmp_path, drawn(weight_normed), recipe=FAST, method=ROOMY)
    assert torch.equal(loaded.predict(x, "a"), expected)
    later = loaded.learn("b", tiny_task("mlp", 2))
    assert "0.parametrizations.weight.original1" in {*later.factors, *later.dense}
    rows = ["a", "b"] * (len(x) // 2)
    mixed = loaded.predict(x, rows)
    torch.testing.assert_close(mixed[::2], expected[::2], rtol=1e-5, atol=1e-5)
    again = Learner.load(tmp_path, drawn(weight_normed))
    assert torch.equal(again.predict(x, "a"), expected)


def test_a_head_under_two_names_is_found_by_either_and_replaced_in_both() -> None:
    class Alias(Tied):
        def __init__(self) -> None:
            super().__init__(tie=False)
            self.classifier = self.fc

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.classifier(self.two(self.first_layer(x).tanh())))

    x, y = torch.randn(12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(12)
    for name in (None, "fc", "classifier"):
        learner = Learner(drawn(Alias), head=name, recipe=FAST, method=ROOMY)
        assert learner.head == "fc"
        learner.learn("a", (x, y % 2))
        learner.learn("b", (x, y % 4))
        assert learner.predict(x, "a").shape == (12, 2)
        assert learner.predict(x, "b").shape == learner.export("b")(x).shape == (12, 4)


class RemembersActivations(nn.Module):
    """A net that keeps its activations, as many attention layers keep their maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first_layer = nn.Linear(10, 12)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.activations = self.first_layer(x).tanh()
        return cast(Tensor, self.fc(self.activations))


def test_a_model_that_keeps_activations_learns_task_after_task() -> None:
    learner = Learner(drawn(RemembersActivations), recipe=FAST, method=ROOMY)
    for task in range(3):
        learner.learn(f"t{task}", tiny_task("mlp", task))
    x = tiny_task("mlp", 2)[0]
    torch.testing.assert_close(learner.export("t2")(x), learner.predict(x, "t2"), rtol=1e-5, atol=1e-6)


class SharedStatistics(nn.Module):
    """Two norm layers that keep one tensor of running means."""

    def __init__(self) -> None:
        super().__init__()
        self.first_layer, self.first = nn.Linear(10, 12), nn.BatchNorm1d(12)
        self.two, self.second = nn.Linear(12, 12), nn.BatchNorm1d(12)
        self.second.running_mean = self.first.running_mean
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.second(self.two(self.first(self.first_layer(x)).relu())).relu()))


def test_a_buffer_held_twice_is_the_tasks_own_in_both_places() -> None:
    learner = Learner(drawn(SharedStatistics), recipe=FAST, method=ROOMY)
    x, y = tiny_task("mlp", 0)
    learner.learn("a", (x, y))
    before = learner.predict(x, "a")
    learner.learn("b", (x + 3, y))
    assert torch.equal(learner.predict(x, "a"), before)
    view = learner.module("b")
    means = [view.get_buffer(f"{layer}.running_mean") for layer in ("first", "second")]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], learner.module("a").get_buffer("first.running_mean"))


def test_convolutions_of_different_dimensions_in_one_model() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv3d(1, 8, 3, padding=1)
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.fc(self.deep(self.flat(x).relu().unsqueeze(1)).mean((2, 3, 4))))

    learner = Learner(drawn(Mixed), recipe=FAST, method=ROOMY)
    for task in range(2):
        learner.learn(f"t{task}", tiny_task("conv", task, examples=8))
    assert learner.predict(tiny_task("conv", 1)[0], "t1").isfinite().all()


def test_a_model_with_state_of_its_own_kind_can_be_the_base() -> None:
    class Stateful(Tied):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    learner = Learner(drawn(Stateful), recipe=FAST, method=ROOMY, base="given")
    assert learner.predict(torch.zeros(1, 12), None).shape == (1, 3)
