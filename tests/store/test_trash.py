"""The trash of a store, on files alone: nothing in it is overwritten, and what a manifest could name is not deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from halrp.errors import WriteError
from halrp.store import atomic, trash
from halrp.store.folder import Folder, signature_name, work_name
from halrp.store.manifest import Entry, Manifest
from tests.store.stores import manifest_of, snapshot

MANIFEST = manifest_of(3)
FILE = MANIFEST.tasks["task 1"].file
STRAY = "tasks/t9-0123456789abcdef.safetensors"


def written(root: Path, *names: str) -> Folder:
    """A folder with some files; each holds its name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return Folder(root)


# ---- moving files there ---------------------------------------------------------------------------------------------


def test_files_of_one_name_lie_side_by_side_and_the_same_content_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    names = []
    for content in (b"one", b"two", b"one", b"three", b"three", b"two"):
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / STRAY).write_bytes(content)
        names.append(trash.discard(folder, STRAY))
        assert not (tmp_path / STRAY).exists()
    first, second, third = (f"trash/{STRAY}{ending}" for ending in ("", ".1", ".2"))
    assert names == [first, second, first, third, third, second]
    assert snapshot(tmp_path) == {first: b"one", second: b"two", third: b"three"}


def test_a_mark_is_part_of_the_name_in_the_trash(tmp_path: Path) -> None:
    folder = written(tmp_path, STRAY)
    assert trash.discard(folder, STRAY, ".damaged") == f"trash/{STRAY}.damaged"
    assert snapshot(written(tmp_path, STRAY).root) == {
        STRAY: STRAY.encode(),
        f"trash/{STRAY}.damaged": STRAY.encode(),
    }
    (tmp_path / STRAY).write_bytes(b"other")
    assert trash.discard(folder, STRAY, ".damaged") == f"trash/{STRAY}.damaged.1"


def test_a_folder_in_the_trash_is_no_copy_of_a_file(tmp_path: Path) -> None:
    folder = written(tmp_path, STRAY)
    (tmp_path / "trash" / STRAY).mkdir(parents=True)
    assert trash.discard(folder, STRAY) == f"trash/{STRAY}.1"
    assert snapshot(tmp_path) == {f"trash/{STRAY}.1": STRAY.encode()}


def test_what_a_manifest_does_not_name_is_a_stray_if_the_library_gives_such_names(tmp_path: Path) -> None:
    layout = "layout-0123456789abcdef.json"
    folder = written(tmp_path, STRAY, FILE, MANIFEST.base.file, layout, "notes.txt", "tasks/mine", "work/t-1/0")
    assert trash.strays(folder, MANIFEST) == [layout, STRAY]
    assert trash.strays(folder, None) == sorted([MANIFEST.base.file, layout]) + sorted([STRAY, FILE])


# ---- after a commit -------------------------------------------------------------------------------------------------


def test_a_commit_removes_unfinished_files_and_signatures_of_earlier_manifests(tmp_path: Path) -> None:
    part = atomic.TEMPORARY
    unfinished = [f"{at}.x-1-ab{part}" for at in ("", "tasks/", "trash/", "signatures/", "signatures/tasks/")]
    stale = "signatures/manifest-0123456789abcdef.sig"
    stay = [
        FILE,
        f"film{part}",
        signature_name("manifest.json", MANIFEST.content),
        signature_name(STRAY),
        "signatures/manifest-0123.sig",
        f"work/.x-1-ab{part}",
    ]
    folder = written(tmp_path, *unfinished, stale, *stay)
    assert sorted(trash.unfinished(folder)) == sorted(unfinished)
    assert trash.stale_signatures(folder, MANIFEST) == [stale]
    trash.tidy(folder, MANIFEST)
    assert set(snapshot(tmp_path)) == set(stay)


def test_one_file_that_cannot_be_moved_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, done = "base-0123456789abcdef.safetensors", f"work/{work_name('task 1')}/0.safetensors"
    folder, rename = written(tmp_path, base, STRAY, done), os.rename

    def fail(source: Any, target: Any) -> None:
        if Path(source).name == base:
            raise OSError(errno.EIO, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    trash.tidy(folder, MANIFEST)
    assert set(snapshot(tmp_path)) == {base, f"trash/{STRAY}"}


def test_checkpoints_of_finished_versions_are_removed_and_those_of_the_next_one_stay(tmp_path: Path) -> None:
    task = "task 1"
    manifest = MANIFEST.edited(versions={task: (Entry(STRAY, "0123456789abcdef" * 4, 1),)})
    finished = [work_name(task), work_name(task, 1), work_name("task 0")]
    stay = [work_name(task, 2), work_name("task 0", 1), work_name("other")]
    folder = written(tmp_path, *(f"work/{name}/0.safetensors" for name in (*finished, *stay)))
    trash.clear_work(folder, manifest)
    assert {path.name for path in (tmp_path / "work").iterdir()} == set(stay)


def test_work_that_cannot_be_removed_stays_without_an_error(tmp_path: Path) -> None:
    """A file in place of a folder is not what the library made."""
    folder = written(tmp_path, f"work/{work_name('task 0')}", *(f"work/{work_name(f'task {n}')}/0" for n in (1, 2)))
    trash.clear_work(folder, MANIFEST)
    assert set(snapshot(tmp_path)) == {f"work/{work_name('task 0')}"}


# ---- what pruning replaced ------------------------------------------------------------------------------------------


def pruning() -> Manifest:
    return MANIFEST.edited(pruned=(STRAY, FILE))


def test_what_the_last_commit_pruned_is_deleted_with_its_signature_unless_it_is_in_use_again(tmp_path: Path) -> None:
    copies = [name for file in (STRAY, FILE) for name in (file, f"trash/{file}", signature_name(file))]
    folder = written(tmp_path, *copies)
    trash.forget_pruned(folder, pruning(), MANIFEST)
    assert set(snapshot(tmp_path)) == set(copies[3:])


def test_a_pruned_file_that_cannot_be_deleted_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, STRAY)

    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(WriteError, match=f"{STRAY} could not be deleted: Input/output error; .* unchanged"):
        trash.forget_pruned(folder, pruning(), MANIFEST)


@pytest.mark.parametrize(
    ("before", "there", "flushed"),
    [(pruning(), True, ["tasks"]), (pruning(), False, []), (MANIFEST, True, [])],
    ids=["pruned", "nothing in the trash", "nothing pruned"],
)
def test_deletions_are_on_the_disk_before_a_generation_that_does_not_remember_them(
    before: Manifest, there: bool, flushed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, *([f"trash/{STRAY}"] if there else []))
    seen: list[Path] = []
    monkeypatch.setattr(atomic, "flush_folder", seen.append)
    trash.forget_pruned(folder, before, MANIFEST)
    assert seen == [tmp_path / "trash" / name for name in flushed]


# ---- emptying it ----------------------------------------------------------------------------------------------------


def test_emptying_deletes_the_trash_and_the_signatures_of_what_was_in_it(tmp_path: Path) -> None:
    gone = [f"trash/{FILE}.1", f"trash/{STRAY}", signature_name("tasks/t8-0123456789abcdef.safetensors")]
    stay = [STRAY, signature_name(STRAY), FILE, signature_name(FILE), signature_name(MANIFEST.base.file)]
    stay += ["signatures/manifest-0123456789abcdef.sig", "signatures/notes.txt"]
    trash.empty(written(tmp_path, *gone, *stay), MANIFEST)
    assert set(snapshot(tmp_path)) == set(stay)
    assert not (tmp_path / "trash").exists()


def test_a_store_without_a_trash_is_emptied_too(tmp_path: Path) -> None:
    folder = written(tmp_path, FILE, signature_name("tasks/t8-0123456789abcdef.safetensors"))
    trash.empty(folder, MANIFEST)
    assert set(snapshot(tmp_path)) == {FILE}
