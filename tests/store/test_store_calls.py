"""What each call of a store returns, and what it remembers of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halrp import Delta, Store
from halrp.errors import (
    DamagedError,
    SettingError,
    SignatureError,
    StoreChangedError,
    StoreError,
    UnknownTaskError,
)
from halrp.store import atomic, base_file, task_file
from halrp.store.manifest import Entry, Manifest, entry_of
from halrp.store.signing import Key
from halrp.store.store import CHECKPOINT_EVERY, StoredTasks, _Reading
from tests.store.stores import Material, snapshot

KEY = Key("hmac-sha256", bytes(range(32)))


@pytest.fixture
def store(material: Material, tmp_path: Path) -> Store:
    """A store of the tasks a and b."""
    store = Store(tmp_path / "store")
    store.commit(material.base, [material.delta("a"), material.delta("b", 1)])
    return store


def same(delta: Delta, other: Delta) -> bool:
    return task_file.write(delta) == task_file.write(other)


def test_a_new_store_knows_nothing_and_touches_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), signing_key=KEY)
    assert (store.folder, store.checkpoint_every, store.known) == (tmp_path / "store", CHECKPOINT_EVERY, None)
    assert store.signing_key == KEY
    assert Store(tmp_path, 0.5).checkpoint_every == 0.5
    assert not store.exists()
    assert not store.folder.exists()


# ---- reading --------------------------------------------------------------------------------------------------------


def test_a_task_is_read_by_its_name_and_an_unknown_one_is_refused_with_those_there(
    material: Material, store: Store
) -> None:
    assert same(store.read("a", material.base), material.delta("a"))
    with pytest.raises(UnknownTaskError, match="has no task 'c'; it has: a, b"):
        store.read("c", material.base)
    for name in "ab":
        store.remove(name)
    with pytest.raises(UnknownTaskError, match="has no task 'a'; it has: none"):
        store.read("a", material.base)


def renamed_file(material: Material, store: Store) -> Manifest:
    """A manifest that gives the file of task a to task b."""
    manifest = store.manifest()
    return manifest.edited(tasks={**manifest.tasks, "b": material.file("a")}).following(manifest)


def test_a_file_of_another_task_is_not_read_as_this_one(material: Material, store: Store) -> None:
    (store.folder / "manifest.json").write_bytes(renamed_file(material, store).content)
    with pytest.raises(DamagedError, match="holds the task 'a', not 'b'"):
        store.read("b", material.base)
    assert same(store.read("a", material.base), material.delta("a"))


def test_a_layout_of_another_base_is_refused(material: Material, store: Store) -> None:
    layout = dataclasses.replace(material.base.layout, fingerprint="0" * 64)
    entry = entry_of("layout", layout.content, ".json")
    (store.folder / entry.file).write_bytes(layout.content)
    manifest = store.manifest().edited(layouts={layout.digest: entry})
    with pytest.raises(DamagedError, match=f"{entry.file} belongs to another base, 0{{12}}…"):
        store.layouts(manifest)


def test_tasks_at_hand_are_not_read_again_unless_their_file_is_another(
    material: Material, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = {
        "a": (material.file("a"), material.delta("a")),
        "b": (material.file("b", 2), material.delta("b", 2)),  # there is another version by now
        "gone": (material.file("gone"), material.delta("gone")),
    }
    read: list[str] = []
    real = Store.content

    def content(self: Store, entry: Entry, limit: int | None = None) -> bytes:
        read.append(entry.file)
        return real(self, entry, limit)

    monkeypatch.setattr(Store, "content", content)
    tasks = store.read_tasks(material.base, at_hand=at_hand).tasks
    assert list(tasks) == ["a", "b"]
    assert tasks["a"] is at_hand["a"][1]
    assert same(tasks["b"], material.delta("b", 1))
    assert material.file("a").file not in read
    assert read.count(material.file("b", 1).file) == 1


def test_damaged_tasks_are_an_error_or_named(material: Material, store: Store) -> None:
    (store.folder / material.file("b", 1).file).write_bytes(b"damaged")
    fresh = Store(store.folder)
    with pytest.raises(DamagedError, match="tasks/b-"):
        fresh.read_all(material.base)
    assert fresh.known is None
    stored = fresh.read_tasks(material.base, skip_damaged=True)
    assert (list(stored.tasks), list(stored.damaged)) == (["a"], ["b"])
    assert fresh.known == stored.manifest == store.manifest()


def test_tasks_are_read_again_if_another_process_changes_the_store_meanwhile(
    material: Material, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, reader, real = Store(store.folder), Store(store.folder), Store.layouts
    changes = iter(["b"])

    def layouts(self: Store, manifest: Manifest) -> object:
        for name in changes:
            other.remove(name)  # its file is in the trash before it is read
        return real(self, manifest)

    monkeypatch.setattr(Store, "layouts", layouts)
    stored = reader.read_tasks(material.base)
    assert list(stored.tasks) == ["a"]
    assert not stored.damaged
    assert reader.known == other.manifest()


def test_a_store_that_was_read_and_vanished_is_noticed_by_reading_and_by_the_check(
    material: Material, store: Store, tmp_path: Path
) -> None:
    store.check_known()
    store.folder.rename(tmp_path / "elsewhere")
    for act in (lambda: store.read_all(material.base), store.check_known):
        with pytest.raises(StoreChangedError, match="vanished"):
            act()
    fresh = Store(store.folder)
    fresh.check_known()  # it knows nothing that could be missing
    with pytest.raises(StoreError, match="is not a store"):
        fresh.read_all(material.base)


def test_a_check_of_what_is_known_reads_nothing_if_nothing_is(store: Store) -> None:
    (store.folder / "manifest.json").write_bytes(b"damaged")
    assert Store(store.folder).check_known() is None  # type: ignore[func-returns-value]
    with pytest.raises(DamagedError):
        store.check_known()


def test_what_is_read_cannot_be_changed() -> None:
    for kind in (StoredTasks, _Reading):
        assert vars(kind)["__dataclass_params__"].frozen, kind.__name__


def test_a_signed_store_is_not_changed_without_its_key(material: Material, store: Store) -> None:
    assert store.sign(KEY) == Store(store.folder, signing_key=KEY).sign() == 5
    with pytest.raises(SettingError, match="has no key that signs; give one"):
        store.sign()
    for act in (store.check_known, lambda: store.remove("a")):
        with pytest.raises(SignatureError, match="is signed"):
            act()
    verified = Store(store.folder, verify_key=KEY.verifier())
    assert verified.read_all(material.base).keys() == {"a", "b"}
    with pytest.raises(SettingError, match="without a key that signs"):
        verified.check_known()
    content = (store.folder / "manifest.json").read_bytes()
    verified.check_signature("manifest.json", content)
    with pytest.raises(SignatureError):
        verified.check_signature("manifest.json", content + b" ")


def test_a_file_may_be_four_times_as_large_as_the_base_or_as_any_file_may_be(
    material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(tensor.nbytes for tensor in material.base.tensors.values())
    assert base_file.largest(material.base) == atomic.LARGEST > 4 * size
    monkeypatch.setattr(atomic, "LARGEST", 1)
    assert base_file.largest(material.base) == 4 * size


# ---- changing -------------------------------------------------------------------------------------------------------


def test_every_change_returns_the_manifest_that_it_wrote_and_remembers_it(material: Material, store: Store) -> None:
    changes = [
        lambda: store.commit(material.base, [material.delta("c", 2)]),
        lambda: store.commit(material.base, [material.delta("a", 2)], replaced={"a": material.delta("a")}),
        lambda: store.revert("a"),
        lambda: store.drop_versions("a"),
        lambda: store.rename("b", "d"),
        lambda: store.remove("c"),
    ]
    for number, act in enumerate(changes, 2):
        manifest = act()
        assert manifest == store.known == store.manifest()
        assert manifest.generation == number
    assert list(store.manifest().tasks) == ["a", "d"]


def test_a_store_that_must_exist_is_not_begun_by_a_change(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for act in (lambda: store.remove("a"), lambda: store.rename("a", "b"), lambda: store.revert("a")):
        with pytest.raises(StoreError, match="is not a store"):
            act()
    assert not store.folder.exists()


def test_a_known_store_that_vanished_is_named_so_by_a_change(store: Store, tmp_path: Path) -> None:
    store.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreChangedError, match="vanished"):
        store.remove("a")


def test_a_store_that_vanishes_before_it_is_locked_is_not_begun_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, real = Store(store.folder), Store.manifest

    def manifest(self: Store) -> Manifest:
        read = real(self)
        self.folder.rename(tmp_path / "elsewhere")
        return read

    monkeypatch.setattr(Store, "manifest", manifest)
    with pytest.raises(StoreError, match="is not a store"):
        fresh.remove("a")
    assert not fresh.exists()


def test_old_versions_are_read_the_newest_first(material: Material, store: Store) -> None:
    for content in (1, 2):
        store.commit(material.base, [material.delta("a", content)], replaced={"a": material.delta("a", content - 1)})
    assert store.versions("a") == (material.file("a", 1), material.file("a", 0))
    read = store.read_versions("a", material.base)
    assert all(same(old, material.delta("a", content)) for old, content in zip(read, (1, 0), strict=True))
    assert store.versions("b") == ()
    assert store.read_versions("b", material.base) == ()
    for act in (lambda: store.versions("x"), lambda: store.read_versions("x", material.base)):
        with pytest.raises(UnknownTaskError, match="'x'"):
            act()


def test_merging_returns_the_names_that_are_new(material: Material, store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.commit(material.base, [material.delta("a"), material.delta("c"), material.delta("d")])
    assert store.merge(other) == ("c", "d")
    assert store.merge(other.folder) == ()
    assert list(store.manifest().tasks) == ["a", "b", "c", "d"]
    copy = Store(tmp_path / "copy")
    assert copy.merge(store) == ("a", "b", "c", "d")


def test_merging_is_tried_again_if_the_other_store_changes_meanwhile(
    material: Material, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store(tmp_path / "other")
    other.commit(material.base, [material.delta("c"), material.delta("d")])
    real, removed = Store._merge, iter(["d"])

    def merge(self: Store, source: object, theirs: Manifest) -> tuple[str, ...]:
        for name in removed:
            Store(other.folder).remove(name)
        return real(self, source, theirs)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_merge", merge)
    assert store.merge(other) == ("c",)
    (other.folder / material.file("c").file).write_bytes(b"damaged")
    before = snapshot(store.folder)
    with pytest.raises(DamagedError, match="tasks/c-"):
        Store(tmp_path / "third").merge(other)
    assert snapshot(store.folder) == before


def test_checkpoints_of_a_version_have_a_folder_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = [store.work_folder("a", version) for version in range(3)]
    assert store.work_folder("a") == paths[0]
    assert len({*paths, store.work_folder("b")}) == 4
    assert {path.parent for path in paths} == {tmp_path / "work"}


def test_a_repair_forgets_what_was_known_only_if_it_changed_something(material: Material, store: Store) -> None:
    known = store.known
    store.repair(dry_run=True)
    assert store.known is known is not None
    (store.folder / material.file("a").file).unlink()
    store.repair()
    assert store.known is None
    assert list(store.read_all(material.base)) == ["b"]
