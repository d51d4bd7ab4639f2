"""Atomic, durable writes, checksums and a lock.

A write goes to a temporary name in the same folder, is flushed to the disk, and is then moved into place. Killing the
process, or the machine, at any moment leaves the old file or the new one. `flush_folder` makes moves outlive the
machine: whoever writes several files calls it where their order matters.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halrp.errors import DamagedError, LockedError, WriteError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows has no flock; a single writer is then up to the user)
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".part"
"""Ending of files that are not finished."""
LARGEST = 4 << 30
"""Limit on the bytes of a file of which nothing else is known."""


def checksum(content: bytes) -> str:
    """The SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file so that it is whole or as it was; `durable` waits until the disk has its content."""
    temporary = None
    try:
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name[:40]}-{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise WriteError(
            f"{path} could not be written: {_reason(error)}; what was there before is unchanged"
        ) from error
    except BaseException:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and make the disk remember them."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Make moves into a folder durable, where the system can."""
    if os.name != "posix":  # pragma: no cover
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # a file system without such a thing
            raise WriteError(f"{folder} could not be flushed to the disk: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else str(error.strerror or error)


def read(path: Path, limit: int = LARGEST) -> bytes:
    """Read a whole file, or say that it is missing or larger than it may be, before any of it is read."""
    size = 0
    try:
        if not path.is_file():
            raise DamagedError(f"{path} is missing or not a file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise DamagedError(f"{path} has {size:,} bytes, more than the {limit:,} it may have")
            content = file.read(size + 1)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise DamagedError(f"{path} cannot be read: there is no memory for its {size:,} bytes") from error
    if len(content) > size:
        raise DamagedError(f"{path} cannot be read: it grows while it is read")
    return content


@contextmanager
def locked(folder: Path, wait: float = 10.0) -> Iterator[None]:
    """Hold a folder's lock for a block; the system releases it if the process dies."""
    deadline = time.monotonic() + wait
    while (handle := _taken(folder)) is None:
        if time.monotonic() >= deadline:
            raise LockedError(
                f"another process is writing to {folder} (its lock was not free for {wait:g} seconds); "
                "wait for it, or stop it"
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(handle)


def _taken(folder: Path) -> int | None:
    """Take a folder's lock if it is free."""
    path = folder / "lock"
    try:
        make_folder(folder)
        return take_lock(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WriteError(f"{path} could not be opened: {_reason(error)}; is the folder read-only?") from error


def take_lock(path: Path) -> int | None:
    """Lock a file, which is made if need be, if no other process holds it: a handle to close, or None.

    A file that its holder removed while we took it guards nothing. Raises `OSError` if it cannot be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is None:
            return handle
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None
