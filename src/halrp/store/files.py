"""Files of a store by what their names promise: a part of the checksum of their content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halrp.errors import DamagedError, StoreError
from halrp.store import atomic
from halrp.store.folder import TRASH, Folder
from halrp.store.manifest import BASE, LAYOUT, TASK, Entry


@dataclass(frozen=True)
class RepairStep:
    """One thing that a repair does, or cannot do."""

    kind: Literal["restore", "rebuild", "set aside", "delete", "lost", "choose", "unreadable"]
    file: str
    """Relative to the store."""
    note: str


def content_of(folder: Folder, entry: Entry) -> bytes:
    """The content of an entry, from the store or from its trash."""
    try:
        return folder.content(entry)
    except StoreError:
        source = in_trash(folder, entry)
        if source is None:
            raise
        return atomic.read(folder.path(source), entry.bytes)


def in_trash(folder: Folder, entry: Entry) -> str | None:
    """Where the trash has the content of an entry, if it does."""
    parent = f"{TRASH}/{entry.file}".rpartition("/")[0]
    for file in folder.files(parent):
        if file == f"{TRASH}/{entry.file}" or file.startswith(f"{TRASH}/{entry.file}."):
            try:
                content = atomic.read(folder.path(file), entry.bytes)
            except StoreError:
                continue
            if atomic.checksum(content) == entry.sha256:
                return file
    return None


def named_content(folder: Folder, file: str, prefix: str = "") -> tuple[Entry, bytes]:
    """A file whose name has its checksum; with a prefix, the file of that name in another folder of the store."""
    match = next(match for pattern in (BASE, LAYOUT, TASK) if (match := pattern.fullmatch(file)))
    content = atomic.read(folder.path(f"{prefix}{file}"))
    digest = atomic.checksum(content)
    if not digest.startswith(match[1]) or len(content) < 8:
        raise DamagedError(f"{folder.root / file} is not the file that was committed: its name has another checksum")
    folder.verify(file, content)
    return Entry(file, digest, len(content)), content
