"""`check_method`: every method of the registry keeps the contract, and each way to break it is reported by name."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halrp.errors import HalrpError
from halrp.lab.methods import METHODS
from halrp.lab.methods.bn import TunedNorms
from halrp.lab.methods.check import ITEMS, MethodCheckFailed, check_method
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.mtl import Joint
from halrp.lab.methods.protocol import Method, Size, State
from halrp.lab.methods.stl import Separate
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.streams import Task

SETTINGS: dict[str, dict[str, Any]] = {
    "halrp-budget": {"growth_per_task": 0.5, "view": "mean"},
    "halrp-whitened": {"growth_per_task": 0.5, "view": "mean"},
    "halrp-paper": {"growth": 0.9},
    "ibpwf": {"sizes": {"conv1": [18, 12], "conv2": [24, 16], "linear": [16, 12]}},
    "prd": {"prototype_rate": 30.0, "hidden": 32},
    **{name: {"lr": 0.03} for name in ("full-finetune", "bitdelta", "lora", "dora", "loha")},
    **{name: {"lr": 0.01, "head": "probe"} for name in ("bitfit", "ia3", "adalora", "lokr", "hira")},
}
"""2 % of a tiny network is less than a head, the paper's pruning leaves 20 % of it, which is nothing, and twelve steps
are few for a prior over factors, for prototypes, or for the rates of a pretrained base."""
PEFT = ("lora", "dora", "ia3", "adalora", "loha", "lokr", "hira")
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in PEFT[1:] or name == "bitdelta" else name for name in METHODS
]
"""Methods that differ from others in a few lines are left to the long tests."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


HASTY = tiny_context(recipe=replace(TINY, epochs=1))
"""For methods that break the contract however long they learn."""


@pytest.mark.parametrize("name", NAMES)
def test_every_method_keeps_the_contract(name: str) -> None:
    if name in PEFT and find_spec("peft") is None:
        pytest.skip("peft is not installed")
    report = check_method(name, settings=SETTINGS.get(name))
    assert len(report.passed) == len(ITEMS)
    assert (report.method, report.device) == (name, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract_on_cuda(name: str) -> None:
    check_method(name, settings=SETTINGS.get(name), device="cuda")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("stl", {"redraw": True}),
        ("mtl", {"mixed_batches": True}),
        ("ewc", {"online": True, "decay": 0.9, "per_example": True, "labels": "exact"}),
        ("be", {"start": "first"}),
        ("ridge", {"memory": "stream"}),
        ("ranpac", {"memory": "stream", "width": 64}),
    ],
)
def test_other_settings_keep_the_contract(name: str, settings: dict[str, Any]) -> None:
    check_method(name, settings=settings)


class Forgets(FineTune):
    frozen = True


class DependsOnAll(FineTune):
    first_decides = True


class WrongShape(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        return super().predict(x, task)[:, :2]


class NotFinite(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        return super().predict(x, task) / 0


class LearnsNothing(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        return torch.zeros_like(super().predict(x, task))


class WithGradient(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        result: Tensor = self.nets[task](x)
        return result


class PredictsInTraining(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        with torch.no_grad():
            return self.nets[task].train()(x)  # type: ignore[no-any-return]


class PredictsTooEarly(Joint):
    def predict(self, x: Tensor, task: int) -> Tensor:
        if self.net is None:
            return x.new_zeros(len(x), self.waiting[task].classes)
        return super().predict(x, task)


class WritesToInputs(Separate):
    def learn(self, task: Task) -> None:
        task.train.x.mul_(1.5)
        super().learn(task)


class WritesToTests(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        return super().predict(x.add_(1), task)


class Seeds(Separate):
    def learn(self, task: Task) -> None:
        torch.manual_seed(0)
        super().learn(task)


class SeedsNumpy(Separate):
    def learn(self, task: Task) -> None:
        np.random.seed(0)  # noqa: NPY002
        super().learn(task)


class SeedsPython(Separate):
    def predict(self, x: Tensor, task: int) -> Tensor:
        random.seed(0)
        return super().predict(x, task)


class StopsGradients(Separate):
    def learn(self, task: Task) -> None:
        super().learn(task)
        torch.set_grad_enabled(False)

    def state(self) -> State:
        torch.set_grad_enabled(True)
        return super().state()


class ChangesDtype(Separate):
    def stored(self) -> Size:
        torch.set_default_dtype(torch.float64)
        return super().stored()


class TakesThreads(Separate):
    def learn(self, task: Task) -> None:
        super().learn(task)
        torch.set_num_threads(torch.get_num_threads() + 1)


class UsesGlobalRandomness(Separate):
    def learn(self, task: Task) -> None:
        super().learn(task)
        with torch.no_grad():
            for parameter in self.nets[-1].parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=1e-3)


class StoresNothing(Separate):
    def stored(self) -> Size:
        return Size(0, 0)


class Shrinks(Separate):
    def stored(self) -> Size:
        whole = super().stored()
        return Size(whole.parameters // len(self.nets) ** 2, whole.bytes // len(self.nets) ** 2)

    def counted(self) -> int:
        return 1


class CountsTensors(Separate):
    def stored(self) -> Size:
        result = super().stored()
        return Size(result.parameters, torch.tensor(result.bytes))  # type: ignore[arg-type]


class CountsTooMuch(Separate):
    def counted(self) -> int:
        return self.stored().parameters + 1


class StoresTooFewBytes(Separate):
    def stored(self) -> Size:
        result = super().stored()
        return Size(result.parameters, result.parameters // 10)


class TellsTensors(Separate):
    def details(self) -> dict[str, Any]:
        return {"norm": torch.ones(())}


class TellsInfinity(Separate):
    def details(self) -> dict[str, Any]:
        return {"norm": float("inf")}


class RestoresWrongly(FineTune):
    def restore(self, state: State) -> None:
        super().restore(State({n: t for n, t in state.tensors.items() if "running" not in n}, state.values))


class RestoresLastHeadOnly(FineTune):
    """Predicts right for all tasks, and resumes from the wrong network."""

    def restore(self, state: State) -> None:
        super().restore(state)
        self.l2 = 0.1


class RestoresOnTop(Separate):
    def restore(self, state: State) -> None:
        before = self.nets
        super().restore(state)
        self.nets += before


class CannotRestore(TunedNorms):
    def restore(self, state: State) -> None:
        raise KeyError("classes")


@pytest.mark.parametrize(
    ("broken", "item", "says"),
    [
        (Forgets, "frozen", "task 1 changed the logits of task 0"),
        (DependsOnAll, "first decides", "other logits when only task 0 comes before it"),
        (WrongShape, "logits", r"logits of shape \(24, 2\) after task 0, not \(24, 3\)"),
        (NotFinite, "logits", "not finite floats"),
        (LearnsNothing, "learns", "chance is 0.33"),
        (WithGradient, "predicting", "carry a gradient"),
        (PredictsInTraining, "predicting", "predict changed the state"),
        (PredictsTooEarly, "joint", "raised nothing"),
        (WritesToInputs, "inputs", "'tiny-0' were changed in place"),
        (WritesToTests, "inputs", "'tiny-0' were changed in place"),
        (Seeds, "surroundings", r"learn\(task 0\) changed the state of torch's generator"),
        (SeedsNumpy, "surroundings", r"learn\(task 0\) changed the state of numpy's generator"),
        (SeedsPython, "surroundings", r"predict\(task 0\) changed the state of Python's generator"),
        (StopsGradients, "surroundings", r"learn\(task 0\) changed the grad mode"),
        (ChangesDtype, "surroundings", r"stored\(\) changed the default dtype"),
        (TakesThreads, "surroundings", r"learn\(task 0\) changed the number of threads"),
        (UsesGlobalRandomness, "deterministic", "logits of task 0 differ by up to"),
        (StoresNothing, "sizes", "not a Size and a whole number"),
        (Shrinks, "sizes", "yet no learned task may change"),
        (CountsTensors, "sizes", "not a Size and a whole number"),
        (CountsTooMuch, "sizes", "more than the"),
        (StoresTooFewBytes, "sizes", "numbers in"),
        (TellsTensors, "details", "cannot be JSON"),
        (TellsInfinity, "details", "cannot be JSON"),
        (RestoresWrongly, "restores", "restored after task 0"),
        (RestoresLastHeadOnly, "restores", "after task 1, restored after task 0"),
        (RestoresOnTop, "restoring replaces", "are stored after being set back"),
        (CannotRestore, "restores", "KeyError: 'classes'"),
    ],
)
def test_each_way_to_break_the_contract_is_told(broken: type[Method], item: str, says: str) -> None:
    before = surroundings()
    with pytest.raises(MethodCheckFailed, match=says) as caught:
        check_method(broken, tiny_tasks(examples=16), context=HASTY)
    assert item in caught.value.items
    assert broken.__name__ in str(caught.value)
    assert isinstance(caught.value, HalrpError)
    assert isinstance(caught.value, AssertionError)
    assert surroundings() == before


def surroundings() -> tuple[object, ...]:
    numpy = np.random.get_state()[1].tobytes()  # type: ignore[index]  # noqa: NPY002
    settings = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate(), settings


def test_a_good_method_breaks_nothing_but_what_it_is_made_to_break() -> None:
    with pytest.raises(MethodCheckFailed) as caught:
        check_method(CountsTooMuch)
    assert caught.value.items == ("sizes",)


def test_a_method_that_cannot_learn_is_told_with_its_error() -> None:
    class Fails(Separate):
        def learn(self, task: Task) -> None:
            raise ValueError("no more room")

    with pytest.raises(MethodCheckFailed, match="ValueError: no more room") as caught:
        check_method(Fails)
    assert isinstance(caught.value.__cause__, ValueError)


def test_tasks_and_context_of_ones_own_are_used() -> None:
    seen: list[str] = []

    class Listens(Separate):
        def learn(self, task: Task) -> None:
            seen.append(task.name)
            super().learn(task)

    tasks = [replace(task, name=f"mine-{task.identity}") for task in tiny_tasks((2, 3), examples=32)]
    check_method(Listens, tasks, context=tiny_context(seed=3))
    assert set(seen) == {"mine-0", "mine-1"}


def test_tiny_tasks_differ_in_classes_in_data_and_in_size() -> None:
    tasks = tiny_tasks()
    assert [task.classes for task in tasks] == [3, 2, 4]
    assert len({len(task.train.y) for task in tasks}) == 2
    assert not torch.equal(tasks[0].test.x, tasks[2].test.x)
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(tasks, tiny_tasks(), strict=True))
