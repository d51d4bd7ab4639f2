"""A store of tasks of parts that was written once is still read, gives the same bits, and is written the same again."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch

from halrp import Learner
from halrp.model.codec import PART_PRECISIONS
from tests.store.corpus.make import checksum, small_model
from tests.store.corpus.make_parts import FOLDER, TASKS
from tests.store.stores import snapshot


def loaded() -> Learner:
    return Learner.load(FOLDER / "store", small_model(classes=7))


def test_the_store_predicts_as_it_did_and_is_not_written_to() -> None:
    before = snapshot(FOLDER)
    learner = loaded()
    expected = safetensors.torch.load_file(FOLDER / "expected.safetensors")
    x = expected.pop("x")
    assert expected.keys() == learner.tasks.keys() == TASKS.keys()
    for name, logits in expected.items():
        # Logits are of size one; machines may sum a product in another order.
        torch.testing.assert_close(learner.predict(x, name), logits, rtol=1e-6, atol=1e-6)
    assert snapshot(FOLDER) == before


def test_the_store_gives_bit_identical_numbers() -> None:
    expected = json.loads((FOLDER / "tensors.json").read_text(encoding="utf-8"))
    assert {name: checksum(delta) for name, delta in loaded().tasks.items()} == expected


def test_the_files_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    loaded().save(tmp_path)
    old, new = snapshot(FOLDER / "store"), snapshot(tmp_path)
    manifests = [json.loads(files.pop("manifest.json")) for files in (old, new)]
    assert manifests[0]["tasks"] == manifests[1]["tasks"]
    assert new.pop("lock") == b""
    assert old == new


def test_the_corpus_has_every_part_in_every_form_and_is_small() -> None:
    tasks = loaded().tasks.values()
    stored = {(key.partition("/")[0], part.precision) for delta in tasks for key, part in delta.stored.items()}
    assert {kind for kind, _ in stored} == {"r", "s", "p", "q", "dense", "plain"}
    assert {precision for _, precision in stored} == set(PART_PRECISIONS)
    forms = {form for delta in tasks for part in delta.coded.values() for form in part.parts}
    assert forms == {"values", "scale", "mask"}
    assert {len(delta.layout.slots) > len(delta.stored) for delta in tasks} >= {True}
    assert {bool(delta.recovered) for delta in tasks} == {True, False}
    assert sum(map(len, snapshot(FOLDER).values())) < 60_000
