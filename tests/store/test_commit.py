"""What a commit decides: which files are written, which names are refused, and what becomes of what was there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from halrp import Delta, Store
from halrp.errors import ConflictError, DamagedError
from halrp.model.base import Base
from halrp.store import task_file
from halrp.store.commit import Commit
from halrp.store.folder import Folder
from halrp.store.manifest import Entry, Manifest, entry_of
from tests.helpers import tiny_task
from tests.store.stores import learned, snapshot


@dataclasses.dataclass(frozen=True)
class Material:
    """A base and different tasks of the same name on it."""

    base: Base
    contents: tuple[Delta, ...]

    def delta(self, name: str, content: int = 0) -> Delta:
        return dataclasses.replace(self.contents[content], task=name)

    def file(self, name: str, content: int = 0) -> Entry:
        return entry_of(f"tasks/{name}", task_file.write(self.delta(name, content)))


@pytest.fixture(scope="module")
def made() -> Material:
    learner = learned("mlp", tasks=0, base="given")
    contents = tuple(learner.learn(f"t{number}", tiny_task("mlp", number)) for number in range(3))
    return Material(learner._committed.ready, contents)


@pytest.fixture
def store(made: Material, tmp_path: Path) -> Store:
    """A store of the tasks a and b."""
    store = Store(tmp_path / "store")
    store.commit(made.base, [made.delta("a"), made.delta("b")])
    return store


def edited(before: Manifest, root: Path, commit: Commit, present: Mapping[str, bytes] | None = None) -> Manifest:
    """The manifest after a commit that finds these contents in the files of tasks."""
    return commit.edit(Folder(root), before, lambda name, _: (present or {}).get(name))


# ---- names that are taken -------------------------------------------------------------------------------------------


def test_every_conflict_is_named_and_nothing_is_written(made: Material, store: Store) -> None:
    before = snapshot(store.folder)
    with pytest.raises(ConflictError, match=r"already holds another task 'a', 'b', and a committed task never changes"):
        store.commit(made.base, [made.delta("c"), made.delta("a", 1), made.delta("b", 2)])
    with pytest.raises(ConflictError, match=r"holds another version of 'a', 'b' than the one to be replaced"):
        store.commit(
            made.base,
            [made.delta("a", 1), made.delta("b", 1)],
            pruned={"a": made.delta("a", 2)},
            replaced={"b": made.delta("b", 2)},
        )
    assert snapshot(store.folder) == before


@pytest.mark.parametrize("kind", ["pruned", "replaced"])
def test_what_is_replaced_must_be_there(kind: str, made: Material, store: Store, tmp_path: Path) -> None:
    before = snapshot(store.folder)
    names = {name: made.delta(name) for name in ("a", "c", "d")}
    for at, missing in ((store, "'c', 'd'"), (Store(tmp_path / "new"), "'a', 'c', 'd'")):
        with pytest.raises(ConflictError, match=f"{at.folder} does not hold {missing}, to be replaced"):
            at.commit(made.base, [made.delta("c", 1)], **{kind: names})
    assert snapshot(store.folder) == before
    assert set(snapshot(tmp_path / "new")) <= {"lock"}


def test_tasks_of_another_base_are_refused_by_the_fingerprints_of_both(made: Material, store: Store) -> None:
    ours, theirs = made.base.fingerprint, store.manifest().fingerprint
    other = store.manifest().edited(fingerprint=f"{theirs[:5]}{'0' * 59}")
    with pytest.raises(ConflictError, match=rf"another base \({other.fingerprint[:12]}…, not {ours[:12]}…\)"):
        edited(other, store.folder, Commit(made.base, [made.delta("c")]))


def test_a_task_that_could_not_be_read_again_is_not_written(made: Material, tmp_path: Path) -> None:
    good = made.delta("a")
    plain = {name: tensor * float("nan") for name, tensor in good.plain.items()}
    with pytest.raises(DamagedError, match=r"a.* holds NaN"):
        Store(tmp_path).commit(made.base, [made.delta("b"), dataclasses.replace(good, plain=plain)])
    assert set(snapshot(tmp_path)) <= {"lock"}


# ---- the same task again --------------------------------------------------------------------------------------------


def test_the_same_task_again_writes_only_what_is_damaged(made: Material, store: Store) -> None:
    before = snapshot(store.folder)
    (store.folder / made.file("a").file).write_bytes(b"damaged")
    store.commit(made.base, [made.delta("a"), made.delta("b")])
    assert snapshot(store.folder) == before


def test_a_task_that_is_there_in_an_earlier_format_stays_as_it_is(made: Material, store: Store) -> None:
    earlier = Entry("tasks/a-0123456789abcdef.safetensors", "0123456789abcdef" * 4, 1)
    before = store.manifest()
    before = before.edited(tasks={**before.tasks, "a": earlier})
    same = task_file.write(made.delta("a"))
    commit = Commit(made.base, [made.delta("a"), made.delta("c")])
    after = edited(before, store.folder, commit, {"a": same})
    assert after.tasks == {**before.tasks, "c": made.file("c")}
    with pytest.raises(ConflictError, match="another task 'a'"):
        edited(before, store.folder, commit, {"a": same + b"?"})
    replacing = Commit(made.base, [made.delta("a", 1)], replaced={"a": made.delta("a")})
    after = edited(before, store.folder, replacing, {"a": same})  # the known task, by its content
    assert after.tasks["a"] == made.file("a", 1)
    assert after.versions == {"a": (earlier,)}


# ---- versions -------------------------------------------------------------------------------------------------------


def test_a_replaced_task_becomes_an_old_version_and_each_content_is_there_once(made: Material, store: Store) -> None:
    files = [made.file("a", content) for content in range(3)]
    present = 0
    for content, versions in ((1, [0]), (2, [1, 0]), (2, [1, 0]), (0, [2, 1]), (1, [0, 2])):
        expected = made.delta("a", present)
        manifest = store.commit(made.base, [made.delta("a", content)], replaced={"a": expected})
        assert manifest.tasks["a"] == files[content]
        assert manifest.versions == {"a": tuple(files[number] for number in versions)}
        assert not manifest.pruned
        present = content


def test_a_task_that_cannot_be_read_is_replaced_by_who_knows_its_file_or_that_it_is_damaged(
    made: Material, store: Store
) -> None:
    for expected in (made.delta("a"), None):
        (store.folder / made.file("a").file).write_bytes(b"damaged")
        manifest = store.commit(made.base, [made.delta("a", 1)], replaced={"a": expected})
        assert manifest.tasks["a"] == made.file("a", 1)
        store.commit(made.base, [made.delta("a")], replaced={"a": made.delta("a", 1)})
    with pytest.raises(ConflictError, match="another version of 'a'"):
        store.commit(made.base, [made.delta("a", 1)], replaced={"a": made.delta("a", 2)})


@pytest.mark.parametrize("kind", ["pruned", "replaced"])
def test_a_task_that_may_be_replaced_and_is_not_given_stays(kind: str, made: Material, store: Store) -> None:
    manifest = store.commit(made.base, [made.delta("c")], **{kind: {"a": made.delta("a")}})
    assert manifest.tasks == {name: made.file(name) for name in "abc"}
    assert not manifest.versions
    assert not manifest.pruned


# ---- pruning --------------------------------------------------------------------------------------------------------


def test_what_pruning_replaced_is_remembered_unless_it_is_still_named(made: Material, store: Store) -> None:
    both = {"a": made.delta("a"), "b": made.delta("b")}
    manifest = store.commit(made.base, [made.delta("a", 1), made.delta("b")], pruned=both)
    assert manifest.tasks == {"a": made.file("a", 1), "b": made.file("b")}
    assert manifest.pruned == (made.file("a").file,)
    assert not manifest.versions
    assert (store.folder / "trash" / made.file("a").file).exists()


# ---- layouts --------------------------------------------------------------------------------------------------------


def test_a_store_has_the_layouts_of_its_tasks_or_that_of_its_base(made: Material, tmp_path: Path) -> None:
    layout = made.base.layout
    for deltas in ([], [made.delta("a")]):
        manifest = Store(tmp_path / str(len(deltas))).commit(made.base, deltas)
        assert manifest.layouts == {layout.digest: entry_of("layout", layout.content, ".json")}
        assert (manifest.head, manifest.fingerprint) == (made.base.plan.head, made.base.fingerprint)


def test_a_commit_keeps_layouts_that_other_tasks_may_need(made: Material, store: Store) -> None:
    before = store.manifest()
    other = Entry("layout-0123456789abcdef.json", "0123456789abcdef" * 4, 1)
    before = before.edited(layouts={"0123456789abcdef": other})
    for deltas in ([], [made.delta("c")]):
        after = edited(before, store.folder, Commit(made.base, deltas))
        used = {delta.layout.digest for delta in deltas}
        assert after.layouts.keys() == {"0123456789abcdef"} | used
        assert after.layouts["0123456789abcdef"] == other
