"""What the doctor says of machines and stores: each remark is provoked here, and nothing is changed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from halrp import Halrp, Learner, Store
from halrp.cli import doctor as command
from halrp.cli.app import app
from halrp.tools import doctor
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task
from tests.store.stores import snapshot

ran = partial(invoke, app)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "store"
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST, store=folder)
    for number, name in enumerate("abc"):
        learner.learn(name, tiny_task("mlp", number))
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "store"))


def remarks(store: Path, **options: object) -> list[tuple[str, str]]:
    return [(remark.state, remark.text + remark.advice) for remark in doctor.store(store, **options)]  # type: ignore[arg-type]


# ---- the machine -------------------------------------------------------------------------------------------------


def test_a_machine_is_described_and_a_step_is_measured() -> None:
    before, drawn = torch.get_num_threads(), torch.get_rng_state()
    topics = {remark.topic: remark for remark in doctor.machine()}
    assert {"versions", "device", "threads", "speed"} <= topics.keys()
    assert topics["speed"].text.count(" ms") >= 2
    assert torch.__version__.partition("+")[0] in topics["versions"].text
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_more_threads_than_processors_are_advised_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "processors", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    first, second = doctor.threads()
    assert first.state == "advice"
    assert "OMP_NUM_THREADS=2" in first.advice
    assert second.state == "note"
    assert "a load of 9.0 on 2 processors" in second.text


@pytest.mark.parametrize(("limit", "expected"), [("150000 100000", 1), ("200000 100000", 2), ("max 100000", 4)])
def test_a_container_has_the_processors_that_it_may_use(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(doctor, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert doctor.processors() == expected


@pytest.mark.parametrize(("seconds", "state"), [(0.2, "advice"), (0.1, "good")])
def test_one_thread_is_advised_where_it_is_faster(seconds: float, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.__setitem__(0, number))
    times = {1: {"whole": 0.1, "delta": 0.1}, 4: {"whole": 0.1, "delta": seconds}}
    monkeypatch.setattr(doctor, "_measured", lambda steps: times[threads[0]])
    [remark] = doctor.speed()
    assert remark.state == state
    assert ("OMP_NUM_THREADS=1" in remark.advice) is (state == "advice")
    assert threads == [4]


def test_devices_are_named_and_missing_ones_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "sees no GPU" in next(doctor.devices()).text
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    assert "without CUDA" in next(doctor.devices()).text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(name="Big", total_memory=2 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert next(doctor.devices()).text == "cuda:0: Big, 2,048 MB"


def test_what_is_broken_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_steps", lambda: 1 / 0)
    topics = {remark.topic: remark for remark in doctor.machine()}
    assert topics["speed"].state == "problem"
    assert "ZeroDivisionError" in topics["speed"].text
    assert "versions" in topics


def test_extras_that_are_incomplete_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("halrp.cli.doctor.find_spec", lambda name: None if name == "timm" else real(name))
    here, missing = command.extras()
    assert "vision" not in here.text
    assert missing.text == "vision lacks timm"
    assert "halrp[vision]" in missing.advice


# ---- a store -----------------------------------------------------------------------------------------------------


def test_a_good_store_is_good_and_nothing_changes(store: Path) -> None:
    before = snapshot(store)
    assert [state for state, _ in remarks(store)] == ["good"]
    assert "and fit the model" in remarks(store, model=net("mlp"))[0][1]
    assert snapshot(store) == before
    result = ran("doctor", store, "--no-speed")
    assert result.code == 0
    assert result.out.endswith("All is well.\n")


def test_damage_has_advice_and_an_exit_code(store: Path) -> None:
    (store / Store(store).manifest().tasks["b"].file).write_bytes(b"cut")
    listed = remarks(store)
    assert {state for state, _ in listed} == {"problem"}
    assert any("halrp repair" in text and "sets it aside" in text for _, text in listed)
    assert any("learn the task again" in text for _, text in listed)
    assert ran("doctor", store, "--no-speed").code == 1
    (store / "manifest.json").unlink()
    assert any("makes it again" in text for _, text in remarks(store))


def test_another_model_is_a_problem_and_a_folder_is_no_store(store: Path, tmp_path: Path) -> None:
    assert remarks(store, model=net("conv"))[0][0] == "problem"
    assert "is not a store" in remarks(tmp_path)[0][1]


def test_what_takes_space_or_waits_is_noted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner.load(store, net("mlp"))
    learner.learn("b", tiny_task("mlp", 7), replace=True)
    learner.remove("c")
    (store / "work" / "d").mkdir(parents=True)
    (store / "work" / "d" / "state").write_bytes(b"x")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    listed = remarks(store)
    assert [state for state, _ in listed] == ["good", "note", "note", "note", "advice"]
    for words in ("1 checkpoint of", "1 old version of", "--empty-trash", "1 MB are free"):
        assert any(words in text for _, text in listed)


def test_a_model_without_a_store_is_refused() -> None:
    result = ran("doctor", "--model", "a:b", "--no-speed")
    assert result.code == 2
    assert "name the store" in result.error
