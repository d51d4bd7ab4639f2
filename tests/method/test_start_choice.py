"""Which start a task has: the method's, or else the base's; and choices that a start at the probe refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from halrp import Exact, Flat, FromProbe, GradientNorm, Halrp, Learner, Legacy, WarmUp, Whitened
from halrp.errors import ModelError, SettingError
from halrp.method.start import Starts
from halrp.provenance import method_settings, recalled_method
from halrp.store import task_file
from tests.helpers import CLASSES, FAST, drawn, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)


# ---- which start ----------------------------------------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    for kind in (FromProbe, WarmUp):
        call = kind.__call__

        def recorded(self: Any, *arguments: Any, call: Any = call) -> Starts:
            names.append(type(self).__name__)
            result: Starts = call(self, *arguments)
            return result

        monkeypatch.setattr(kind, "__call__", recorded)
    return names


@pytest.mark.parametrize(
    ("base", "method", "expected"),
    [
        ("given", ROOMY, "FromProbe"),
        ("given", Halrp.paper(), "WarmUp"),
        ("given", Halrp.official(), "WarmUp"),
        ("given", replace(ROOMY, decompose=Whitened()), "WarmUp"),
        ("given", replace(ROOMY, start=WarmUp()), "WarmUp"),
        ("first", ROOMY, "WarmUp"),
        ("first", Halrp(allocate=Flat(2), start=FromProbe()), "FromProbe"),
    ],
)
def test_the_base_decides_what_the_method_leaves_open(
    called: list[str], base: Any, method: Halrp, expected: str
) -> None:
    result = Learner(net("mlp"), method=method, recipe=FAST, base=base)
    for name in "ab":
        result.learn(name, tiny_task("mlp"), val=tiny_task("mlp", 1))
    assert set(called) == {expected}


def test_a_learner_of_a_store_starts_as_the_one_that_made_it(called: list[str], tmp_path: Path) -> None:
    for base in ("first", "given"):
        folder = tmp_path / base
        result = Learner(net("mlp"), method=ROOMY, recipe=FAST, base=base, store=folder)
        for name in "ab":
            result.learn(name, tiny_task("mlp"), val=tiny_task("mlp"))
        loaded = Learner.load(folder, net("mlp"))
        for each in (result, loaded):
            each._committed.store = None
            each.learn("c", tiny_task("mlp", 1), val=tiny_task("mlp", 1))
        assert task_file.write(result.tasks["c"]) == task_file.write(loaded.tasks["c"])
    assert called == ["WarmUp"] * 3 + ["FromProbe"] * 4


class Here:
    """An engine that works at once."""

    def submit(self, function: Any, *arguments: Any) -> Any:
        result = function(*arguments)
        return type("Done", (), {"result": lambda self: result})()


@pytest.mark.parametrize("base", ["first", "given"])
def test_workers_start_as_the_learner_would(base: Any, called: list[str]) -> None:
    tasks = {name: (tiny_task("mlp", i), tiny_task("mlp", i)) for i, name in enumerate("abc")}
    written = []
    for engine in (None, Here()):
        result = Learner(net("mlp"), method=ROOMY, recipe=FAST, base=base)
        written.append([task_file.write(delta) for delta in result.learn_many(tasks, engine).values()])
    assert written[0] == written[1]
    assert set(called) == {{"first": "WarmUp", "given": "FromProbe"}[base]}


def test_a_start_that_is_left_open_leaves_settings_as_they_were_and_any_other_is_recalled() -> None:
    assert "start" not in method_settings(Halrp.budget())
    for start in (FromProbe(), FromProbe(parts=("rows", "norms"), examples=100, held_out=0), WarmUp()):
        method = replace(Halrp.budget(), start=start)
        assert recalled_method({"method": method_settings(method)}) == method


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"decompose": Whitened()}, "decompose=Whitened"),
        ({"scales": Legacy()}, "scales=Legacy"),
        ({"scales": Exact(3)}, "scales=Exact"),
        ({"importance": GradientNorm()}, "importance=GradientNorm"),
        ({"initial": "random"}, "initial='random'"),
    ],
)
def test_choices_that_would_have_no_effect_are_refused(choice: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=r"start=WarmUp\(\)") as refusal:
        Halrp(allocate=Flat(3), start=FromProbe(), **choice)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, value) for name in ("examples", "components") for value in (0, -3, 1.5)),
        *(("held_out", value) for value in (-0.1, 0.6, float("nan"), "0.2")),
        ("head", "drawn"),
        ("precision", "int7"),
        ("parts", ("rows", "cows")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"FromProbe\({setting}="):
        FromProbe(**{setting: value})


def test_a_start_without_its_calls_is_refused() -> None:
    with pytest.raises(SettingError, match="start='probe'"):
        Halrp(allocate=Flat(3), start="probe")  # type: ignore[arg-type]


class Idle(nn.Module):
    """A network with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.head = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.used(x).relu())
        return outputs


def test_a_weight_that_no_gradient_reaches_is_refused_by_name() -> None:
    result = Learner(drawn(Idle), head="head", method=ROOMY, recipe=FAST, base="given")
    with pytest.raises(ModelError, match=r"idle\.weight had no gradient"):
        result.learn("a", tiny_task("mlp"))
    assert not result.tasks
