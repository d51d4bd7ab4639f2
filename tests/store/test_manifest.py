"""Manifests: large ones are read in linear time and bounded, and each format is written as it always was."""

from __future__ import annotations

import json
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from halrp import Store
from halrp.errors import DamagedError, StoreError
from halrp.store import atomic, change
from halrp.store import manifest as manifests
from halrp.store.manifest import FORMAT, MOST_FILES, Entry, Manifest
from tests.helpers import tiny_task
from tests.store.corpus.make import HERE
from tests.store.stores import learned, manifest_of, snapshot


def seconds(content: bytes) -> float:
    began = time.process_time()
    Manifest.parse(content, "manifest")
    return time.process_time() - began


@pytest.mark.parametrize("version", [2, FORMAT])
def test_reading_takes_linear_time(version: int) -> None:
    """Sixteen times as many tasks; quadratic reading would take 256 times as long, and noise is far from four times."""
    small, big = (manifest_of(count, version).content for count in (2_000, 32_000))
    assert min(seconds(big) for _ in range(3)) < 64 * min(seconds(small) for _ in range(3))


def test_the_most_tasks_are_read_and_more_are_refused_by_number() -> None:
    manifest = manifest_of(MOST_FILES + 1)
    with pytest.raises(DamagedError, match=r"names 200,001 files, more than the 200,000"):
        Manifest.parse(manifest.content, "manifest")


def test_a_commit_of_too_many_files_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    before = snapshot(tmp_path)
    monkeypatch.setattr(change, "MOST_FILES", 4)  # the base, its layout and two tasks
    with pytest.raises(StoreError, match="would hold 5 files, more than the 4"):
        learner.learn("t2", tiny_task("mlp", 2))
    after = {name: content for name, content in snapshot(tmp_path).items() if name in before}
    assert after == before
    assert list(learner.tasks) == ["t0", "t1"]


def test_a_file_larger_than_a_manifest_may_be_is_not_read(tmp_path: Path) -> None:
    learned("mlp", tasks=1, store=tmp_path)
    with (tmp_path / "manifest.json").open("ab") as file:
        file.truncate(manifests.LARGEST + 1)
    with pytest.raises(DamagedError, match="more than the"):
        Store(tmp_path).manifest()


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_earlier_formats_are_spelled_as_python_indents_them(name: str) -> None:
    content = (HERE / name / "store" / "manifest.json").read_bytes()
    manifest = Manifest.parse(content, "manifest")
    assert f"{json.dumps(json.loads(content), indent=1)}\n".encode() == manifest.content == content
    changed = replace(manifest, tasks={})
    assert f"{json.dumps(json.loads(changed.content), indent=1)}\n".encode() == changed.content


def test_the_checksum_of_a_manifest_is_that_of_the_lines_before_it() -> None:
    content = manifest_of(3).content
    lines = content.splitlines(keepends=True)
    assert json.loads(content)["sha256"] == atomic.checksum(b"".join(lines[:-2]))
    assert len(lines) == 13 + 2 + 1 + 3 + 1 + 2


def test_a_head_that_is_no_text_is_refused() -> None:
    content = spelled(manifest_of(3).content, '"head": "fc"', '"head": ["fc"]')
    with pytest.raises(DamagedError, match=r"^source has a bad head"):
        Manifest.parse(content, "source")


def test_format_3_is_read_without_the_field_that_came_later() -> None:
    manifest = manifest_of(3, 3)
    assert b"counts_head" not in manifest.content
    assert Manifest.parse(manifest.content, "manifest") == manifest


def test_the_number_of_pruned_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pruned = tuple(entry.file for entry in manifest_of(12).tasks.values())[4:]
    content = replace(manifest_of(3), pruned=pruned).content
    assert Manifest.parse(content, "manifest").pruned == pruned
    monkeypatch.setattr(manifests, "MOST_FILES", len(pruned) - 1)
    with pytest.raises(DamagedError, match="names 8 files, more than the 7"):
        Manifest.parse(content, "manifest")


def test_a_manifest_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        manifest_of(1).head = "other"  # type: ignore[misc]


def test_a_pruned_file_that_is_in_use_is_refused() -> None:
    manifest = manifest_of(3)
    lying = replace(manifest, pruned=(manifest.tasks["task 1"].file,))
    with pytest.raises(DamagedError, match="list of pruned files"):
        Manifest.parse(lying.content, "manifest")


def spelled(content: bytes, old: str, new: str) -> bytes:
    """A manifest with a part of its text replaced and its checksum put right."""
    text = content.decode()
    assert text.count(old) == 1
    before, _, _ = text.replace(old, new).rpartition(' "sha256": ')
    return f'{before} "sha256": "{atomic.checksum(before.encode())}"\n}}\n'.encode()


def with_versions() -> Manifest:
    manifest = manifest_of(3)
    old = manifest_of(6).tasks
    return replace(manifest, versions={"task 1": (old["task 4"], old["task 5"])})


def test_old_versions_are_written_beside_their_task_and_read_back() -> None:
    manifest = with_versions()
    read = Manifest.parse(manifest.content, "manifest")
    assert read == manifest
    assert [len(task.get("versions", ())) for task in json.loads(manifest.content)["tasks"]] == [0, 2, 0]
    assert ["versions" in task for task in json.loads(manifest.content)["tasks"]] == [False, True, False]
    assert {entry.file for entry in read.versions["task 1"]} <= {entry.file for entry in read.entries}
    assert sum(1 for _ in read.entries) == 1 + 1 + 3 + 2


OTHER = "0" * 64
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "channels_last": ({"channels_last": 1}, "bad channels_last"),
    "fingerprint": ({"fingerprint": "g" * 64}, "bad fingerprint"),
    "counts_head": ({"counts_head": "true"}, "bad counts_head"),
    "identity": ({"identity": "a" * 63}, "bad identity"),
    "generation": ({"generation": 0}, "bad generation"),
    "history of other digits": ({"history": ("not sixteen digits",)}, "bad history"),
    "history that is too long": ({"history": ("a" * 16,) * 33}, "bad history"),
    "base elsewhere": ({"base": Entry(f"../base-{OTHER[:16]}.safetensors", OTHER, 8)}, "bad file '../base"),
    "base of another content": ({"base": Entry(f"base-{'1' * 16}.safetensors", OTHER, 8)}, "bad file 'base-1111"),
    "base without a checksum": ({"base": Entry(f"base-{OTHER[:16]}.safetensors", "0" * 63, 8)}, "bad checksum"),
    "base that is too small": ({"base": Entry(f"base-{OTHER[:16]}.safetensors", OTHER, 7)}, "bad size"),
    "task without a name": ({"tasks": {"": manifest_of(1).tasks["task 0"]}}, "twice or not at all"),
    "layout under the name of a task": ({"layouts": {"": manifest_of(1).tasks["task 0"]}}, "bad file 'tasks/t0"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD.values(), ids=BAD)
def test_a_bad_value_is_refused_by_its_name_though_the_checksum_is_right(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DamagedError, match=f"^source .*{reason}"):
        Manifest.parse(replace(manifest_of(3), **changes).content, "source")


def test_the_limits_of_good_values_are_accepted() -> None:
    smallest = Entry(f"base-{OTHER[:16]}.safetensors", OTHER, 8)
    manifest = replace(manifest_of(3), base=smallest, history=("a" * 16,) * 32)
    assert Manifest.parse(manifest.content, "manifest") == manifest


def test_a_name_that_occurs_twice_and_a_field_that_nobody_knows_are_refused() -> None:
    content = manifest_of(3).content
    with pytest.raises(DamagedError, match="names the task 'task 0' twice"):
        Manifest.parse(spelled(content, '"name": "task 1"', '"name": "task 0"'), "manifest")
    with pytest.raises(DamagedError, match="bad entry"):
        Manifest.parse(spelled(content, '"name": "task 1"', '"name": "task 1", "size": 1'), "manifest")


def test_old_versions_and_layouts_count_among_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, old = manifest_of(3), with_versions()
    for manifest, files in ((plain, 4), (old, 6)):
        monkeypatch.setattr(manifests, "MOST_FILES", files)
        assert Manifest.parse(manifest.content, "manifest") == manifest
        monkeypatch.setattr(manifests, "MOST_FILES", files - 1)
        with pytest.raises(DamagedError, match=f"names {files} files, more than the {files - 1}"):
            Manifest.parse(manifest.content, "manifest")
