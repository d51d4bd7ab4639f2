"""The folder of a store: reading and writing its files, and nothing outside it.

The folder itself may be reached through symbolic links; below it none is followed, since whoever made one could let a
commit write, move or remove files elsewhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from halrp.errors import DamagedError, LinkError, StoreError
from halrp.store import atomic
from halrp.store.manifest import LARGEST, Entry, Manifest, entry_of

MANIFEST = "manifest.json"
TRASH = "trash"
WORK = "work"
FOLDERS = ("tasks", WORK, TRASH, f"{TRASH}/tasks")


class Folder:
    """A store's folder."""

    def __init__(self, root: Path) -> None:
        """Name the folder; nothing is read or written yet."""
        self.root = root

    def path(self, relative: str) -> Path:
        """A path in the folder, or an error if it or a folder on the way to it is a symbolic link."""
        path = self.root
        for part in relative.split("/"):
            path = path / part
            if _is_link(path):
                raise LinkError(
                    f"{path} is a symbolic link, and a store has none: it could lead elsewhere; replace it by what it "
                    "points to (cp -rL copies a store so)"
                )
        return path

    def refuse_links(self) -> None:
        """Refuse to change a store whose own folders or files are links."""
        for name in (MANIFEST, "lock", *FOLDERS):
            self.path(name)

    def exists(self) -> bool:
        """Whether there is a manifest."""
        path = self.root / MANIFEST
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # answering no would let a commit replace what cannot be seen now
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
        return True

    def manifest(self) -> Manifest:
        """What is in the store."""
        if not self.exists():
            raise StoreError(
                f"{self.root} is not a store: it has no {MANIFEST}; save a learner there first, or run halrp repair if "
                "it was lost"
            )
        path = self.path(MANIFEST)
        return Manifest.parse(atomic.read(path, LARGEST), str(path))

    def content(self, entry: Entry) -> bytes:
        """A file of the store, checked against its checksum."""
        path = self.path(entry.file)
        content = atomic.read(path, entry.bytes)
        if len(content) != entry.bytes or atomic.checksum(content) != entry.sha256:
            raise DamagedError(
                f"{path} is not the file that was committed: it was changed or cut; restore a copy of it, or run "
                "halrp repair"
            )
        return content

    def put(self, stem: str, content: bytes, ending: str = ".safetensors") -> Entry:
        """Write a file under the name that its content gives it, unless it is there."""
        entry = entry_of(stem, content, ending)
        path = self.path(entry.file)
        if not path.exists() or path.stat().st_size != entry.bytes or atomic.read(path, entry.bytes) != content:
            atomic.write(path, content)
        return entry

    def files(self, *folders: str) -> list[str]:
        """The files in some of the store's folders, not below them; "." is the store itself."""
        listed = []
        for folder in folders:
            path = self.root if folder == "." else self.path(folder)
            if path.is_dir():
                with os.scandir(path) as items:
                    prefix = "" if folder == "." else f"{folder}/"
                    listed += sorted(f"{prefix}{item.name}" for item in items if item.is_file(follow_symlinks=False))
        return listed


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def work_name(task: str, version: int = 0) -> str:
    """The name of the folder for the checkpoints of a task, or of a later version of it."""
    name = f"{slug(task)}-{atomic.checksum(task.encode(errors='surrogatepass'))[:16]}"
    return f"{name}-{version}" if version else name


def slug(name: str) -> str:
    """A readable, harmless piece of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "task"
