"""The folder of a store: reading and writing its files, and nothing outside it.

The folder itself may be reached through symbolic links; below it none is followed, since whoever made one could let a
commit write, move or remove files elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from halrp.errors import DamagedError, LinkError, SettingError, SignatureError, StoreError
from halrp.store import atomic, signing
from halrp.store.manifest import LARGEST, Entry, Manifest, entry_of
from halrp.store.signing import Key, Purpose

MANIFEST = "manifest.json"
TRASH = "trash"
WORK = "work"
SIGNATURES = "signatures"
FOLDERS = ("tasks", WORK, TRASH, f"{TRASH}/tasks", SIGNATURES, f"{SIGNATURES}/tasks")


class Folder:
    """A store's folder."""

    def __init__(self, root: Path, signing_key: Key | None = None, verify_key: Key | None = None) -> None:
        """Name the folder; nothing is read or written yet.

        With a key that signs, what is written is signed. With a key that verifies, nothing that it did not sign is
        used; whoever signs verifies, as a commit would otherwise sign what somebody else had put into the folder.
        """
        self.root = root
        self.signing_key = signing_key
        self.verify_key = signing_key.verifier() if verify_key is None and signing_key is not None else verify_key
        self._parsed: Manifest | None = None
        """What was last read; the same bytes need not be parsed again, which takes long for many tasks."""

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

    def check_writable(self) -> None:
        """Refuse to write what a key that only verifies could not read again."""
        if self.verify_key is not None and self.signing_key is None:
            raise SettingError(
                f"{self.root} is read with {self.verify_key!r} and cannot be changed without a key that signs: use "
                "Store(folder, signing_key=…), or Learner.load(..., attach=False) for a copy that is never written"
            )

    def refuse_unsigned(self, manifest: Manifest | None) -> None:
        """Refuse to follow a signed manifest by one without a signature: whoever verifies could not read the store."""
        if manifest is None or self.signing_key is not None:
            return
        if self.path(signature_name(MANIFEST, manifest.content)).exists():
            raise SignatureError(
                f"{self.root} is signed, and a change without its key would leave it without a signature: use "
                f"Store(folder, signing_key=…) or --key, or remove {self.root / SIGNATURES} to end that"
            )

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
        while True:
            content = atomic.read(path, LARGEST)
            try:
                self.verify(MANIFEST, content)
            except SignatureError:
                if atomic.read(path, LARGEST) != content:  # another process has committed since, and its signature is
                    continue
                raise
            if self._parsed is None or self._parsed.content != content:
                self._parsed = Manifest.parse(content, str(path))
            return self._parsed

    def content(self, entry: Entry, limit: int | None = None) -> bytes:
        """A file of the store, of at most `limit` bytes, checked against its checksum and its signature."""
        path = self.path(entry.file)
        content = atomic.read(path, entry.bytes if limit is None else min(entry.bytes, limit))
        if len(content) != entry.bytes or atomic.checksum(content) != entry.sha256:
            raise DamagedError(
                f"{path} is not the file that was committed: it was changed or cut; restore a copy of it, or run "
                "halrp repair"
            )
        self.verify(entry.file, content)
        return content

    def put(self, stem: str, content: bytes, ending: str = ".safetensors") -> Entry:
        """Write a file under the name that its content gives it, unless it is there."""
        entry = entry_of(stem, content, ending)
        path = self.path(entry.file)
        if not path.exists() or path.stat().st_size != entry.bytes or atomic.read(path, entry.bytes) != content:
            atomic.write(path, content)
        self.sign(entry.file, content)
        return entry

    def sign(self, file: str, content: bytes) -> None:
        """Write the signature of a file's content, if the store has a key that signs."""
        if self.signing_key is not None:
            signature = signing.sign(self.signing_key, purpose_of(file), content)
            path = self.path(signature_name(file, content))
            if (
                not path.is_file()
                or path.stat().st_size != len(signature)
                or atomic.read(path, signing.LARGEST) != signature
            ):
                atomic.write(path, signature)

    def verify(self, file: str, content: bytes) -> None:
        """Check the signature of a file's content, if the store has a key that verifies."""
        if self.verify_key is None:
            return
        path = self.path(signature_name(file, content))
        if not path.exists():
            raise SignatureError(
                f"{self.root / file} has no signature ({path} is missing) to verify with {self.verify_key!r}; if you "
                "know that the store is what it should be, sign it: halrp sign"
            )
        try:
            signature = atomic.read(path, signing.LARGEST)
        except DamagedError as error:
            raise SignatureError(f"{self.root / file} has a signature that cannot be read: {error}") from error
        signing.verify(self.verify_key, purpose_of(file), content, signature, str(self.root / file))

    def files(self, *folders: str) -> list[str]:
        """The files in some of the store's folders, not below them, in order; "." is the store itself."""
        return [file for folder in folders for file in sorted(self.unordered(folder))]

    def unordered(self, *folders: str) -> Iterator[str]:
        """The same in any order, for those who look for a few among many."""
        for folder in folders:
            path = self.root if folder == "." else self.path(folder)
            if path.is_dir():
                with os.scandir(path) as items:
                    prefix = "" if folder == "." else f"{folder}/"
                    yield from (f"{prefix}{item.name}" for item in items if item.is_file(follow_symlinks=False))

    def remember(self, manifest: Manifest) -> None:
        """Know a manifest that was just written, so that it need not be parsed."""
        self._parsed = manifest


def purpose_of(file: str) -> Purpose:
    """What a file of a store is for, by its name."""
    if file == MANIFEST:
        return "manifest"
    return "base" if file.startswith("base-") else "layout" if file.startswith("layout-") else "task"


def signature_name(file: str, content: bytes = b"") -> str:
    """The file of a signature: named after the file that it signs, of which only the manifest's has no checksum.

    So the signature of the next manifest is there before the manifest is, and neither is ever without the other.
    """
    stem = f"manifest-{atomic.checksum(content)[:16]}" if file == MANIFEST else file.rpartition(".")[0]
    return f"{SIGNATURES}/{stem}.sig"


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
