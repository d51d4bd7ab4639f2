"""A task that changes few layers pays for few: the others are the base's own modules, unless they keep something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Plan
from halrp.model.base import Base
from halrp.model.call import Call
from halrp.model.plan import plan as plan_of
from halrp.model.sharing import leaves_nothing_behind
from halrp.model.views import task_view
from tests.helpers import NETS, drawn, net, tiny_task
from tests.model.mixing import random_delta
from tests.model.zoo import FAMILIES


def of_layers(model: nn.Module, plan: Plan, *paths: str) -> Delta:
    """A delta that changes these layers alone."""
    delta = random_delta(model, plan, 0)

    def chosen(name: str) -> bool:
        return name.rpartition(".")[0] in paths

    return replace(
        delta,
        plain={name: tensor for name, tensor in delta.plain.items() if chosen(name)},
        scales={name: pair for name, pair in delta.scales.items() if chosen(name)},
        coded={name: matrix for name, matrix in delta.coded.items() if chosen(name.partition("/")[2])},
    )


def private(base: Base, view: nn.Module) -> set[str]:
    """The paths of modules that a view has for itself."""
    shared = {id(module) for module in base.module.modules()}
    return {path for path, module in view.named_modules() if id(module) not in shared}


@pytest.mark.parametrize("kind", NETS)
def test_the_layers_that_a_task_changes_are_its_own_with_those_around_them(kind: str) -> None:
    model = net(kind).eval()
    plan = plan_of(model)
    base = Base(model, plan, channels_last=False)
    layers = [path for path, layer in model.named_modules() if list(layer.parameters(recurse=False))]
    for path in layers:
        delta = of_layers(model, plan, path, plan.output)
        got = private(base, base.serving_view(delta))
        around = {"", *(".".join(p.split(".")[:n]) for p in (path, plan.output) for n in range(1, 9))}
        retained = {p for p, layer in model.named_modules() if not leaves_nothing_behind(layer)}
        around |= {".".join(p.split(".")[:n]) for p in retained for n in range(1, 9)}
        assert {path, plan.output} <= got <= around


@pytest.mark.parametrize("name", FAMILIES)
def test_a_task_with_a_head_alone_costs_few_modules_and_gives_the_same(name: str) -> None:
    family = FAMILIES[name]
    model = family.model().eval()
    plan = plan_of(model, family.head)
    base = Base(model, plan, channels_last=False)
    head = [path for path, _ in model.named_modules() if path == plan.head or path.startswith(f"{plan.head}.")]
    delta = of_layers(model, plan, *head)
    view = base.serving_view(delta)
    # T5's attention stores what it gives on, so its blocks are copied.
    assert len(private(base, view)) <= len(head) + 3 + 12 * (name == "T5 encoder")
    x = family.inputs(3)
    with torch.no_grad():
        expected = Call()(task_view(model, plan, delta.factors, delta.owned, delta.classes), x)
        assert torch.equal(Call()(view, x), expected)


class Keeps(nn.Module):
    """A layer between others whose code keeps something, or may."""

    def __init__(self, keep: Callable[[Any, Tensor], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.keep = keep
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.keep(self, x)


class Stores(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


class StoresElsewhere(nn.Module):
    def remember(self, x: Tensor) -> None:
        self.last = x

    def forward(self, x: Tensor) -> Tensor:
        self.remember(x)
        return x


class StoresByName(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        setattr(self, "last", x)  # noqa: B010
        return x


class StoresInProperty(nn.Module):
    @property
    def count(self) -> int:
        self.calls = getattr(self, "calls", 0) + 1
        return cast(int, self.calls)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.count > 0)


class Fills(nn.Module):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    def forward(self, x: Tensor) -> Tensor:
        return x


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda _, __, y: y)
    return layer


KEEPING: dict[str, Callable[[], nn.Module]] = {
    "an attribute": Stores,
    "an attribute in another method": StoresElsewhere,
    "an attribute by name": StoresByName,
    "an attribute in a property": StoresInProperty,
    "an attribute under a decorator": Decorated,
    "an empty dict": lambda: Fills({}),
    "an empty list": lambda: Fills([]),
    "a tensor": lambda: Fills(torch.ones(2)),
    "another module": lambda: Fills([nn.Linear(2, 2)]),
    "a closure": lambda: Fills((lambda x: lambda: x)(1)),
    "hooks": hooked,
}
CLEAN: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "convolution": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "norm": lambda: nn.BatchNorm2d(4),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "activation": nn.GELU,
    "settings": lambda: Fills(((1, 2), 0.5, torch.float32, "name", [3, 3])),
    "a function": lambda: Fills(torch.relu),
}


@pytest.mark.parametrize("case", KEEPING)
def test_a_module_that_may_keep_something_is_copied(case: str) -> None:
    assert not leaves_nothing_behind(KEEPING[case]())


@pytest.mark.parametrize("case", CLEAN)
def test_a_module_that_keeps_nothing_is_shared(case: str) -> None:
    assert leaves_nothing_behind(CLEAN[case]())


class Behind(nn.Module):
    """Reaches a layer of the model through a plain attribute of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(10, 10)
        self.through = Keeps(lambda m, x: m.others[0](x), others=[self.body])
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.through(x)))


def test_a_module_that_reaches_a_changed_layer_reaches_the_tasks() -> None:
    model = drawn(Behind).eval()
    plan = plan_of(model)
    base, x = Base(model, plan, channels_last=False), tiny_task("mlp")[0]
    delta = of_layers(model, plan, "body", "fc")
    view = base.serving_view(delta)
    assert cast(Any, view).through.others[0] is cast(Any, view).body
    with torch.no_grad():
        assert not torch.equal(view(x), base.serving_view(of_layers(model, plan, "fc"))(x))


def test_what_one_task_keeps_is_not_what_another_sees() -> None:
    model = nn.Sequential(nn.Linear(10, 10), Stores(), nn.Linear(10, 3)).eval()
    plan = plan_of(model)
    base, x = Base(model, plan, channels_last=False), tiny_task("mlp")[0]
    views = [base.serving_view(of_layers(model, plan, "2")) for _ in range(2)]
    views[0](x)
    assert hasattr(views[0].get_submodule("1"), "last")
    assert not hasattr(views[1].get_submodule("1"), "last")
    assert views[0].get_submodule("0") is views[1].get_submodule("0") is model.get_submodule("0")
