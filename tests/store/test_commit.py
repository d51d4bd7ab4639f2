"""What a commit decides: which files are written, which names are refused, and what becomes of what was there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from halrp import Store
from halrp.errors import ConflictError, DamagedError
from halrp.store import task_file
from halrp.store.commit import Commit
from halrp.store.folder import Folder
from halrp.store.manifest import Entry, Manifest, entry_of
from tests.store.stores import Material, snapshot


@pytest.fixture
def store(material: Material, tmp_path: Path) -> Store:
    """A store of the tasks a and b."""
    store = Store(tmp_path / "store")
    store.commit(material.base, [material.delta("a"), material.delta("b")])
    return store


def edited(before: Manifest, root: Path, commit: Commit, present: Mapping[str, bytes] | None = None) -> Manifest:
    """The manifest after a commit that finds these contents in the files of tasks."""
    return commit.edit(Folder(root), before, lambda name, _: (present or {}).get(name))


# ---- names that are taken -------------------------------------------------------------------------------------------


def test_every_conflict_is_named_and_nothing_is_written(material: Material, store: Store) -> None:
    before = snapshot(store.folder)
    with pytest.raises(ConflictError, match=r"already holds another task 'a', 'b', and a committed task never changes"):
        store.commit(material.base, [material.delta("c"), material.delta("a", 1), material.delta("b", 2)])
    with pytest.raises(ConflictError, match=r"holds another version of 'a', 'b' than the one to be replaced"):
        store.commit(
            material.base,
            [material.delta("a", 1), material.delta("b", 1)],
            pruned={"a": material.delta("a", 2)},
            replaced={"b": material.delta("b", 2)},
        )
    assert snapshot(store.folder) == before


@pytest.mark.parametrize("kind", ["pruned", "replaced"])
def test_what_is_replaced_must_be_there(kind: str, material: Material, store: Store, tmp_path: Path) -> None:
    before = snapshot(store.folder)
    names = {name: material.delta(name) for name in ("a", "c", "d")}
    for at, missing in ((store, "'c', 'd'"), (Store(tmp_path / "new"), "'a', 'c', 'd'")):
        with pytest.raises(ConflictError, match=f"{at.folder} does not hold {missing}, to be replaced"):
            at.commit(material.base, [material.delta("c", 1)], **{kind: names})
    assert snapshot(store.folder) == before
    assert set(snapshot(tmp_path / "new")) <= {"lock"}


def test_tasks_of_another_base_are_refused_by_the_fingerprints_of_both(material: Material, store: Store) -> None:
    ours, theirs = material.base.fingerprint, store.manifest().fingerprint
    other = store.manifest().edited(fingerprint=f"{theirs[:5]}{'0' * 59}")
    with pytest.raises(ConflictError, match=rf"another base \({other.fingerprint[:12]}…, not {ours[:12]}…\)"):
        edited(other, store.folder, Commit(material.base, [material.delta("c")]))


def test_a_task_that_could_not_be_read_again_is_not_written(material: Material, tmp_path: Path) -> None:
    good = material.delta("a")
    bias = good.coded["plain/4.bias"]
    bias = dataclasses.replace(bias, parts={**bias.parts, "scale": bias.parts["scale"] * float("nan")})
    bad = dataclasses.replace(good, coded={**good.coded, "plain/4.bias": bias})
    with pytest.raises(DamagedError, match=r"a.* scale of plain/4\.bias holds NaN"):
        Store(tmp_path).commit(material.base, [material.delta("b"), bad])
    assert set(snapshot(tmp_path)) <= {"lock"}


# ---- the same task again --------------------------------------------------------------------------------------------


def test_the_same_task_again_writes_only_what_is_damaged(material: Material, store: Store) -> None:
    before = snapshot(store.folder)
    (store.folder / material.file("a").file).write_bytes(b"damaged")
    store.commit(material.base, [material.delta("a"), material.delta("b")])
    assert snapshot(store.folder) == before


def test_a_task_that_is_there_in_an_earlier_format_stays_as_it_is(material: Material, store: Store) -> None:
    earlier = Entry("tasks/a-0123456789abcdef.safetensors", "0123456789abcdef" * 4, 1)
    before = store.manifest()
    before = before.edited(tasks={**before.tasks, "a": earlier})
    same = task_file.write(material.delta("a"))
    commit = Commit(material.base, [material.delta("a"), material.delta("c")])
    after = edited(before, store.folder, commit, {"a": same})
    assert after.tasks == {**before.tasks, "c": material.file("c")}
    with pytest.raises(ConflictError, match="another task 'a'"):
        edited(before, store.folder, commit, {"a": same + b"?"})
    replacing = Commit(material.base, [material.delta("a", 1)], replaced={"a": material.delta("a")})
    after = edited(before, store.folder, replacing, {"a": same})  # the known task, by its content
    assert after.tasks["a"] == material.file("a", 1)
    assert after.versions == {"a": (earlier,)}


# ---- versions -------------------------------------------------------------------------------------------------------


def test_a_replaced_task_becomes_an_old_version_and_each_content_is_there_once(
    material: Material, store: Store
) -> None:
    files = [material.file("a", content) for content in range(3)]
    present = 0
    for content, versions in ((1, [0]), (2, [1, 0]), (2, [1, 0]), (0, [2, 1]), (1, [0, 2])):
        expected = material.delta("a", present)
        manifest = store.commit(material.base, [material.delta("a", content)], replaced={"a": expected})
        assert manifest.tasks["a"] == files[content]
        assert manifest.versions == {"a": tuple(files[number] for number in versions)}
        assert not manifest.pruned
        present = content


def test_a_task_that_cannot_be_read_is_replaced_by_who_knows_its_file_or_that_it_is_damaged(
    material: Material, store: Store
) -> None:
    for expected in (material.delta("a"), None):
        (store.folder / material.file("a").file).write_bytes(b"damaged")
        manifest = store.commit(material.base, [material.delta("a", 1)], replaced={"a": expected})
        assert manifest.tasks["a"] == material.file("a", 1)
        store.commit(material.base, [material.delta("a")], replaced={"a": material.delta("a", 1)})
    with pytest.raises(ConflictError, match="another version of 'a'"):
        store.commit(material.base, [material.delta("a", 1)], replaced={"a": material.delta("a", 2)})


@pytest.mark.parametrize("kind", ["pruned", "replaced"])
def test_a_task_that_may_be_replaced_and_is_not_given_stays(kind: str, material: Material, store: Store) -> None:
    manifest = store.commit(material.base, [material.delta("c")], **{kind: {"a": material.delta("a")}})
    assert manifest.tasks == {name: material.file(name) for name in "abc"}
    assert not manifest.versions
    assert not manifest.pruned


# ---- pruning --------------------------------------------------------------------------------------------------------


def test_what_pruning_replaced_is_remembered_unless_it_is_still_named(material: Material, store: Store) -> None:
    both = {"a": material.delta("a"), "b": material.delta("b")}
    manifest = store.commit(material.base, [material.delta("a", 1), material.delta("b")], pruned=both)
    assert manifest.tasks == {"a": material.file("a", 1), "b": material.file("b")}
    assert manifest.pruned == (material.file("a").file,)
    assert not manifest.versions
    assert (store.folder / "trash" / material.file("a").file).exists()


# ---- layouts --------------------------------------------------------------------------------------------------------


def test_a_store_has_the_layouts_of_its_tasks_or_that_of_its_base(material: Material, tmp_path: Path) -> None:
    layout = material.base.layout
    for deltas in ([], [material.delta("a")]):
        manifest = Store(tmp_path / str(len(deltas))).commit(material.base, deltas)
        assert manifest.layouts == {layout.digest: entry_of("layout", layout.content, ".json")}
        assert (manifest.head, manifest.fingerprint) == (material.base.plan.head, material.base.fingerprint)


def test_a_commit_keeps_layouts_that_other_tasks_may_need(material: Material, store: Store) -> None:
    before = store.manifest()
    other = Entry("layout-0123456789abcdef.json", "0123456789abcdef" * 4, 1)
    before = before.edited(layouts={"0123456789abcdef": other})
    for deltas in ([], [material.delta("c")]):
        after = edited(before, store.folder, Commit(material.base, deltas))
        used = {delta.layout.digest for delta in deltas}
        assert after.layouts.keys() == {"0123456789abcdef"} | used
        assert after.layouts["0123456789abcdef"] == other
