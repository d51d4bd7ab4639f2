"""Loading and `verify` agree on which files can be used: files with good checksums and bad numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Learner, Store, WarmUp
from halrp.errors import DamagedError, ModelError
from halrp.model.codec import Coded
from halrp.store import task_file
from halrp.tools.verify import verify
from tests.helpers import FAST, net, tiny_task

Change = Callable[[Delta], Delta]


def placeholder() -> nn.Module:
    """A net with batch norm and a buffer that is never finite."""
    model = net("conv")
    model.register_buffer("placeholder", torch.tensor([torch.nan, torch.inf, 1.0]))
    return model


@pytest.fixture(scope="module", params=["int8", "float32"])
def learner(request: pytest.FixtureRequest) -> Learner:
    method = Halrp.budget(growth_per_task=0.5, precision=request.param, rest="float32")
    method = dataclasses.replace(method, start=WarmUp())  # every tensor is changed, and stored as it is
    learner = Learner(placeholder(), method=method, recipe=FAST, base="given")
    learner.learn("a", tiny_task("conv", 0))
    assert {"hidden.weight"} <= set(learner.tasks["a"].ranks)
    return learner


def plain(name: str, value: float, at: int = 0) -> Change:
    def change(delta: Delta) -> Delta:
        tensor = delta.plain[name].clone() if name in delta.plain else torch.tensor([torch.nan, torch.inf, 1.0])
        tensor.view(-1)[at] = value
        return dataclasses.replace(delta, plain={**delta.plain, name: tensor})

    return change


def scale(which: int, value: float) -> Change:
    def change(delta: Delta) -> Delta:
        pair = list(delta.scales["hidden.weight"])
        pair[which][0] = value
        return dataclasses.replace(delta, scales={**delta.scales, "hidden.weight": (pair[0], pair[1])})

    return change


def matrices(value: float, *letters: str) -> Change:
    """All numbers of factors, or the scales of their rows."""

    def change(delta: Delta) -> Delta:
        coded = dict(delta.coded)
        for letter in letters:
            matrix = coded[f"{letter}/hidden.weight"]
            part = "scale" if "scale" in matrix.parts else "values"
            parts = {**matrix.parts, part: torch.full_like(matrix.parts[part], value)}
            if part == "scale":
                parts["values"] = torch.full_like(matrix.parts["values"], 127)
            coded[f"{letter}/hidden.weight"] = Coded(matrix.rows, matrix.columns, parts)
        return dataclasses.replace(delta, coded=coded)

    return change


def both(*changes: Change) -> Change:
    def change(delta: Delta) -> Delta:
        for each in changes:
            delta = each(delta)
        return delta

    return change


LARGEST = torch.finfo(torch.float32).max
BAD: dict[str, Change] = {
    "NaN in a mean": plain("norm.running_mean", math.nan),
    "infinity in a variance": plain("norm.running_var", math.inf),
    "a variance below 0": plain("norm.running_var", -1.0),
    "NaN in a norm's scale": plain("norm.weight", math.nan),
    "NaN in a bias": plain("hidden.bias", math.nan),
    "NaN where the base's buffer is finite": plain("placeholder", math.nan, at=2),
    "a head whose products are infinite": plain("fc.weight", LARGEST),
    "a bias whose products are infinite": plain("fc.bias", -1e30),
    "infinity in r": scale(0, math.inf),
    "r too large": scale(0, 1e30),
    "s too large": scale(1, LARGEST),
    "r and s that overflow together": both(scale(0, 1e18), scale(1, 1e18)),
    "factors that overflow when they are decoded": matrices(LARGEST, "q"),
    "factors whose product overflows": matrices(1e17, "p", "q"),
}
GOOD: dict[str, Change] = {
    "nothing changed": lambda delta: delta,
    "NaN where the base's buffer is not finite": plain("placeholder", math.nan, at=1),
    "large numbers that can be computed with": plain("fc.weight", 1e10),
    "large scales that cancel": both(scale(0, 1e10), scale(1, 1e-10)),
}


def commit(learner: Learner, change: Change, folder: Path) -> None:
    """A store whose only task is changed, with checksums that fit."""
    learner.save(folder)
    delta = change(learner.tasks["a"])
    store = Store(folder)
    manifest = store.manifest()
    entry = store._folder.put("tasks/a", task_file.write(delta))
    (folder / "manifest.json").write_bytes(dataclasses.replace(manifest, tasks={"a": entry}).content)


def verdict(folder: Path, model: nn.Module | None) -> bool:
    findings = verify(folder, model)
    task = next(finding for finding in findings if finding.file.startswith("tasks/a-") and finding.status != "orphan")
    return task.status == "good"


def loads(folder: Path) -> bool:
    try:
        learner = Learner.load(folder, placeholder())
    except DamagedError:
        return False
    assert list(learner.tasks) == ["a"]
    return True


@pytest.mark.parametrize("case", BAD)
def test_bad_numbers_are_refused_by_loading_and_by_verify_with_and_without_a_model(
    case: str, learner: Learner, tmp_path: Path
) -> None:
    commit(learner, BAD[case], tmp_path)
    assert [loads(tmp_path), verdict(tmp_path, placeholder()), verdict(tmp_path, None)] == [False, False, False]


@pytest.mark.parametrize("case", GOOD)
def test_usable_numbers_are_accepted_by_all_three(case: str, learner: Learner, tmp_path: Path) -> None:
    commit(learner, GOOD[case], tmp_path)
    assert [loads(tmp_path), verdict(tmp_path, placeholder()), verdict(tmp_path, None)] == [True, True, True]


@pytest.mark.parametrize("case", ["NaN in a mean", "a head whose products are infinite"])
def test_what_cannot_be_loaded_cannot_be_committed(case: str, learner: Learner, tmp_path: Path) -> None:
    learner.save(tmp_path)
    base = learner._committed.ready
    before = (tmp_path / "manifest.json").read_bytes()
    changed = dataclasses.replace(BAD[case](learner.tasks["a"]), task="b")
    with pytest.raises(DamagedError):
        Store(tmp_path).commit(base, [changed])
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_a_base_with_nan_is_refused_by_loading_and_verify_and_before_it_is_learned_on(tmp_path: Path) -> None:
    model = placeholder()
    weight: Tensor = model.get_parameter("hidden.weight")
    with torch.no_grad():
        weight[0, 0] = torch.nan
    learner = Learner(model, method=Halrp.budget(growth_per_task=0.9), recipe=FAST, base="given")
    with pytest.raises(ModelError, match=r"a: NaN in hidden\.weight"):
        learner.learn("a", tiny_task("conv", 0))
    learner.save(tmp_path)
    with pytest.raises(DamagedError, match=r"NaN in hidden\.weight"):
        Learner.load(tmp_path, placeholder())
    for given in (placeholder(), None):
        findings = {finding.file: finding for finding in verify(tmp_path, given)}
        base = next(finding for file, finding in findings.items() if file.startswith("base-"))
        assert base.status == "bad"
        assert "hidden.weight" in base.note
