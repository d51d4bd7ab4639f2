"""Decoded arrays are cached: mapped the second time, decoded again when files change, never half written."""

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from halrp.lab.data import DataDamaged, read
from halrp.lab.data import cache as module
from halrp.lab.data.images import Decoded
from tests.lab.data import makers
from tests.timing import PATIENCE


def write(root: Path, seed: int) -> None:
    for part, (images, labels) in parts(seed).items():
        makers.put(root / "cifar-100-binary" / f"{part}.bin", makers.cifar_records(images, labels, 1))


def parts(seed: int) -> dict[str, tuple[makers.Bytes, makers.Bytes]]:
    return {part: makers.pictures(100, 1, (32, 32, 3), seed + at) for at, part in enumerate(("train", "test"))}


@pytest.fixture
def made(tmp_path: Path, private_cache: Path) -> Path:
    """Return a data directory with a small CIFAR-100, written a minute ago."""
    root = tmp_path / "made"
    write(root, 0)
    age(root)
    return root


def age(root: Path) -> None:
    """Make files look a minute old, as far as their owner can."""
    for path in root.rglob("*.bin"):
        os.utime(path, (time.time() - 60, time.time() - 60))


def train(root: Path) -> makers.Bytes:
    return read("cifar100", root).parts["train"].images


def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which parts are decoded."""
    seen: list[str] = []
    original: Callable[..., object] = module._store

    def keep(folder: Path, result: object) -> None:
        seen.append(folder.name.rsplit("-", 1)[0])
        original(folder, result)

    monkeypatch.setattr(module, "_store", keep)
    return seen


def test_a_second_read_maps_the_cached_arrays(made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(monkeypatch)
    first, second = train(made), train(made)
    assert seen == ["cifar100-train", "cifar100-test"]
    assert isinstance(second, np.memmap)
    assert not second.flags.writeable
    assert np.array_equal(first, second)
    assert len(list((private_cache / "decoded").iterdir())) == 2  # train and test, and nothing unfinished


def test_changed_files_are_decoded_anew(made: Path) -> None:
    train(made)
    write(made, 5)
    assert np.array_equal(train(made), parts(5)["train"][0])


def test_a_change_is_seen_even_if_size_and_time_stay(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED", 0)
    path = made / "cifar-100-binary" / "train.bin"
    before = path.stat()
    train(made)
    write(made, 5)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert np.array_equal(train(made), parts(5)["train"][0])


def test_moved_files_are_not_decoded_again(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(made)
    made.rename(tmp_path / "moved")
    seen = spy(monkeypatch)
    train(tmp_path / "moved")
    assert seen == []


def test_settled_files_are_read_once_for_their_checksum(
    made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED", -(10**18))  # a file's own time of change cannot be set back
    train(made)
    entries = list((private_cache / "checksums").iterdir())
    assert len(entries) == 2
    monkeypatch.setattr(hashlib, "file_digest", None)  # from here on, reading files would fail
    train(made)
    for entry in entries:
        entry.write_text("{")
    with pytest.raises(TypeError):
        train(made)


def test_files_that_have_just_changed_are_not_remembered(
    made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED", 10**12)  # nanoseconds: the test itself takes less
    write(made, 5)
    train(made)
    assert not (private_cache / "checksums").exists()


@pytest.mark.parametrize("entry", ["", "[]", "null", '{"stamps": 1}', "\xff"])
def test_an_unreadable_memory_is_ignored(
    entry: str, made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED", -(10**18))
    expected = train(made)
    for path in (private_cache / "checksums").iterdir():
        path.write_bytes(entry.encode("latin-1"))
    assert np.array_equal(train(made), expected)


@pytest.mark.parametrize("length", [0, 5, 60, 128, 1000, -1])
def test_damaged_cached_arrays_are_replaced(length: int, made: Path, private_cache: Path) -> None:
    expected = train(made).copy()
    for selected in private_cache.glob("decoded/*/images.npy"):
        content = selected.read_bytes()
        selected.unlink()  # the first read may still map it
        selected.write_bytes(content[:length])
    assert np.array_equal(train(made), expected)
    assert isinstance(train(made), np.memmap)


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "classes.json"])
def test_a_lost_file_is_replaced(name: str, made: Path, private_cache: Path) -> None:
    expected = train(made).copy()
    for path in private_cache.glob(f"decoded/*/{name}"):
        path.unlink()
    assert np.array_equal(train(made), expected)
    assert len(list(private_cache.glob(f"decoded/*/{name}"))) == 2


def test_cached_arrays_of_another_shape_or_kind_are_replaced(made: Path, private_cache: Path) -> None:
    train(made)
    for path in private_cache.glob("decoded/*/labels.npy"):
        path.unlink()
        np.save(path, np.zeros(99, np.int64))
    assert len(read("cifar100", made).parts["train"].labels) == 100
    for path in private_cache.glob("decoded/*/classes.json"):
        path.write_text(json.dumps([1, 2]))
    assert read("cifar100", made).classes[0] == "apple"


def test_a_kept_array_with_pickled_objects_is_never_unpickled(made: Path, private_cache: Path) -> None:
    train(made)
    for path in private_cache.glob("decoded/*/labels.npy"):
        path.unlink()
        np.save(path, np.array([print], dtype=object), allow_pickle=True)
    assert read("cifar100", made).parts["train"].labels.dtype == np.int64


def test_a_cache_that_cannot_be_written_is_only_a_warning(made: Path, private_cache: Path) -> None:
    private_cache.parent.write_text("a file where the directory should be")
    with pytest.warns(UserWarning, match="XDG_CACHE_HOME"):
        result = read("cifar100", made)
    assert np.array_equal(result.parts["train"].images, parts(0)["train"][0])


def test_a_full_disk_leaves_no_half_cache_and_still_gives_the_images(
    made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = np.save

    def full(file: BinaryIO, array: makers.Bytes, allow_pickle: bool) -> None:
        if array.ndim == 1:  # the images have been written already
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(file, array, allow_pickle=allow_pickle)

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(UserWarning, match="No space left on device.*make room"):
        result = read("cifar100", made)
    assert np.array_equal(result.parts["train"].images, parts(0)["train"][0])
    assert list((private_cache / "decoded").iterdir()) == []
    monkeypatch.undo()


def test_what_a_killed_process_left_is_removed_after_a_day(made: Path, private_cache: Path) -> None:
    for name, days in (("old", 2), ("new", 0)):
        makers.put(private_cache / "decoded" / f".writing-{name}" / "images.npy", b"half")
        then = time.time() - 86_400 * days
        os.utime(private_cache / "decoded" / f".writing-{name}", (then, then))
    read("cifar100", made)
    assert [path.name for path in (private_cache / "decoded").glob(".writing-*")] == [".writing-new"]


def test_an_unreadable_source_is_named(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, algorithm: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(made / "train.bin"))

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    with pytest.raises(DataDamaged, match=r"train\.bin cannot be read: Permission denied"):
        read("cifar100", made)


def test_parallel_writers_all_get_the_images_and_leave_one_copy(
    made: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, together = module._store, threading.Barrier(4, timeout=PATIENCE)

    def keep(folder: Path, result: Decoded) -> None:
        together.wait()  # all have decoded and found nothing kept
        original(folder, result)

    monkeypatch.setattr(module, "_store", keep)
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(train, [made] * 4))
    assert all(np.array_equal(item, parts(0)["train"][0]) for item in result)
    assert len(list((private_cache / "decoded").iterdir())) == 2


def test_a_process_that_comes_second_leaves_the_first_ones_arrays(made: Path, private_cache: Path) -> None:
    """The same race, step by step: the arrays appear between the look and the write."""
    result = read("cifar100", made)
    folder = next((private_cache / "decoded").glob("cifar100-train-*"))
    before = (folder / "images.npy").stat().st_ino
    module._store(folder, Decoded(*result.parts["train"]))
    assert (folder / "images.npy").stat().st_ino == before
    assert len(list((private_cache / "decoded").iterdir())) == 2
