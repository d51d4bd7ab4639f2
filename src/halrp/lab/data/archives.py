"""The files inside files: archives and compressed files, read in place, member by member.

Nothing is unpacked to disk. An archive may come from anywhere, so it is not trusted: a name that leads out of the
archive, a member that is neither a file nor a folder, a size that no data set has, a wrong checksum or an early end
raises `DataDamaged`. Sizes are checked while content is decompressed, so no archive needs more memory than the limits.
"""

import gzip
import io
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from halrp.lab.data.images import DataDamaged
from halrp.lab.data.xz import XzError, XzFile

LARGEST_MEMBER = 256 << 20
"""Limit on the bytes of a file in an archive; those of the known sets have at most 174 MB."""
LARGEST_TOTAL = 1 << 30
"""Limit on the bytes of an archive, and on those of all files in it; those of the known sets have at most 0.4 GB."""
MOST_MEMBERS = 500_000
LARGEST_DIRECTORY = 64 << 20
"""Limit on the bytes of a zip's list of members, which the standard library reads as a whole."""
AGAIN = "Copy or download it again."

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # a zip with a password, or of a kind that the standard library does not read
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    XzError,
)


class Member(NamedTuple):
    """A file, or a file in an archive."""

    name: str
    """With its folders, separated by `/`."""
    content: bytes
    origin: str
    """For error messages: the path, and for an archive the name in it."""


def members(root: Path, files: Iterable[Path], wanted: Callable[[str], object] = bool) -> Iterator[Member]:
    """Yield the members of `files` whose names are `wanted`: those of archives, or the files themselves.

    A plain file is named by its path from `root`, a compressed one likewise without `.gz` or `.xz`. Members of an
    archive are in its order.
    """
    for path in files:
        try:
            if path.name.endswith(".zip"):
                yield from _zip_members(path, wanted)
            elif re.search(r"\.(tar|tar\.gz|tgz|tar\.xz)$", path.name):
                yield from _tar_members(path, wanted)
            else:
                yield from _single_member(root, path, wanted)
        except DataDamaged:
            raise
        except _UNREADABLE as error:
            raise DataDamaged(f"{path} cannot be read: {error or type(error).__name__}. {AGAIN}") from error


def _single_member(root: Path, path: Path, wanted: Callable[[str], object]) -> Iterator[Member]:
    """A file that is not an archive, compressed or not."""
    name = re.sub(r"\.(gz|xz)$", "", path.relative_to(root).as_posix())
    if wanted(name):
        with _opened(path) as file:
            yield Member(name, _limited(file, path), str(path))


def check_size(path: Path) -> None:
    """Refuse a file that is larger than any of a known data set, before it is read."""
    if (size := path.stat().st_size) > LARGEST_TOTAL:
        raise DataDamaged(
            f"{path} has {size:,} bytes, more than any known data set has; nothing of it is used. {AGAIN}"
        )


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed if its suffix is that of a compressed file."""
    check_size(path)
    if path.stat().st_size == 0 and path.suffix in (".gz", ".tgz", ".xz"):
        raise EOFError("it is empty")
    if path.name.endswith((".gz", ".tgz")):
        return cast(BinaryIO, gzip.open(path))
    return cast(BinaryIO, XzFile(path)) if path.name.endswith(".xz") else open(path, "rb")


def _limited(file: BinaryIO, path: Path) -> bytes:
    """All of a file; in pieces, as a read allocates all that it asks for."""
    pieces, size = [], 0
    while piece := file.read(1 << 20):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_MEMBER:
            raise DataDamaged(f"{path} holds more than {LARGEST_MEMBER:,} bytes, which no known data set has. {AGAIN}")
    return b"".join(pieces)


class _Guard:
    """Checks the names, kinds and sizes of an archive's members before any of them is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.total, self.count = path, 0, 0

    def name_of(self, name: str, size: int, plain: bool) -> str:
        """Return the member's name, without a leading `./`, or refuse the archive."""
        steps = re.split(r"[\\/]", name)
        self.total += size
        self.count += 1
        problem = None
        if not name:
            problem = "has no name"
        elif name.startswith(("/", "\\")) or ".." in steps or re.match("[A-Za-z]:", name) or "\0" in name:
            problem = "has a name that leads out of the archive"
        elif not plain:
            problem = "is neither a file nor a folder"
        elif size < 0 or size > LARGEST_MEMBER or self.total > LARGEST_TOTAL or self.count > MOST_MEMBERS:
            problem = f"has {size:,} bytes by its header and is number {self.count:,}, more than any known data set has"
        if problem:
            raise DataDamaged(f"{self.path}: its member {name[:200]!r} {problem}; nothing of it is used. {AGAIN}")
        return "/".join(step for step in steps if step not in ("", "."))


def _zip_members(path: Path, wanted: Callable[[str], object]) -> Iterator[Member]:
    check_size(path)
    with open(path, "rb") as file:
        if (size := _directory_bytes(file)) > LARGEST_DIRECTORY:
            raise DataDamaged(
                f"{path} has a list of members of {size:,} bytes, more than any known data set has. {AGAIN}"
            )
        yield from _listed_members(path, zipfile.ZipFile(file), wanted)


def _listed_members(path: Path, archive: zipfile.ZipFile, wanted: Callable[[str], object]) -> Iterator[Member]:
    with archive:
        guard = _Guard(path)
        chosen = []
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = guard.name_of(info.filename, info.file_size, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            # The standard library limits the output of deflate while it decompresses, and that of no other method.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataDamaged(
                    f"{path}: its member {name!r} is compressed by method {info.compress_type}, not by deflate; "
                    f"nothing of it is used. {AGAIN}"
                )
            if not info.is_dir() and wanted(name):
                chosen.append((name, info))
        for name, info in chosen:
            with archive.open(info) as member:
                content = member.read(info.file_size)
            if len(content) != info.file_size:
                raise DataDamaged(f"{path} ends in the middle of {name!r}. {AGAIN}")
            yield Member(name, content, f"{path}: {name}")


def _directory_bytes(file: BinaryIO) -> int:
    """The length of a zip's list of members, by the record at its end; 0 if there is none.

    The record is 22 bytes and at most 65,535 of comment. A large zip has another one, of 56 bytes, before it, and
    between them 20 bytes that point to it.
    """
    end = file.seek(0, io.SEEK_END)
    file.seek(max(0, end - 22 - 65_535 - 20 - 56))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or at + 22 > len(tail):
        return 0
    large = tail[max(0, at - 76) : at]
    if len(large) == 76 and large[56:60] == b"PK\6\7" and large[:4] == b"PK\6\6":
        return int.from_bytes(large[40:48], "little")
    return int.from_bytes(tail[at + 12 : at + 16], "little")


class _Bounded(io.RawIOBase):
    """A stream that refuses a read larger than any member, which a hostile header can ask for."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > LARGEST_MEMBER + tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"a header asks for {size:,} bytes")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > LARGEST_TOTAL + MOST_MEMBERS * 4 * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it is larger than any known data set")
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()


def _tar_members(path: Path, wanted: Callable[[str], object]) -> Iterator[Member]:
    with _opened(path) as file, _Bounded(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        guard = _Guard(path)
        for info in archive:
            plain = info.isdir() or (info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse())
            name = guard.name_of(info.name, info.size, plain)
            if info.isdir() or not wanted(name):
                continue
            stream.seek(info.offset_data)
            content = stream.read(info.size)
            if len(content) != info.size:
                raise DataDamaged(f"{path} ends in the middle of {name!r}. {AGAIN}")
            yield Member(name, content, f"{path}: {name}")
        # The standard library takes a damaged header for the end of the archive, so check that there is an end mark.
        # Reading to the end of the stream verifies its checksum.
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise DataDamaged(f"{path} ends early or has a damaged header. {AGAIN}")
        while file.read(1 << 20):
            stream.seek(stream.tell())
