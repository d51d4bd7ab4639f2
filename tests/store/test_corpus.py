"""Stores of earlier versions are still read, and give the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from halrp import Flat, Halrp, Learner, Recipe, Store
from halrp.model.description import FORMAT
from tests.store.corpus.make import CORPORA, HERE, NAMES, checksum, task
from tests.store.stores import snapshot


def loaded(name: str, folder: Path | None = None) -> Learner:
    """A corpus in a learner whose model has a head of another width."""
    return Learner.load((folder or HERE) / name / "store", CORPORA[name].model(classes=7))


def test_every_corpus_is_read() -> None:
    assert sorted(CORPORA) == sorted(folder.name for folder in HERE.glob("v*"))


@pytest.mark.parametrize("name", CORPORA)
def test_an_old_store_predicts_as_it_did(name: str) -> None:
    folder = HERE / name
    before = snapshot(folder)
    learner = loaded(name)
    expected = safetensors.torch.load_file(folder / "expected.safetensors")
    x = expected.pop("x")
    assert expected.keys() == learner.tasks.keys()
    for task_name, logits in expected.items():
        # Logits are of size one; machines may sum a product in another order.
        torch.testing.assert_close(learner.predict(x, task_name), logits, rtol=1e-6, atol=1e-6)
        assert learner.tasks[task_name].class_names == (NAMES if logits.shape[1] == 3 else None)
    assert snapshot(folder) == before  # reading writes nothing


@pytest.mark.parametrize("name", CORPORA)
def test_an_old_store_gives_bit_identical_numbers(name: str) -> None:
    expected = json.loads((HERE / name / "tensors.json").read_text(encoding="utf-8"))
    assert {n: checksum(delta) for n, delta in loaded(name).tasks.items()} == expected


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_has_every_form_of_a_matrix_and_is_small(name: str) -> None:
    tasks = loaded(name).tasks.values()
    coded = {key: matrix for delta in tasks for key, matrix in delta.coded.items()}
    assert {delta.precision for delta in tasks} == {"float32", "bfloat16", "int8"}
    assert {delta.view for delta in tasks} >= {"mean", "full"}
    assert {kind for delta in tasks for m in delta.coded.values() for kind in m.parts} == {"values", "scale", "mask"}
    assert {key.partition("/")[0] for key in coded} == {"p", "q", "dense"}
    assert any(key.endswith("running_mean") for delta in tasks for key in delta.plain)
    assert any(delta.is_base for delta in tasks) is (CORPORA[name].base == "first")  # the base's own task
    assert sum(map(len, snapshot(HERE / name).values())) < CORPORA[name].limit


@pytest.mark.parametrize("name", [name for name in CORPORA if name.startswith(f"v{FORMAT}")])
def test_a_store_whose_files_have_the_present_format_is_written_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    folder = HERE / name / "store"
    loaded(name).save(tmp_path / "again")
    old, new = snapshot(folder), snapshot(tmp_path / "again")
    # The manifest may have a later format, but what it names is the same.
    manifests = [json.loads(files.pop("manifest.json")) for files in (old, new)]
    for part in ("base", "layouts", "tasks", "head", "channels_last", "fingerprint"):
        assert manifests[0][part] == manifests[1][part], part
    assert new.pop("lock") == b""
    assert old == new


@pytest.mark.parametrize("name", CORPORA)
def test_an_old_store_that_is_saved_elsewhere_holds_the_same_numbers_in_smaller_files(
    name: str, tmp_path: Path
) -> None:
    learner = loaded(name)
    learner.save(tmp_path / name / "store")
    again = loaded(name, tmp_path)
    for n, delta in learner.tasks.items():
        assert checksum(again.tasks[n]) == checksum(delta)
        assert (again.tasks[n].recovered, again.tasks[n].provenance) == (delta.recovered, delta.provenance)
    old, new = Store(HERE / name / "store").manifest(), Store(tmp_path / name / "store").manifest()
    assert all(new.tasks[n].bytes <= old.tasks[n].bytes for n, delta in learner.tasks.items() if not delta.is_base)


@pytest.mark.parametrize("name", CORPORA)
def test_old_versions_of_a_corpus_can_be_brought_back(name: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / name / "store", tmp_path / name / "store")
    learner = loaded(name, tmp_path)
    replaced = {n for n in learner.tasks if learner.versions(n)}
    assert replaced == set(CORPORA[name].replaced)
    for n in replaced:
        before = checksum(learner.tasks[n])
        assert checksum(learner.revert(n)) != before
        learner.revert(n)
        assert checksum(loaded(name, tmp_path).tasks[n]) == before


@pytest.mark.parametrize("name", CORPORA)
def test_an_old_store_can_be_continued(name: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / name / "store", tmp_path / name / "store")
    learner = Learner(
        CORPORA[name].model(),
        head=CORPORA[name].head,
        store=tmp_path / name / "store",
        method=Halrp(allocate=Flat(1)),
        recipe=Recipe(epochs=2, batch=8),
    )
    files = snapshot(tmp_path / name / "store" / "tasks")
    x, y = task(5)
    before = {n: learner.predict(x, n) for n in learner.tasks}
    learner.learn("new", (x, y))
    learner.save(tmp_path / name / "store")  # what is there and equal stays, in whichever format
    assert snapshot(tmp_path / name / "store" / "tasks").items() >= files.items()
    again = loaded(name, tmp_path)
    assert list(again.tasks) == [*before, "new"]
    assert all(torch.equal(again.predict(x, n), logits) for n, logits in before.items())
