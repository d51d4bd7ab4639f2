"""Stores that several processes or sites change: refresh, conflicts and merge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from halrp import Learner, Store
from halrp.errors import (
    ConflictError,
    DamagedError,
    StoreChangedError,
    StoreError,
    WrongBaseError,
)
from halrp.store.changes import Changes
from tests.helpers import FAST, net, tiny_task
from tests.store.stores import OFFICIAL, X, committed, consistent, learned, reopened, roomy, same_predictions, snapshot


def test_refresh_sees_what_another_process_did(tmp_path: Path) -> None:
    first = learned("mlp", tasks=4, store=tmp_path)
    second = reopened(tmp_path)
    assert not second.refresh()
    first.learn("new", tiny_task("mlp", 8))
    first.remove("t3")
    first.learn("t1", tiny_task("mlp", 5), replace=True)
    untouched = second.tasks["t2"]
    assert list(second.tasks) == ["t0", "t1", "t2", "t3"]
    assert second.refresh() == Changes(added=("new",), removed=("t3",), replaced=("t1",))
    assert same_predictions(first, second, X)
    assert second.tasks["t2"] is untouched  # it was not read again
    assert second.refresh() == Changes()
    second.learn("newer", tiny_task("mlp", 9))
    assert first.refresh() == Changes(added=("newer",))


def test_refresh_of_a_learner_without_a_base_takes_the_one_that_another_process_made(tmp_path: Path) -> None:
    waiting = Learner(net("mlp"), recipe=FAST, method=roomy(), store=tmp_path)
    assert waiting.refresh() == Changes()
    first = learned("mlp", tasks=2, store=tmp_path)
    assert waiting.refresh() == Changes(added=("t0", "t1"))
    assert same_predictions(first, waiting, X)


def test_refresh_refuses_a_store_that_was_rolled_back(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    manifest = (tmp_path / "manifest.json").read_bytes()
    learner.learn("t2", tiny_task("mlp", 2))
    (tmp_path / "manifest.json").write_bytes(manifest)
    with pytest.raises(StoreChangedError, match="rolled back"):
        learner.refresh()
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(StoreChangedError, match="vanished"):
        learner.refresh()
    assert list(learner.tasks) == ["t0", "t1", "t2"]


@pytest.mark.parametrize(
    "act",
    [
        lambda learner: learner.remove("t1"),
        lambda learner: learner.rename("t1", "x"),
        lambda learner: learner.learn("t1", tiny_task("mlp", 6), replace=True),
    ],
)
def test_a_task_that_another_process_replaced_is_not_changed_unseen(
    act: Callable[[Learner], object], tmp_path: Path
) -> None:
    first = learned("mlp", store=tmp_path)
    second = learned("mlp", store=tmp_path)
    second.learn("t1", tiny_task("mlp", 5), replace=True)
    before = {name: content for name, content in snapshot(tmp_path).items() if not name.startswith("work/")}
    with pytest.raises(ConflictError, match=r"another version of 't1'.*refresh"):
        act(first)
    after = {name: content for name, content in snapshot(tmp_path).items() if not name.startswith("work/")}
    assert after == before
    first.refresh()
    act(first)
    assert consistent(first)


def test_pruning_never_brings_back_a_task_that_another_process_removed(tmp_path: Path) -> None:
    first = learned("mlp", tasks=3, method=OFFICIAL, store=tmp_path)
    Store(tmp_path).remove("t1")
    with pytest.raises(ConflictError, match=r"does not hold 't1'.*refresh"):
        first.learn("t3", tiny_task("mlp", 3))
    assert list(Store(tmp_path).manifest().tasks) == ["t0", "t2"]
    first.refresh()
    first.learn("t3", tiny_task("mlp", 3))
    assert consistent(first)


# ---- merge ----------------------------------------------------------------------------------------------------------


def two_sites(folder: Path) -> tuple[Learner, Learner]:
    """Two stores of one base, with one task in common."""
    first = learned("mlp", tasks=2, base="given", store=folder / "first")
    second = learned("mlp", tasks=1, base="given", store=folder / "second")
    second.learn("b", tiny_task("mlp", 5))
    second.learn("c", tiny_task("mlp", 6))
    second.learn("c", tiny_task("mlp", 8), replace=True)
    return first, second


def test_a_merge_brings_new_tasks_with_their_versions_in_one_generation(tmp_path: Path) -> None:
    first, second = two_sites(tmp_path)
    other = snapshot(tmp_path / "second")
    store = Store(tmp_path / "first")
    generation = store.manifest().generation
    assert store.merge(tmp_path / "second") == ("b", "c")
    assert store.manifest().generation == generation + 1
    assert first.refresh() == Changes(added=("b", "c"))
    assert list(first.tasks) == ["t0", "t1", "b", "c"]
    assert all(torch.equal(first.predict(X, name), second.predict(X, name)) for name in "bc")
    assert torch.equal(first.revert("c").owned["4.weight"], second.versions("c")[0].owned["4.weight"])
    assert snapshot(tmp_path / "second") == other
    before = snapshot(tmp_path / "first")
    second.remove("c")
    assert store.merge(Store(tmp_path / "second")) == ()
    assert snapshot(tmp_path / "first") == before


def test_conflicts_are_named_all_at_once_and_nothing_is_merged(tmp_path: Path) -> None:
    first, _ = two_sites(tmp_path)
    for name in "cb":
        first.learn(name, tiny_task("mlp", 11))
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match=r"different tasks of the same name: 'b', 'c'; rename or remove"):
        Store(tmp_path / "first").merge(tmp_path / "second")
    assert snapshot(tmp_path) == before


def test_a_store_of_another_base_is_not_merged(tmp_path: Path) -> None:
    learned("mlp", tasks=1, base="given", store=tmp_path / "first")
    learned("mlp", tasks=2, store=tmp_path / "second")
    before = snapshot(tmp_path)
    with pytest.raises(WrongBaseError, match="another base"):
        Store(tmp_path / "first").merge(tmp_path / "second")
    with pytest.raises(StoreError, match="is not a store"):
        Store(tmp_path / "first").merge(tmp_path / "nowhere")
    assert snapshot(tmp_path) == before


def test_a_damaged_store_is_not_merged(tmp_path: Path) -> None:
    two_sites(tmp_path)
    path = tmp_path / "second" / Store(tmp_path / "second").manifest().tasks["c"].file
    path.write_bytes(b"x" * path.stat().st_size)
    before = snapshot(tmp_path)
    with pytest.raises(DamagedError, match=path.name):
        Store(tmp_path / "first").merge(tmp_path / "second")
    assert snapshot(tmp_path) == before


def test_merging_into_an_empty_folder_copies_the_store_without_its_trash(tmp_path: Path) -> None:
    _, second = two_sites(tmp_path)
    second.remove("b")
    assert Store(tmp_path / "copy").merge(tmp_path / "second") == ("t0", "c")
    assert same_predictions(second, reopened(tmp_path / "copy"), X)
    assert set(snapshot(tmp_path / "copy")) == committed(tmp_path / "copy")
    assert len(Store(tmp_path / "copy").versions("c")) == 1
