"""A cache of decoded arrays in the user's cache directory, memory-mapped when they are read again.

Decoding compressed images takes seconds, mapping an array takes none. A cached array is named after a checksum of the
files it was decoded from: changed files are decoded again, moved or copied ones are not. The checksum is itself cached
as long as the files' sizes, times and inodes are the same.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from halrp.errors import DataWarning, WriteError
from halrp.lab.data.archives import check_size
from halrp.lab.data.images import DataDamaged, Decoded
from halrp.lab.directories import cache_directory
from halrp.store import atomic as safe

DECODERS = 3
"""Version of the decoders; increased when one returns other arrays, so that those in the cache are not used."""
SETTLED = 2_000_000_000
"""Nanoseconds. A file that changed more recently than this may change again and keep its time stamp."""

LARGEST_NOTE = 16 << 20
"""Limit on the bytes of a JSON file of the cache."""
UNFINISHED = ".writing-"
ABANDONED = 24 * 3600.0
"""Seconds after which an unfinished folder is taken to be left by a killed process."""


def decoded(name: str, root: Path, files: Sequence[Path], decode: Callable[[], Decoded]) -> Decoded:
    """Return the arrays that `decode` makes of `files` under `root`, from the cache if they are there."""
    folder = _folder(name, fingerprint(root, files))
    if (cached := _cached(folder)) is not None:
        return cached
    arrays = decode()
    try:
        _store(folder, arrays)
    except OSError as error:
        warnings.warn(
            f"decoded images cannot be cached in {folder}: {error}. They will be decoded again next time; make room "
            "there, or set XDG_CACHE_HOME to a directory that can be written.",
            DataWarning,
            stacklevel=3,
        )
        return arrays
    return _cached(folder) or arrays  # mapped arrays do not occupy memory


def cached_arrays(name: str, root: Path, files: Sequence[Path]) -> Decoded | None:
    """Return the cached arrays of `files`, if there are any and their checksum is known without reading the files."""
    checksum = _cached_checksum(root, files)
    return _cached(_folder(name, checksum)) if checksum else None


def fingerprint(root: Path, files: Sequence[Path]) -> str:
    """A checksum of the names and contents of files under `root`."""
    if (known := _cached_checksum(root, files)) is not None:
        return known
    start, total = time.time_ns(), hashlib.sha256(f"decoders {DECODERS}\n".encode())
    try:
        stamps = _stamps(files)
        for path in files:
            check_size(path)
        for path in files:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(os.fsencode(path.relative_to(root)) + f" {content}\n".encode())
        settled = stamps == _stamps(files)
    except OSError as error:
        raise DataDamaged(
            f"{error.filename} cannot be read: {error.strerror}. Make it readable, or copy it again."
        ) from error
    checksum = total.hexdigest()[:32]
    if settled and all(start - stamp[2] > SETTLED for stamp in stamps):
        try:
            entry = {"stamps": _digest(stamps), "fingerprint": checksum}
            safe.write(_checksum_file(root, files), json.dumps(entry).encode(), durable=False)
        except WriteError:
            pass  # the checksum is computed again next time
    return checksum


def _stamps(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Path, size, time of change and inode of each file, which differ after a change."""
    stats = [(path, path.stat()) for path in files]
    return [(str(path), stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_ino) for path, stat in stats]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()


def _checksum_file(root: Path, files: Sequence[Path]) -> Path:
    """The file with the cached checksum of `files`; one per set of files, so that no process overwrites another's."""
    key = _digest([DECODERS, str(root.absolute()), *(str(path) for path in files)])
    return cache_directory() / "checksums" / f"{key[:32]}.json"


def _cached_checksum(root: Path, files: Sequence[Path]) -> str | None:
    try:
        entry = json.loads(safe.read(_checksum_file(root, files), LARGEST_NOTE))
        if entry["stamps"] == _digest(_stamps(files)):
            return str(entry["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _folder(name: str, content: str) -> Path:
    return cache_directory() / "decoded" / f"{name}-{content}"


def _cached(folder: Path) -> Decoded | None:
    """Map the arrays in `folder`; remove it if they are damaged."""
    try:
        images, labels = (np.load(folder / f"{field}.npy", "r", allow_pickle=False) for field in ("images", "labels"))
        classes = json.loads(safe.read(folder / "classes.json", LARGEST_NOTE))
        if images.dtype != np.uint8 or images.ndim != 4 or labels.dtype != np.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"{images.dtype} {images.shape} and {labels.dtype} {labels.shape}")
        if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
            raise ValueError("classes are not names")
        return Decoded(images, labels, None if classes is None else tuple(classes))
    except FileNotFoundError:
        if not folder.exists():
            return None
    except (OSError, ValueError, EOFError, RecursionError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _store(folder: Path, arrays: Decoded) -> None:
    """Write arrays to `folder` atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{UNFINISHED}*"):  # by a process that was killed
        with suppress(FileNotFoundError):  # or by one that has just finished
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder.parent) as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        for field, array in (("images", arrays.images), ("labels", arrays.labels)):
            with open(fresh / f"{field}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        (fresh / "classes.json").write_text(json.dumps(arrays.classes), "utf-8")
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has cached the same arrays first
                raise
