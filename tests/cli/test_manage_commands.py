"""Commands that change a store: what they do, what they print, and their exit codes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from halrp import Halrp, Learner, Store
from halrp.cli import manage
from halrp.cli.app import app
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task
from tests.store.stores import snapshot

ran = partial(invoke, app)
MODEL = "tests.cli.test_manage_commands:build"


def build() -> object:
    return net("mlp")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with tasks a, b and c, and an old version of b."""
    folder = tmp_path_factory.mktemp("stores") / "store"
    method = Halrp.budget(growth_per_task=0.9)
    learner = Learner(net("mlp"), recipe=FAST, method=method, base="given", store=folder)
    for number, name in enumerate("abc"):
        learner.learn(name, tiny_task("mlp", number))
    learner.learn("b", tiny_task("mlp", 8), replace=True)
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "store"))


@pytest.fixture(autouse=True)
def _restored_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def tasks(folder: Path) -> list[str]:
    return list(Learner.load(folder, net("mlp")).tasks)


def test_every_command_has_help_with_an_example() -> None:
    for command in manage.COMMANDS:
        assert f"Example: halrp {command}" in ran(command, "--help").out


def test_remove_and_rename(store: Path) -> None:
    result = ran("remove", store, "a")
    assert (result.code, result.out) == (0, f"removed task 'a'; its files are in {store / 'trash'}\n")
    assert ran("rename", store, "c", "d").code == 0
    assert tasks(store) == ["b", "d"]
    for arguments in (("remove", store, "a"), ("rename", store, "b", "d"), ("remove", store / "nowhere", "a")):
        before = snapshot(store)
        failed = ran(*arguments)
        assert failed.code == 2
        assert failed.error.startswith("halrp: ")
        assert snapshot(store) == before


def test_versions_are_listed_brought_back_and_dropped(store: Path) -> None:
    manifest = Store(store).manifest()
    present, old = manifest.tasks["b"], manifest.versions["b"][0]
    lines = ran("versions", store, "b").lines
    assert [(line[0], line[-1]) for line in lines] == [("present", present.file), ("old", old.file)]
    listed = json.loads(ran("versions", store, "b", "--json").out)
    assert [entry["sha256"] for entry in listed] == [present.sha256, old.sha256]
    assert old.file in ran("revert", store, "b").out
    assert Store(store).manifest().tasks["b"] == old
    assert ran("drop", store, "b").out == "dropped 1 old versions of task 'b'\n"
    failed = ran("revert", store, "b")
    assert failed.code == 2
    assert "no other version of 'b'" in failed.error
    assert ran("versions", store, "x").code == 2


def test_inspect_and_verify_know_versions_and_trash(store: Path) -> None:
    ran("remove", store, "a")
    out = ran("inspect", store).out
    assert "Old versions of tasks: 1" in out
    assert "halrp repair --empty-trash" in out
    content = json.loads(ran("inspect", store, "--json").out)
    assert content["generation"] == 5
    assert content["trash_bytes"] > 0
    result = ran("verify", store, "--model", MODEL)
    assert result.code == 0
    kinds = [line.split()[0] for line in result.out.splitlines()]
    assert kinds == ["good"] * 6 + ["orphan", "all"]
    assert "in the trash" in result.out
    (store / Store(store).manifest().versions["b"][0].file).write_bytes(b"changed")
    assert ran("verify", store).code == 1


def test_merge_adds_tasks_and_names_conflicts(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert ran("merge", other, store).out == "added 3 tasks: 'a', 'b', 'c'\n"
    Store(other).rename("a", "d")
    assert ran("merge", store, other).out == "added 1 tasks: 'd'\n"
    assert ran("merge", store, other).out == "added 0 tasks: none; it has them all\n"
    Store(other).revert("b")
    failed = ran("merge", store, other)
    assert failed.code == 2
    assert "different tasks of the same name: 'b'" in failed.error


def test_repair_shows_what_it_would_do_does_it_and_says_what_is_lost(store: Path) -> None:
    assert ran("repair", store).out == "nothing to repair\n"
    manifest = Store(store).manifest()
    (store / manifest.tasks["a"].file).unlink()
    layout = next(iter(manifest.layouts.values())).file
    (store / layout).unlink()
    before = snapshot(store)
    planned = ran("repair", store, "--dry-run", "--model", MODEL)
    assert planned.code == 1
    assert planned.lines[0][:2] == ["rebuild", f"{layout}:"]
    assert planned.out.endswith("a dry run: nothing was changed\nlost: 1 tasks: 'a'\n")
    assert snapshot(store) == before
    assert ran("repair", store, "--model", MODEL).code == 1
    assert tasks(store) == ["b", "c"]
    emptied = ran("repair", store, "--empty-trash")
    assert emptied.code == 0
    assert emptied.lines[0][0] == "delete"
    assert not (store / "trash").exists()
    assert ran("repair", store / "nowhere").code == 2


def test_names_from_a_store_are_printed_without_effect(store: Path) -> None:
    assert "\x1b" not in ran("rename", store, "a", "evil\x1b[31m").out
    assert "\x1b" not in ran("remove", store, "evil\x1b[31m").out
