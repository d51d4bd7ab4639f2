"""Managing tasks: remove, rename and versions, in memory and in the store."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from halrp import Delta, Learner, Store
from halrp.errors import (
    ConflictError,
    DamagedError,
    DamagedTaskWarning,
    FormatError,
    StoreChangedError,
    TaskError,
    UnknownTaskError,
)
from tests.helpers import FAST, net, tiny_task
from tests.store.corpus.make import CORPORA, HERE
from tests.store.stores import OFFICIAL, X, committed, consistent, learned, reopened, roomy, snapshot


def logits(learner: Learner) -> dict[str, Tensor]:
    return {name: learner.predict(X, name) for name in learner.tasks}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(params=["memory", "store"])
def learner(request: pytest.FixtureRequest, tmp_path: Path) -> Learner:
    return learned("mlp", store=tmp_path if request.param == "store" else None)


# ---- remove and rename ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t0", "t1"])
def test_a_removed_task_is_gone_and_the_others_are_bit_identical(name: str, learner: Learner, tmp_path: Path) -> None:
    """The first task made the base, which stays."""
    before, files = logits(learner), snapshot(tmp_path)
    learner.remove(name)
    del before[name]
    assert equal(logits(learner), before)
    assert torch.equal(learner.predict(X, None), learner.module(None)(X))
    with pytest.raises(UnknownTaskError, match=rf"no task named '{name}'"):
        learner.predict(X, name)
    assert name not in learner.scores
    assert consistent(learner)
    for file, content in snapshot(tmp_path).items():
        if file.startswith("trash/"):
            assert files[file.removeprefix("trash/")] == content  # nothing is deleted
    learner.learn(name, tiny_task("mlp", 5))  # the name is free
    assert consistent(learner)


@dataclasses.dataclass(frozen=True)
class Meanwhile:
    """Compression that changes nothing, while another thread removes a task."""

    removing: ClassVar[threading.Thread]
    independent = True
    changes_committed = False

    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int) -> Mapping[str, Delta]:
        self.removing.start()
        self.removing.join(0.5)  # it waits until the task is committed; if it did not, it would be done by now
        return tasks


def test_a_task_that_another_thread_removes_stays_removed(learner: Learner) -> None:
    first, second, *_ = learner.tasks
    Meanwhile.removing = threading.Thread(target=learner.remove, args=(second,))
    learner.method = dataclasses.replace(learner.method, compress=Meanwhile())
    learner.learn("new", tiny_task("mlp", 8))
    Meanwhile.removing.join()
    assert second not in learner.tasks
    assert {first, "new"} <= learner.tasks.keys()
    assert consistent(learner)


def test_all_tasks_can_be_removed_and_the_base_still_learns(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    for name in ("t0", "t1"):
        learner.remove(name)
    again = Learner(net("mlp"), recipe=FAST, method=roomy(), store=tmp_path)
    assert not again.tasks
    delta = again.learn("t1", tiny_task("mlp", 1, classes=4))
    assert not delta.is_base
    assert torch.equal(again.predict(X, "t1"), learned("mlp", tasks=2).predict(X, "t1"))


def test_a_renamed_task_has_its_position_and_its_predictions(learner: Learner, tmp_path: Path) -> None:
    before = logits(learner)
    learner.rename("t1", "Vögel/鳥")
    assert list(learner.tasks) == ["t0", "Vögel/鳥", "t2"]
    assert learner.tasks["Vögel/鳥"].task == "Vögel/鳥"
    assert all(torch.equal(learner.predict(X, name), before[name.replace("Vögel/鳥", "t1")]) for name in learner.tasks)
    assert "Vögel/鳥" in learner.scores
    assert consistent(learner)
    learner.rename("Vögel/鳥", "t1")
    assert equal(logits(learner), before)
    assert consistent(learner)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda learner: learner.remove("x"), UnknownTaskError, "no task named 'x'"),
        (lambda learner: learner.rename("x", "y"), UnknownTaskError, "no task named 'x'"),
        (lambda learner: learner.rename("t1", "t2"), TaskError, "'t2' is already learned"),
        (lambda learner: learner.rename("t1", ""), TaskError, "non-empty string"),
        (lambda learner: learner.rename("t1", "\ud800"), TaskError, "surrogate"),
        (lambda learner: learner.revert("t1"), TaskError, "no other version of 't1'"),
        (lambda learner: learner.versions("x"), UnknownTaskError, "no task named 'x'"),
        (lambda learner: learner.learn("x", tiny_task("mlp"), replace=True), UnknownTaskError, "no task named 'x'"),
        (lambda learner: learner.learn("t1", tiny_task("mlp")), TaskError, "already learned .* replace=True"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    act: Callable[[Learner], object], error: type[Exception], message: str, learner: Learner, tmp_path: Path
) -> None:
    before, files = logits(learner), snapshot(tmp_path)
    with pytest.raises(error, match=message):
        act(learner)
    assert equal(logits(learner), before)
    assert snapshot(tmp_path) == files


# ---- versions -------------------------------------------------------------------------------------------------------


def test_a_replaced_task_can_be_brought_back_until_its_versions_are_dropped(learner: Learner, tmp_path: Path) -> None:
    first = logits(learner)
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    second = logits(learner)
    assert list(second) == list(first)
    assert equal({n: t for n, t in second.items() if n != "t1"}, {n: t for n, t in first.items() if n != "t1"})
    assert second["t1"].shape != first["t1"].shape
    assert [version.classes for version in learner.versions("t1")] == [4]
    assert consistent(learner)
    learner.revert("t1")
    assert equal(logits(learner), first)
    assert [version.classes for version in learner.versions("t1")] == [3]
    learner.revert("t1")
    assert equal(logits(learner), second)
    assert consistent(learner)
    learner.rename("t1", "renamed")
    assert [version.task for version in learner.versions("renamed")] == ["renamed"]
    assert torch.equal(learner.revert("renamed").owned["4.weight"], learned("mlp").tasks["t1"].owned["4.weight"])
    learner.drop_versions("renamed")
    assert learner.versions("renamed") == ()
    with pytest.raises(TaskError, match="no other version"):
        learner.revert("renamed")
    assert torch.equal(learner.predict(X, "renamed"), first["t1"])
    assert consistent(learner)


def test_learning_the_same_again_makes_no_version(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    before = snapshot(tmp_path)
    learner.learn("t1", tiny_task("mlp", 1, classes=4), replace=True)
    assert snapshot(tmp_path) == before


def test_old_versions_are_named_by_the_manifest_and_survive_other_commits(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    old = Store(tmp_path).manifest().tasks["t1"]
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    learner.learn("t3", tiny_task("mlp", 3))
    learner.save(tmp_path)
    assert Store(tmp_path).versions("t1") == (old,)
    assert (tmp_path / old.file).exists()
    assert set(snapshot(tmp_path)) == committed(tmp_path)
    learner.remove("t1")
    assert (tmp_path / "trash" / old.file).exists()


def test_pruning_beside_a_replaced_task_leaves_its_old_version_alone(tmp_path: Path) -> None:
    learner = learned("mlp", method=OFFICIAL, store=tmp_path)
    old = learner.tasks["t1"]
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    learner.learn("t3", tiny_task("mlp", 3))
    (version,) = learner.versions("t1")
    assert version.factors.keys() == old.factors.keys()
    assert all(torch.equal(version.factors[n].p, old.factors[n].p) for n in old.factors)


def test_a_replacement_that_is_interrupted_resumes_though_another_process_commits(tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    recipe = dataclasses.replace(FAST, epochs=4)
    learner = Learner(net("mlp"), recipe=recipe, method=roomy(), store=Store(tmp_path, checkpoint_every=0.0))
    epochs: list[object] = []

    def stop(progress: object) -> None:
        epochs.append(progress)
        if len(epochs) == 3:
            raise KeyboardInterrupt

    learner.progress = stop
    with pytest.raises(KeyboardInterrupt):
        learner.learn("t1", tiny_task("mlp", 5), replace=True)
    learned("mlp", tasks=4, store=tmp_path)  # commits t3, and clears work folders of finished tasks
    learner.progress = epochs.append
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    whole: list[object] = []
    other = learned("mlp")
    other.recipe, other.progress = learner.recipe, whole.append
    other.learn("t1", tiny_task("mlp", 5), replace=True)
    assert len(epochs) == len(whole)  # no epoch was trained twice
    assert torch.equal(learner.predict(X, "t1"), other.predict(X, "t1"))
    assert not list((tmp_path / "work").iterdir())


# ---- parents --------------------------------------------------------------------------------------------------------


def with_child(folder: Path) -> Store:
    learner = learned("mlp", store=folder)
    store = Store(folder)
    parent = store.manifest().tasks["t1"].sha256
    child = dataclasses.replace(learner.tasks["t2"], task="child", parents=(parent,))
    store.commit(learner._committed.ready, [child])
    return store


@pytest.mark.parametrize("act", [lambda store: store.remove("t1"), lambda store: store.rename("t1", "x")])
def test_a_task_that_another_one_started_from_stays(act: Callable[[Store], object], tmp_path: Path) -> None:
    store = with_child(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match="'child' started from it"):
        act(store)
    assert snapshot(tmp_path) == before
    store.remove("child")
    act(store)


# ---- what is there but cannot be read -----------------------------------------------------------------------------


def test_damaged_tasks_are_left_out_by_name_and_the_others_work(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    expected = logits(learner)
    path = tmp_path / Store(tmp_path).manifest().tasks["t1"].file
    path.write_bytes(b"gone")
    with pytest.raises(DamagedError, match=path.name):
        reopened(tmp_path)
    openers: list[Callable[[], Learner]] = [
        lambda: Learner.load(tmp_path, net("mlp"), method=roomy(), recipe=FAST, skip_damaged=True),
        lambda: Learner(net("mlp"), method=roomy(), recipe=FAST, store=tmp_path, skip_damaged=True),
    ]
    for opened in openers:
        with pytest.warns(DamagedTaskWarning, match=r"1 of 3 tasks cannot be read and are left out: 't1'"):
            left = opened()
        assert list(left.damaged) == ["t1"]
        assert path.name in left.damaged["t1"]
        assert equal(logits(left), {name: expected[name] for name in ("t0", "t2")})
    with pytest.raises(TaskError, match="'t1' is already learned"):  # its name is taken
        left.learn("t1", tiny_task("mlp", 1, classes=4))
    with pytest.raises(DamagedError, match="cannot be renamed"):
        left.rename("t1", "x")
    left.learn("t3", tiny_task("mlp", 3))
    assert list(Store(tmp_path).manifest().tasks) == ["t0", "t1", "t2", "t3"]
    left.learn("t1", tiny_task("mlp", 5), replace=True)
    assert not left.damaged
    left.drop_versions("t1")
    assert set(reopened(tmp_path).tasks) == {"t0", "t1", "t2", "t3"}


def test_a_damaged_task_can_be_removed(tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    (tmp_path / Store(tmp_path).manifest().tasks["t1"].file).unlink()
    with pytest.warns(DamagedTaskWarning):
        left = Learner.load(tmp_path, net("mlp"), skip_damaged=True)
    left.remove("t1")
    assert not left.damaged
    assert list(reopened(tmp_path).tasks) == ["t0", "t2"]


# ---- attached and detached -------------------------------------------------------------------------------------------


def test_a_loaded_learner_commits_to_its_store_unless_it_is_detached(tmp_path: Path) -> None:
    learned("mlp", tasks=2, store=tmp_path)
    before = snapshot(tmp_path)
    detached = Learner.load(tmp_path, net("mlp"), attach=False)
    detached.learn("t2", tiny_task("mlp", 2))
    detached.remove("t1")
    detached.rename("t0", "first")
    assert snapshot(tmp_path) == before
    attached = Learner.load(tmp_path, net("mlp"))
    attached.learn("t2", tiny_task("mlp", 2))
    assert list(reopened(tmp_path).tasks) == ["t0", "t1", "t2"]
    assert torch.equal(detached.predict(X, "t2"), attached.predict(X, "t2"))


def test_saving_where_a_vanished_store_was_begins_it_again_on_purpose(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreChangedError, match="vanished"):
        learner.learn("t2", tiny_task("mlp", 2))
    learner.save(tmp_path / "store")
    learner.learn("t2", tiny_task("mlp", 2))
    assert consistent(learner)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_tasks_of_earlier_formats_are_managed_too(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(HERE / name / "store", folder)
    learner = Learner.load(folder, CORPORA[name].model(classes=3))
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    task = "bfloat16, pruned"
    expected = learner.predict(x, task)
    if name == "v1":
        with pytest.raises(FormatError, match="only a learner can rename"):
            Store(folder).rename(task, "renamed")
    learner.rename(task, "renamed")
    learner.remove("base")
    again = Learner.load(folder, CORPORA[name].model(classes=7))
    assert torch.equal(again.predict(x, "renamed"), expected)
    assert "base" not in again.tasks
