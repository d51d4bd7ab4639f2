"""A folder with a base and its tasks: safetensors files and a JSON manifest.

    manifest.json                       what is in the store, with checksums; replacing it is the commit
    base-<checksum>.safetensors         the frozen base
    layout-<checksum>.json              names, types and shapes of what tasks may own
    tasks/<name>-<checksum>.safetensors a task: everything it owns, and how it was learned
    trash/                              what the manifest no longer names
    work/                               checkpoints of interrupted tasks
    lock                                held while a commit is written

A file's name holds its checksum, so a commit never overwrites a file that the manifest names: new files are written
first, then the manifest is replaced in one move. A reader sees the old set of tasks or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from halrp.errors import DamagedError, SettingError, StoreError, UnknownTaskError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.layout import Layout
from halrp.store import atomic, base_file, lineage, task_file
from halrp.store.change import Edit, change, sign_all
from halrp.store.commit import Commit
from halrp.store.folder import WORK, Folder, work_name
from halrp.store.manifest import LARGEST, Entry, Manifest
from halrp.store.signing import AnyKey, Key, key_of

CHECKPOINT_EVERY = 30.0
"""Seconds between checkpoints: short tasks are cheaper to learn again than to save."""


class Store:
    """A folder of tasks. Reading needs no lock; writing holds it.

    A store object remembers what it last read all tasks of, or wrote: it refuses to change a folder that holds another
    store by then, or an earlier generation of this one.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        checkpoint_every: float = CHECKPOINT_EVERY,
        *,
        signing_key: AnyKey = None,
        verify_key: AnyKey = None,
    ) -> None:
        """Name a folder; nothing is read or written yet.

        A stage of a training that is interrupted is resumed from a checkpoint at most `checkpoint_every` seconds and an
        epoch old, or fifty times as old as it took to write; 0 writes one after every epoch, whatever it costs.
        With `signing_key`, a key or its file, everything that is written is signed. With `verify_key`, by default the
        key that signs, a file without a signature of that key raises `SignatureError` before anything of it is used.
        """
        self.folder, self.checkpoint_every = Path(folder), checkpoint_every
        self.known: Manifest | None = None
        """What was last read or written."""
        self._folder = Folder(self.folder, key_of(signing_key), key_of(verify_key))

    def exists(self) -> bool:
        """Whether something has been committed here."""
        return self._folder.exists()

    def manifest(self) -> Manifest:
        """What is in the store now."""
        return self._folder.manifest()

    def content(self, entry: Entry, limit: int | None = None) -> bytes:
        """A file of the store, of at most `limit` bytes, checked against its checksum and its signature."""
        return self._folder.content(entry, limit)

    def layouts(self, manifest: Manifest) -> Mapping[str, Layout]:
        """What the task files of a manifest are laid out by, by digest."""
        layouts = {}
        for digest, entry in manifest.layouts.items():
            source = str(self.folder / entry.file)
            layouts[digest] = layout = Layout.parse(self.content(entry, LARGEST), source)
            if layout.fingerprint != manifest.fingerprint:
                raise DamagedError(f"{source} belongs to another base, {layout.fingerprint[:12]}…")
        return layouts

    def read_all(self, base: Base) -> dict[str, Delta]:
        """Every task of the store, as one commit left them: read again if another process commits meanwhile."""
        while True:
            manifest = self.manifest()
            try:
                layouts = self.layouts(manifest)
                tasks = {name: self._read(name, base, manifest, layouts) for name in manifest.tasks}
            except DamagedError:
                if self.manifest() == manifest:
                    raise
            else:
                self.known = manifest
                return tasks

    def read(self, name: str, base: Base) -> Delta:
        """A task of the store, compared with the base."""
        manifest = self.manifest()
        if name not in manifest.tasks:
            known = ", ".join(manifest.tasks) or "none"
            raise UnknownTaskError(f"{self.folder} has no task {name!r}; it has: {known}")
        return self._read(name, base, manifest, self.layouts(manifest))

    def _read(self, name: str, base: Base, manifest: Manifest, layouts: Mapping[str, Layout]) -> Delta:
        entry = manifest.tasks[name]
        source = str(self.folder / entry.file)
        delta = task_file.check(task_file.read(self.content(entry, _largest(base)), layouts, source), base, source)
        if delta.task != name:
            raise DamagedError(f"{source} holds the task {delta.task!r}, not {name!r}")
        return delta

    def read_base(self, like: Base) -> Base:
        """The store's base, on the architecture of `like`."""
        manifest = self.manifest()
        content = self.content(manifest.base, _largest(like))
        return base_file.read(content, manifest, like, str(self.folder / manifest.base.file))

    def check_known(self) -> None:
        """Raise `StoreChangedError` if the folder holds something else than a later generation of what was seen."""
        if self.known is not None:
            lineage.check(self.folder, self.known, self.manifest() if self.exists() else None)

    def commit(
        self,
        base: Base,
        deltas: Sequence[Delta],
        *,
        pruned: Mapping[str, Delta] | None = None,
        replaced: Mapping[str, Delta | None] | None = None,
    ) -> Manifest:
        """Add tasks to the store: all of them or none.

        A committed task of the same name with another content raises `ConflictError`, unless the caller names it:
        `pruned` are tasks that compression changed, as they were before it, and `replaced` tasks that get a new
        version, as they are. Of those the store must still hold exactly that one.
        """
        commit = Commit(base, deltas, pruned or {}, replaced or {})

        def stored(name: str, manifest: Manifest) -> bytes | None:
            try:
                return task_file.write(self._read(name, base, manifest, self.layouts(manifest)))
            except StoreError:
                return None

        return self._change(lambda before: commit.edit(self._folder, before, stored))

    def _change(self, edit: Edit) -> Manifest:
        self.known = change(self._folder, self.known, edit)
        return self.known

    @property
    def signing_key(self) -> Key | None:
        """The key that signs what is written, if there is one."""
        return self._folder.signing_key

    def check_signature(self, file: str, content: bytes) -> None:
        """Raise `SignatureError` if there is a key that verifies and it has not signed the content of this file."""
        self._folder.verify(file, content)

    def sign(self, key: AnyKey = None) -> int:
        """Sign what the store holds now, as it is, and return the number of signatures; by default with its own key.

        Files are compared with their checksums, not with earlier signatures: sign a store that you know to be right.
        """
        chosen = self._folder.signing_key if key is None else key_of(key)
        if chosen is None:
            raise SettingError(f"{self.folder} has no key that signs; give one: store.sign(key)")
        return sign_all(self.folder, chosen)

    def work_folder(self, name: str, version: int = 0) -> Path:
        """Where checkpoints of a task, or of a later version of it, may lie until it is committed."""
        return self._folder.path(f"{WORK}/{work_name(name, version)}")


def _largest(base: Base) -> int:
    """Bytes that a file of a store on this base may have: a head may be wide, but not beyond all measure."""
    return max(atomic.LARGEST, 4 * sum(tensor.nbytes for tensor in base.tensors.values()))
