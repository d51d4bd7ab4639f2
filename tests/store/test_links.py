"""Symbolic links below a store: nothing outside it is read, written, moved or removed through one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from halrp import Learner, Store
from halrp.errors import LinkError, WriteError
from tests.helpers import net, tiny_task
from tests.store.stores import learned, same_predictions, snapshot

LINKED = ("tasks", "work", "lock", "trash", "trash/tasks", "manifest.json")


@pytest.mark.parametrize("linked", LINKED)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_commit_refuses_a_link_by_name_and_touches_nothing_outside(
    linked: str, dangling: bool, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    learner = learned("mlp", tasks=2, store=folder)
    path, target = folder / linked, outside / linked
    target.parent.mkdir(parents=True)
    if path.exists():
        path.rename(target)
    else:
        target.mkdir()
    if target.is_dir():  # files that a commit would tidy away
        for name in ("t9-0123456789abcdef.safetensors", ".x-1-deadbeef.part"):
            (target / name).write_bytes(b"precious")
        (target / Store(folder).work_folder("t1").name).mkdir()
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    if dangling:
        target.rename(outside / "renamed")
    before, inside = snapshot(outside), snapshot(folder)
    folders = sorted(outside.rglob("*"))
    with pytest.raises((LinkError, WriteError), match=rf"{linked} .*symbolic link"):
        learner.learn("t2", tiny_task("mlp", 2))
    with pytest.raises((LinkError, WriteError), match=rf"{linked} .*symbolic link"):
        learner.save(folder)
    assert snapshot(outside) == before
    assert sorted(outside.rglob("*")) == folders
    assert {n: c for n, c in snapshot(folder).items() if not n.startswith("work/")} == inside
    assert list(learner.tasks) == ["t0", "t1"]


@pytest.mark.parametrize("kind", ["base", "task", "layout"])
def test_a_file_that_is_a_link_is_not_read(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    learned("mlp", tasks=2, store=folder)
    manifest = Store(folder).manifest()
    entries = {"base": manifest.base, "task": manifest.tasks["t1"], "layout": next(iter(manifest.layouts.values()))}
    path = folder / entries[kind].file
    path.rename(tmp_path / "secret")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(LinkError, match=path.name):
        Learner.load(folder, net("mlp"))


def test_work_folders_are_cleared_without_following_links(tmp_path: Path) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    learner = learned("mlp", tasks=2, store=folder)
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    for task in ("t0", "t1"):
        work = Store(folder).work_folder(task)
        work.parent.mkdir(exist_ok=True)
        if task == "t0":
            work.symlink_to(outside)
        else:
            work.mkdir()
            (work / "link").symlink_to(outside)
    learner.learn("t2", tiny_task("mlp", 2))
    assert snapshot(outside) == {"precious": b"precious"}
    with pytest.raises(LinkError, match="work/t0"):
        Store(folder).work_folder("t0")


def test_the_store_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=1, store=tmp_path / "disk" / "store")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    through = learned("mlp", tasks=2, store=tmp_path / "link" / "store")
    shutil.copytree(tmp_path / "disk", tmp_path / "copy")
    (tmp_path / "second").symlink_to(tmp_path / "copy" / "store")
    assert same_predictions(through, Learner.load(tmp_path / "second", net("mlp")), tiny_task("mlp", 7)[0])
    assert list(learner.tasks) == ["t0"]
