"""What does not belong into a store, or into this one, is refused by name and changes nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from halrp import Halrp, Learner, Store
from halrp.errors import (
    ConflictError,
    DamagedError,
    LinkError,
    ModelError,
    StoreError,
    UnknownTaskError,
    WrongBaseError,
)
from tests.helpers import FAST, drawn, net, tiny_task
from tests.store.stores import learned, roomy, same_predictions, snapshot


def test_a_store_of_another_given_base_is_refused(tmp_path: Path) -> None:
    learned("mlp", tasks=1, base="given", store=tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(WrongBaseError, match="fingerprint"):
        Learner(net("mlp", seed=1), recipe=FAST, base="given", store=tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 13), nn.ReLU(), nn.Linear(13, 3)),
        lambda: nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12, bias=False), nn.ReLU(), nn.Linear(12, 3)),
        lambda: nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)),
        lambda: nn.Sequential(
            nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3), nn.Linear(3, 3)
        ),
        lambda: net("mlp").double(),
    ],
    ids=["width", "bias", "norm", "head", "type"],
)
def test_a_store_of_another_model_is_refused(build: object, tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    before = snapshot(tmp_path)
    model = drawn(cast("type[nn.Module]", build))
    with pytest.raises(WrongBaseError):
        Learner(model, recipe=FAST, store=tmp_path)
    assert snapshot(tmp_path) == before


def test_saving_over_another_base_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    before = snapshot(tmp_path)
    other = Learner(net("mlp", seed=3), recipe=FAST, method=roomy(), base="given")
    other.learn("x", tiny_task("mlp", 5))
    with pytest.raises(ConflictError, match="another base"):
        other.save(tmp_path)
    assert list(other.tasks) == ["x"]
    assert snapshot(tmp_path) == before


def test_a_second_learner_that_trains_its_own_base_into_a_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    first = learned("mlp", tasks=0, store=tmp_path)
    second = Learner(net("mlp", seed=3), recipe=FAST, method=roomy(), store=tmp_path)
    first.learn("t0", tiny_task("mlp", 0))
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match="another base"):
        second.learn("t0", tiny_task("mlp", 0))
    assert not second.tasks
    assert {n: b for n, b in snapshot(tmp_path).items() if not n.startswith("work/")} == before


def test_an_unknown_task_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    with pytest.raises(UnknownTaskError, match=r"no task 'birds'; it has: t0, t1, t2"):
        Store(tmp_path).read("birds", learner._committed.ready)


def test_a_task_under_another_tasks_name_is_refused(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    manifest = Store(tmp_path).manifest()
    tasks = {**manifest.tasks, "t1": manifest.tasks["t2"]}
    (tmp_path / "manifest.json").write_bytes(dataclasses.replace(manifest, tasks=tasks).content)
    with pytest.raises(DamagedError, match="holds the task 't2', not 't1'"):
        Store(tmp_path).read("t1", learner._committed.ready)


def test_a_folder_without_a_store_is_said_to_be_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="is not a store"):
            Learner.load(folder, net("mlp"))
    assert not (tmp_path / "nowhere").exists()


def test_a_manifest_that_cannot_be_seen_is_not_taken_for_none(tmp_path: Path) -> None:
    """Otherwise the next commit would begin a new store over the old one."""
    learner = learned("mlp", store=tmp_path)
    (tmp_path / "manifest.json").rename(tmp_path / "elsewhere.json")
    (tmp_path / "manifest.json").symlink_to(tmp_path / "unmounted" / "manifest.json")
    with pytest.raises(LinkError, match="symbolic link"):
        learner.learn("t3", tiny_task("mlp", 3))
    assert list(learner.tasks) == ["t0", "t1", "t2"]
    (tmp_path / "elsewhere.json").replace(tmp_path / "manifest.json")
    assert same_predictions(learner, Learner.load(tmp_path, net("mlp")), tiny_task("mlp", 7)[0])


def test_nothing_is_committed_that_could_not_be_read(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    before = snapshot(tmp_path)
    good = learner.tasks["t1"]
    bad = dataclasses.replace(good, task="bad", plain={n: torch.full_like(t, torch.inf) for n, t in good.plain.items()})
    with pytest.raises(DamagedError, match="holds NaN or infinity"):
        Store(tmp_path).commit(learner._committed.ready, [bad])
    assert snapshot(tmp_path) == before


def test_errors_of_a_store_do_not_pretend_to_be_of_the_model() -> None:
    assert not issubclass(StoreError, ModelError)
    assert not issubclass(WrongBaseError, ModelError)


def test_a_store_whose_manifest_is_lost_is_not_begun_anew_over_its_tasks(tmp_path: Path) -> None:
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    for number in range(2):
        learner.learn(f"task {number}", tiny_task("mlp", seed=number))
    learner.save(tmp_path)
    (tmp_path / "manifest.json").unlink()
    files = sorted(path.name for path in (tmp_path / "tasks").iterdir())
    other = Learner(net("mlp", seed=5), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    other.learn("another", tiny_task("mlp", seed=9))
    with pytest.raises(ConflictError, match=r"2 task files but no manifest\.json"):
        other.save(tmp_path)
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == files
    learner.save(tmp_path)  # the very same tasks may be saved again
    assert list(Learner.load(tmp_path, net("mlp")).tasks) == ["task 0", "task 1"]


def test_a_model_without_the_head_of_the_store_is_the_wrong_model(tmp_path: Path) -> None:
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    learner.learn("task", tiny_task("mlp", seed=0))
    learner.save(tmp_path)
    with pytest.raises(WrongBaseError, match="another model"):
        Learner.load(tmp_path, nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)))
