"""Stores of earlier versions are still read, to the same predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from halrp import Flat, Halrp, Learner, Recipe
from halrp.store.store import FORMAT
from tests.store.corpus.make import HERE, model, task
from tests.store.test_store import snapshot

CORPORA = sorted(HERE.glob("v*"))


def test_there_is_a_corpus_of_this_format() -> None:
    assert f"v{FORMAT}" in [folder.name for folder in CORPORA]


@pytest.mark.parametrize("folder", CORPORA, ids=lambda folder: folder.name)
def test_an_old_store_predicts_as_it_did(folder: Path) -> None:
    before = snapshot(folder)
    learner = Learner.load(folder / "store", model(classes=7))
    expected = safetensors.torch.load_file(folder / "expected.safetensors")
    x = expected.pop("x")
    assert expected.keys() == learner.tasks.keys()
    for name, logits in expected.items():
        # Logits are of size one; machines may sum a product in another order.
        torch.testing.assert_close(learner.predict(x, name), logits, rtol=1e-6, atol=1e-6)
        assert learner.tasks[name].class_names == ("wren", "rook", "Elster")
    assert snapshot(folder) == before  # reading writes nothing


@pytest.mark.parametrize("folder", CORPORA, ids=lambda folder: folder.name)
def test_a_corpus_has_every_form_of_a_matrix_and_is_small(folder: Path) -> None:
    tasks = Learner.load(folder / "store", model()).tasks.values()
    keys = [key for delta in tasks for key in delta.tensors()]
    assert {delta.precision for delta in tasks} == {"float32", "bfloat16", "int8"}
    assert {delta.view for delta in tasks} >= {"mean", "full"}
    for ending in (".mask", ".scale", ".values"):
        assert any(key.endswith(ending) for key in keys)
    for beginning in ("own/", "p/", "plain/1.running_mean"):
        assert any(key.startswith(beginning) for key in keys)
    assert sum(map(len, snapshot(folder).values())) < 60_000


def test_a_store_of_this_format_is_written_again_to_the_byte(tmp_path: Path) -> None:
    folder = HERE / f"v{FORMAT}" / "store"
    Learner.load(folder, model()).save(tmp_path / "again")
    old, new = snapshot(folder), snapshot(tmp_path / "again")
    manifests = [json.loads(files.pop("manifest.json")) for files in (old, new)]
    for manifest in manifests:  # the version that wrote it may differ, and with it the checksum
        del manifest["halrp"], manifest["sha256"]
    assert manifests[0] == manifests[1]
    assert new.pop("lock") == b""
    assert old == new


def test_an_old_store_can_be_gone_on_with(tmp_path: Path) -> None:
    shutil.copytree(HERE / f"v{FORMAT}" / "store", tmp_path / "store")
    learner = Learner(
        model(), store=tmp_path / "store", method=Halrp(allocate=Flat(1)), recipe=Recipe(epochs=2, batch=8)
    )
    x, y = task(5)
    before = {name: learner.predict(x, name) for name in learner.tasks}
    learner.learn("new", (x, y))
    loaded = Learner.load(tmp_path / "store", model())
    assert list(loaded.tasks) == [*before, "new"]
    assert all(torch.equal(loaded.predict(x, name), logits) for name, logits in before.items())
