"""Downloads of the official files; a file in place is complete and verified.

A file grows under the name `<file>.part`, is resumed from there after an interruption, is compared with its published
size and checksum, and only then moved into place. Archives stay packed; the readers look inside them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from halrp.errors import DataWarning, HalrpError
from halrp.lab.data.images import DataDamaged
from halrp.lab.data.sources import File, source
from halrp.lab.data.transfer import LARGEST_NOTE, PermanentError, Report, TransientError, transfer
from halrp.lab.data.watch import Watch
from halrp.lab.directories import data_directory
from halrp.store.atomic import flush_folder, make_folder, take_lock
from halrp.store.atomic import read as read_bounded
from halrp.store.atomic import write as write_atomically

Progress = Callable[[str, int, int | None], None]
"""Called with the file's path under the data directory, the bytes that are there, and all bytes if known."""


class DownloadFailed(HalrpError, OSError):  # noqa: N818  (reads as what it says, like DataMissing)
    """A file could not be downloaded from any of its addresses."""


class DiskFull(DownloadFailed):
    """The disk has no space for a file."""


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and retries of a download."""

    timeout: float = 30.0
    """Seconds without a single byte after which a connection is given up."""
    slowest: float = 1024.0
    """Bytes per second: a connection that is slower, over a `window`, is given up."""
    window: float = 60.0
    """Seconds over which the rate is measured. The answer of a server has to begin within them."""
    deadline: float = 6 * 3600.0
    """Seconds after which a file is given up, however many tries it had; the next call resumes it."""
    tries: int = 3
    """How often in a row an address may fail before it is given up. After much progress the count starts again."""
    pause: float = 1.0
    """Seconds before the second try; they double with each further one."""
    wait: float = 600.0
    """Seconds without progress after which another process that downloads the same file is no longer waited for."""
    sleep: Callable[[float], None] = time.sleep


DEFAULT_POLICY = RetryPolicy()
_PROGRESS = 1 << 20


def get(
    name: str,
    data: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> list[Path]:
    """Download those official files of the data set `name` that the data directory lacks, and return all of them."""
    root = data_directory(data)
    lacking = missing(name, data)
    _check_room(root, sum(_needed(file, root) for file in lacking))
    return [fetch(file, root, progress, policy) if file in lacking else root / file.path for file in source(name).files]


def missing(name: str, data: str | PathLike[str] | None = None) -> list[File]:
    """Those official files of the data set `name` that are not in place and verified."""
    root = data_directory(data)
    return [file for file in source(name).files if not is_verified(root / file.path, file)]


def begun(name: str, data: str | PathLike[str] | None = None) -> int:
    """How many bytes of the official files of the data set `name` are there from downloads that did not end."""
    return sum(_size(_part(data_directory(data) / file.path)) for file in source(name).files)


def fetch(file: File, root: Path, progress: Progress | None = None, policy: RetryPolicy = DEFAULT_POLICY) -> Path:
    """Download one file to its path under `root`; after an error another call resumes it."""
    path = root / file.path
    if is_verified(path, file):
        return path

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            progress(file.path, done, file.bytes or total)

    try:
        make_folder(path.parent)
    except OSError as error:
        raise DownloadFailed(f"{path.parent} cannot be made: {error.strerror or error}") from error
    with _file_lock(path, report, policy):
        if not is_verified(path, file):  # another process may have brought it meanwhile
            _check_room(root, _needed(file, root))
            _from_first_good_url(file, path, report, policy)
    report(path.stat().st_size, None)
    return path


def is_verified(path: Path, file: File) -> bool:
    """Whether a file is in place with the published size and checksum, or else with those of its first download."""
    if not path.is_file():
        return False
    try:
        _check(path, file if file.checksum else _recorded(path, file))
    except (DataDamaged, OSError):
        return False
    return True


def _from_first_good_url(file: File, path: Path, report: Report, policy: RetryPolicy) -> None:
    """Download from the first address that gives the right content, and move the file into place."""
    part, deadline = _part(path), time.monotonic() + policy.deadline
    failures: list[DownloadFailed | DataDamaged] = []
    urls = list(file.urls)
    while urls:
        resumed = _size(part) > 0
        try:
            _with_retries(urls[0], file, part, report, policy, deadline)
            _check(part, file, urls[0])
            _install(part, path, file)
            return
        except DataDamaged as error:
            _discard(part)
            if resumed:  # the old piece may be the wrong one: once more, from the start
                continue
            failures.append(error)
        except DiskFull:
            raise
        except DownloadFailed as error:
            failures.append(error)
        urls.pop(0)
    kind = DataDamaged if all(isinstance(failure, DataDamaged) for failure in failures) else DownloadFailed
    raise kind(
        f"{file.path} could not be downloaded: {'; '.join(map(str, failures))}. Try again later, or place the file by "
        f"hand at {path}."
    ) from failures[-1]


def _with_retries(url: str, file: File, part: Path, report: Report, policy: RetryPolicy, deadline: float) -> None:
    """Download from one address, resuming after failures that may pass."""
    failed = 0
    while True:
        before = _size(part)
        try:
            with Watch(policy.slowest, policy.window, deadline) as watch:
                return transfer(url, file, part, report, policy.timeout, _write, watch)
        except PermanentError as error:
            raise DownloadFailed(f"{url}: {error}") from error
        except TransientError as error:
            failed = 1 if _size(part) - before >= _PROGRESS else failed + 1
            if failed >= policy.tries or time.monotonic() >= deadline:
                raise DownloadFailed(f"{url}: {error} ({failed} tries)") from error
            policy.sleep(policy.pause * 2 ** (failed - 1))


def _write(part: Path, handle: int, content: bytes, left: int | None) -> None:
    """Append to a part file; `left` is the number of remaining bytes, including these."""
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadFailed(f"{part} cannot be written: {error.strerror or error}") from error
        raise _disk_full(part.parent, left, f"What is there is kept in {part} and resumed.") from error


def _needed(file: File, root: Path) -> int:
    """The number of remaining bytes of a file, as far as it is known."""
    return max(0, (file.bytes or 0) - _size(_part(root / file.path)))


def _check_room(folder: Path, needed: int) -> None:
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free < needed:
        raise _disk_full(folder, needed, "Nothing was downloaded.")


def _disk_full(folder: Path, needed: int | None, note: str) -> DiskFull:
    amount = "an unknown number of" if needed is None else f"{needed:,}"
    return DiskFull(
        f"the disk is full: the download needs {amount} more bytes and {folder} has {shutil.disk_usage(folder).free:,} "
        f"free. {note} Free some room, or choose another directory with data=... or HALRP_DATA."
    )


def _check(path: Path, file: File, url: str = "") -> None:
    """Compare a file with its size and checksum, as far as they are known."""
    source_name = f"what {url} gave" if url else f"{path}"
    size = _size(path)
    if file.bytes is not None and size != file.bytes:
        raise DataDamaged(f"{source_name} has {size:,} bytes, where the published file has {file.bytes:,}")
    if file.checksum is not None:
        algorithm, published = file.checksum
        actual = _digest(path, algorithm)
        if actual != published:
            raise DataDamaged(f"{source_name} has the {algorithm} {actual}, where the published file has {published}")


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _install(part: Path, path: Path, file: File) -> None:
    """Move a verified part file into place, durably."""
    if file.checksum is None:
        size, sha256 = _size(part), _digest(part, "sha256")
        write_atomically(_record(path), json.dumps({"bytes": size, "sha256": sha256}).encode())
        warnings.warn(
            f"{path} could not be verified: nobody publishes its checksum. Its size, {size:,} bytes, and its SHA-256, "
            f"{sha256}, are recorded in {_record(path).name} and checked from now on.",
            DataWarning,
            stacklevel=5,
        )
    try:
        with open(part, "rb+") as content:
            os.fsync(content.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DownloadFailed(f"{part} cannot be moved to {path}: {error.strerror or error}") from error
    flush_folder(path.parent)
    _discard(part)


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.recorded.json")


def _recorded(path: Path, file: File) -> File:
    """A file without published checksum, with what was recorded when it was first downloaded."""
    try:
        record = json.loads(read_bounded(_record(path), LARGEST_NOTE))
        return File(file.path, file.urls, int(record["bytes"]), str(record["sha256"]), None)
    except (ValueError, KeyError, TypeError, RecursionError):
        return file


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _discard(part: Path) -> None:
    """Remove a part file and the note of where it came from."""
    for path in (part, part.with_name(f"{part.name}.json")):
        with suppress(FileNotFoundError):
            path.unlink()


@contextmanager
def _file_lock(path: Path, report: Report, policy: RetryPolicy) -> Iterator[None]:
    """Hold a file's lock for a block, so that two processes never write to the same part file.

    Whoever waits reports how the part file grows. The system releases the lock of a process that dies.
    """
    lock = path.with_name(f".{path.name}.lock")
    size, since = -1, time.monotonic()
    while True:
        try:
            handle = take_lock(lock)
        except OSError as error:
            raise DownloadFailed(f"{lock} cannot be written: {error.strerror or error}") from error
        if handle is not None:
            break
        if (now := _size(_part(path))) != size:
            size, since = now, time.monotonic()
            report(size, None)
        if time.monotonic() - since > policy.wait:
            raise DownloadFailed(
                f"another process is downloading {path} and has made no progress for {policy.wait:g} seconds; stop it, "
                "or wait for it"
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(lock)
        handle.close()
