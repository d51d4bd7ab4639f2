"""The official files of each data set: where they are published, how large they are, and their checksums.

They are in `reference/downloads.json`, with the source of each value. A size or checksum that nobody publishes is None
there, and a download that cannot be verified for that reason warns.
"""

from dataclasses import dataclass
from functools import cache

from halrp.lab.names import check_name
from halrp.lab.reference import load_reference


@dataclass(frozen=True)
class File:
    """One file as its publisher gives it out."""

    path: str
    """Its path under the data directory, where the readers look for it."""
    urls: tuple[str, ...]
    """Its addresses, in the order in which they are tried."""
    bytes: int | None
    """Its size."""
    sha256: str | None
    """Its SHA-256, if published."""
    md5: str | None
    """Its MD5, if published; checked where there is no SHA-256."""

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The strongest published checksum, as (algorithm, hexadecimal digits)."""
        if self.sha256 is not None:
            return "sha256", self.sha256
        return None if self.md5 is None else ("md5", self.md5)


@dataclass(frozen=True)
class Source:
    """The files of one data set."""

    name: str
    page: str
    """The data set's own page."""
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """The size of all files together, as far as it is published."""
        return sum(file.bytes or 0 for file in self.files)


@cache
def sources() -> dict[str, Source]:
    """All data sets that can be downloaded, by name."""
    return {
        name: Source(
            name=name,
            page=entry["page"],
            files=tuple(
                File(file["file"], tuple(file["urls"]), file["bytes"], file["sha256"], file["md5"])
                for file in entry["files"]
            ),
        )
        for name, entry in load_reference("downloads")["sets"].items()
    }


def source(name: str) -> Source:
    """The files of the data set `name`."""
    known = sources()
    check_name("data set", name, known)
    return known[name]
