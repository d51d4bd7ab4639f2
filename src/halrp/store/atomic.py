"""Atomic, durable writes, checksums and a lock.

A write goes to a temporary name in the same folder, is flushed to the disk, and is then moved into place. Killing the
process, or the machine, at any moment leaves the old file or the new one. `flush_folder` makes moves outlive the
machine: whoever writes several files calls it where their order matters.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import time
from contextlib import suppress
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


class Lock(io.FileIO):
    """An open lock file: closing it, leaving its `with` block, or losing it to an exception releases the lock.

    Opening and closing are single steps that no Ctrl-C can divide, so a lock is never taken and then forgotten.
    """

    def __del__(self) -> None:
        """Release a lock that an exception left behind, without a warning about an open file."""
        self.close()


def locked(folder: Path, wait: float = 10.0) -> Lock:
    """Hold a folder's lock for a `with` block; the system releases it if the process dies."""
    held: list[Lock] = []
    try:
        deadline = time.monotonic() + wait
        while not _take_folder(folder, held):
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"another process is writing to {folder} (its lock was not free for {wait:g} seconds); "
                    "wait for it, or stop it"
                )
            time.sleep(0.05)
        # Popped, because a traceback that somebody keeps would keep a variable, and with it the lock.
        return held.pop()
    finally:
        _close(held)


def take_lock(path: Path) -> Lock | None:
    """Lock a file, which is made if need be, if no other process holds it. Raises `OSError` if it cannot be opened."""
    held: list[Lock] = []
    try:
        return held.pop() if _take(path, held) else None
    finally:
        _close(held)


def _take_folder(folder: Path, held: list[Lock]) -> bool:
    path = folder / "lock"
    try:
        make_folder(folder)
        return _take(path, held)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise WriteError(f"{path} could not be opened: {_reason(error)}; is the folder read-only?") from error


def _take(path: Path, held: list[Lock]) -> bool:
    """Add a file's lock to those held, if it is free."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    held.append(Lock(path, "a+"))
    if fcntl is None:
        return True
    try:
        fcntl.flock(held[0].fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file that its holder removed while we took it guards nothing.
        if os.path.samestat(os.fstat(held[0].fileno()), os.lstat(path)):
            return True
    except OSError:
        pass
    _close(held)
    return False


def _close(held: list[Lock]) -> None:
    while held:
        held[0].close()
        held.pop()
