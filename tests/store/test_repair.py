"""Repair: what can be brought back is, what is lost is named, a dry run writes nothing, and no task file is deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from halrp import Learner, Store
from halrp.errors import FormatError, LinkError, StoreError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.plan import plan
from halrp.store.manifest import Entry
from halrp.store.repair import Repair
from tests.helpers import net, tiny_task
from tests.store.corpus.make import CORPORA, HERE
from tests.store.stores import X, committed, learned, reopened, same_predictions, snapshot


def kinds(report: Repair) -> dict[str, str]:
    return {step.file: step.kind for step in report.steps}


def repaired(folder: Path, **options: object) -> Repair:
    """A repair after a dry run that plans the same and changes nothing."""
    before = snapshot(folder)
    planned = Store(folder).repair(dry_run=True, **options)  # type: ignore[arg-type]
    assert not planned.done
    assert snapshot(folder) == before
    report = Store(folder).repair(**options)  # type: ignore[arg-type]
    assert report.done
    assert (report.steps, report.lost, report.usable) == (planned.steps, planned.lost, planned.usable)
    return report


def written_in_turn(folder: Path, entries: Iterable[Entry]) -> None:
    """Give files of a store the times that they have if they are written one after the other."""
    for number, entry in enumerate(entries):
        os.utime(folder / entry.file, ns=(10**9 * number, 10**9 * number))


def test_a_good_store_needs_nothing(tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    before = snapshot(tmp_path)
    assert not repaired(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_damaged_task_is_set_aside_and_dropped_and_the_others_are_read(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    manifest = Store(tmp_path).manifest()
    file = manifest.tasks["t1"].file
    (tmp_path / file).write_bytes(b"changed")
    report = repaired(tmp_path)
    assert report.lost == ("t1",)
    assert report.usable
    assert [(step.kind, step.file) for step in report.steps] == [("set aside", file), ("lost", file)]
    assert learner.refresh().removed == ("t1",)
    assert same_predictions(learner, reopened(tmp_path), X)
    files = snapshot(tmp_path)
    assert files[f"trash/{file}.damaged"] == b"changed"
    assert files[f"trash/manifest-{manifest.digest[:16]}.json"] == manifest.content  # it names what was lost
    assert not repaired(tmp_path)


def test_files_come_back_from_the_trash_when_the_manifest_names_them(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    store = Store(tmp_path)
    manifest = store.manifest()
    learner.remove("t1")
    learner.rename("t2", "x")
    (tmp_path / "manifest.json").write_bytes(manifest.content)  # somebody restores an earlier manifest
    report = repaired(tmp_path)
    assert kinds(report) == {manifest.tasks[name].file: "restore" for name in ("t1", "t2")}
    assert not report.lost
    assert same_predictions(learned("mlp"), reopened(tmp_path), X)


def test_a_good_copy_in_the_trash_is_chosen_among_damaged_ones(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    entry = Store(tmp_path).manifest().tasks["t1"]
    content = (tmp_path / entry.file).read_bytes()
    (tmp_path / entry.file).write_bytes(b"damaged")
    (tmp_path / "trash" / "tasks").mkdir(parents=True)
    (tmp_path / "trash" / entry.file).write_bytes(b"also damaged")
    (tmp_path / "trash" / f"{entry.file}.1").write_bytes(content)
    repaired(tmp_path)
    assert same_predictions(learner, reopened(tmp_path), X)
    assert snapshot(tmp_path)[f"trash/{entry.file}"] == b"also damaged"


def test_a_lost_present_version_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    (tmp_path / Store(tmp_path).manifest().tasks["t1"].file).unlink()
    report = repaired(tmp_path)
    assert not report.lost
    assert "the version before, is back" in report.steps[-1].note
    assert same_predictions(learned("mlp"), reopened(tmp_path), X)


@pytest.mark.parametrize("way", ["missing", "cut", "empty"])
def test_a_lost_manifest_is_made_again_from_the_files(way: str, tmp_path: Path) -> None:
    learner = learned("mlp", tasks=4, store=tmp_path)
    before = Store(tmp_path).manifest()
    written_in_turn(tmp_path, before.tasks.values())
    path = tmp_path / "manifest.json"
    if way == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20] if way == "cut" else b"")
    flipped = tmp_path / before.tasks["t2"].file
    flipped.write_bytes(flipped.read_bytes()[:-1] + bytes([flipped.read_bytes()[-1] ^ 1]))
    report = repaired(tmp_path)
    assert kinds(report) == {"manifest.json": "rebuild", before.tasks["t2"].file: "set aside"}
    after = Store(tmp_path).manifest()
    assert (after.head, after.channels_last, after.fingerprint) == (
        before.head,
        before.channels_last,
        before.fingerprint,
    )
    assert after.base == before.base
    assert after.layouts == before.layouts
    assert list(after.tasks.items()) == [(name, e) for name, e in before.tasks.items() if name != "t2"]
    assert all(torch.equal(reopened(tmp_path).predict(X, n), learner.predict(X, n)) for n in ("t0", "t1", "t3"))


def test_of_several_versions_the_newest_file_is_the_present_one_and_the_report_says_so(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    learner.learn("t1", tiny_task("mlp", 5), replace=True)
    before = Store(tmp_path).manifest()
    written_in_turn(tmp_path, (*before.versions["t1"], before.tasks["t1"]))
    (tmp_path / "manifest.json").unlink()
    report = repaired(tmp_path)
    assert kinds(report)[before.tasks["t1"].file] == "choose"
    after = Store(tmp_path).manifest()
    assert (after.tasks["t1"], after.versions) == (before.tasks["t1"], before.versions)


@pytest.mark.parametrize("name", CORPORA)
def test_a_store_of_any_format_can_be_made_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(HERE / name / "store", folder)
    before = Store(folder).manifest()
    old = [entry for versions in before.versions.values() for entry in reversed(versions)]
    written_in_turn(folder, (*old, *before.tasks.values()))  # a checkout writes them in any order
    (folder / "manifest.json").unlink()
    if name.startswith("v1"):  # its files do not name the head
        with pytest.raises(StoreError, match="cannot be repaired without its model"):
            Store(folder).repair()
    model = CORPORA[name].model(classes=3)
    repaired(folder, like=Base(model, plan(model, None), True) if name.startswith("v1") else None)
    after = Store(folder).manifest()
    assert (after.head, after.channels_last, after.fingerprint) == (
        before.head,
        before.channels_last,
        before.fingerprint,
    )
    assert set(after.tasks.items()) == set(before.tasks.items())
    assert after.versions == before.versions
    Learner.load(folder, CORPORA[name].model(classes=3))


def test_a_store_without_any_base_cannot_be_made_again(tmp_path: Path) -> None:
    learned("mlp", store=tmp_path)
    (tmp_path / Store(tmp_path).manifest().base.file).unlink()
    (tmp_path / "manifest.json").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match="no base that can be read"):
        Store(tmp_path).repair()
    assert snapshot(tmp_path) == before


def like(seed: int = 0) -> Base:
    model = net("mlp", seed)
    return Base(views.clone(model), plan(model, None), False)


def test_a_model_gives_back_a_lost_layout_and_one_with_the_weights_the_base(tmp_path: Path) -> None:
    learner = learned("mlp", base="given", store=tmp_path)
    manifest = Store(tmp_path).manifest()
    layout = next(iter(manifest.layouts.values())).file
    (tmp_path / layout).unlink()
    report = repaired(tmp_path)
    assert not report.usable
    assert not report.lost  # their files are there
    assert Store(tmp_path).manifest().tasks == manifest.tasks
    report = repaired(tmp_path, like=like(seed=3))  # any weights: the store has the base
    assert kinds(report) == {layout: "rebuild"}
    assert report.usable
    (tmp_path / manifest.base.file).unlink()
    assert not repaired(tmp_path, like=like(seed=3)).usable
    assert kinds(repaired(tmp_path, like=like())) == {manifest.base.file: "rebuild"}
    assert same_predictions(learner, reopened(tmp_path), X)


def test_emptying_the_trash_deletes_it_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    learner = learned("mlp", store=folder)
    learner.remove("t1")
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "trash" / "link").symlink_to(tmp_path / "precious")
    (folder / "tasks" / ".t-1-deadbeef.part").write_bytes(b"unfinished")
    report = repaired(folder, empty_trash=True)
    assert [step.kind for step in report.steps] == ["delete"] * 3
    assert set(snapshot(folder)) == committed(folder)
    assert (tmp_path / "precious").exists()
    learner.learn("t3", tiny_task("mlp", 3))
    assert same_predictions(learner, reopened(folder), X)


def test_what_is_no_store_or_of_a_later_version_or_has_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="is not a store"):
            Store(folder).repair()
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    learned("mlp", tasks=1, store=tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"format": 4', b'"format": 9'))
    with pytest.raises(FormatError, match="format 9"):
        Store(tmp_path / "store").repair()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match=r"manifest\.json"):
        Store(tmp_path / "store").repair()
