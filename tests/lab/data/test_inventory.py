"""What is there: a cheap list, and verification on request."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from halrp.errors import SettingError
from halrp.lab.data import SETS, read, status
from halrp.lab.data import cache as kept_module
from halrp.lab.data import inventory as module
from halrp.lab.reference import load_reference
from tests.lab.data import makers

IMAGES, LABELS = makers.pictures(10, 3, (28, 28))


@pytest.fixture
def made(tmp_path: Path, private_cache: Path) -> Path:
    """Return a data directory with a small MNIST, of the same images for training and for the test."""
    for stem in ("train", "t10k"):
        makers.put(tmp_path / "data" / "mnist" / f"{stem}-images-idx3-ubyte.gz", makers.idx(IMAGES))
        makers.put(tmp_path / "data" / "mnist" / f"{stem}-labels-idx1-ubyte.gz", makers.idx(LABELS))
    return tmp_path / "data"


def known(monkeypatch: pytest.MonkeyPatch, images: str, count: int = 30) -> None:
    """Let `images` be the published checksum of that many images."""
    labels = hashlib.sha256(makers.idx(LABELS)).hexdigest()
    part = {"count": count, "images": images, "labels": labels}
    fact = {"form": "idx", "algorithm": "sha256", "layouts": None, "parts": {"train": part, "test": part}}
    monkeypatch.setattr(module, "load_reference", lambda name: {"sets": {"mnist": fact}})
    monkeypatch.setattr(module, "sources", dict)


def test_a_set_that_is_not_there(tmp_path: Path, private_cache: Path) -> None:
    result = status("cifar10", tmp_path)
    assert (result.present, result.layout, result.bytes, result.complete) == (False, None, 0, None)


def test_the_list_neither_decodes_nor_reads(made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashlib, "file_digest", None)
    result = status("mnist", made)
    size = sum(path.stat().st_size for path in (made / "mnist").iterdir())
    assert (result.present, result.layout, result.directory, result.bytes) == (True, "IDX files", made, size)
    assert (result.complete, result.verified) == (None, "not asked")
    assert not private_cache.exists()


@pytest.mark.parametrize(("count", "complete"), [(30, True), (31, False)])
def test_the_list_knows_what_was_decoded_before(
    count: int, complete: bool, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "SETTLED", -(10**18))
    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], counts={"train": count, "test": 30}))
    read("mnist", made)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert status("mnist", made).complete is complete


def test_images_with_the_published_checksum_are_verified(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, hashlib.sha256(makers.idx(IMAGES)).hexdigest())
    result = status("mnist", made, verify=True)
    assert (result.verified, result.complete, result.problem) == ("yes", False, "")


def test_images_that_should_have_the_published_checksum_and_have_not(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, "0" * 64)
    assert status("mnist", made, verify=True).verified == "no"


def test_a_subset_without_a_published_checksum_is_unknown(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, "0" * 64, count=29)
    assert status("mnist", made, verify=True).verified == "unknown"


@pytest.mark.parametrize("right", [True, False])
def test_official_files_are_verified_by_their_own_checksums(
    right: bool, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, "0" * 64, count=29)
    files = tuple(
        SimpleNamespace(
            path=f"mnist/{path.name}", checksum=("md5", hashlib.md5(path.read_bytes() if right else b"").hexdigest())
        )
        for path in (made / "mnist").iterdir()
    )
    monkeypatch.setattr(module, "sources", lambda: {"mnist": SimpleNamespace(files=files)})
    assert status("mnist", made, verify=True).verified == ("yes" if right else "no")


def test_damage_is_told_and_not_raised(made: Path) -> None:
    path = made / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    result = status("mnist", made, verify=True)
    assert result.verified == "no"
    assert "train-images-idx3-ubyte.gz cannot be read" in result.problem


def test_an_unknown_set_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="the nearest name is 'svhn'"):
        status("shvn")


def test_every_fact_is_about_a_set_its_parts_and_its_layouts() -> None:
    for name, fact in load_reference("checksums")["sets"].items():
        assert set(fact["parts"]) == set(SETS[name].counts)
        assert set(fact["layouts"] or ()) <= {layout.name for layout in SETS[name].layouts}
        assert all(part["count"] <= SETS[name].counts[at] for at, part in fact["parts"].items())
