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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from halrp.errors import DamagedError, SettingError, StoreError, UnknownTaskError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.layout import Layout
from halrp.store import base_file, extract, lineage, manage, merge, repair, task_file
from halrp.store.change import Edit, change, sign_all
from halrp.store.commit import Commit
from halrp.store.folder import WORK, Folder, work_name
from halrp.store.manifest import LARGEST, Entry, Manifest
from halrp.store.repair import Repair
from halrp.store.signing import AnyKey, Key, key_of

CHECKPOINT_EVERY = 30.0
"""Seconds between checkpoints: short tasks are cheaper to learn again than to save."""


@dataclass(frozen=True)
class StoredTasks:
    """What one generation of a store holds."""

    manifest: Manifest
    tasks: dict[str, Delta]
    damaged: dict[str, StoreError]
    """Tasks that cannot be read, and why."""


@dataclass(frozen=True)
class _Reading:
    """The tasks of one manifest, of which some need not be read."""

    store: Store
    base: Base
    manifest: Manifest
    at_hand: Mapping[str, tuple[Entry, Delta]]

    def task(self, name: str) -> Delta:
        entry, delta = self.at_hand.get(name, (None, None))
        if delta is not None and entry == self.manifest.tasks[name]:
            return delta
        return self.store._read(name, self.base, self.manifest, self.layouts)

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        return self.store.layouts(self.manifest)


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
        """Every task of the store, as one commit left them."""
        return self.read_tasks(base).tasks

    def read_tasks(
        self, base: Base, skip_damaged: bool = False, at_hand: Mapping[str, tuple[Entry, Delta]] | None = None
    ) -> StoredTasks:
        """Every task of the store, as one commit left them: read again if another process commits meanwhile.

        A task that is `at_hand` with the same file is not read again. With `skip_damaged`, tasks that cannot be read
        are named and left out; otherwise the first one is an error.
        """
        while True:
            if self.known is not None and not self.exists():
                lineage.check(self.folder, self.known, None)
            manifest = self.manifest()
            lineage.check(self.folder, self.known, manifest)
            stored = StoredTasks(manifest, {}, {})
            reading = _Reading(self, base, manifest, at_hand or {})
            for name in manifest.tasks:
                try:
                    stored.tasks[name] = reading.task(name)
                except StoreError as problem:
                    stored.damaged[name] = problem
            if not stored.damaged or self.manifest() == manifest:
                break
        for error in stored.damaged.values():
            if not skip_damaged:
                raise error
        self.known = manifest
        return stored

    def read(self, name: str, base: Base) -> Delta:
        """A task of the store, compared with the base."""
        manifest = self.manifest()
        if name not in manifest.tasks:
            known = ", ".join(manifest.tasks) or "none"
            raise UnknownTaskError(f"{self.folder} has no task {name!r}; it has: {known}")
        return self._read(name, base, manifest, self.layouts(manifest))

    def _read(self, name: str, base: Base, manifest: Manifest, layouts: Mapping[str, Layout]) -> Delta:
        return self.read_file(manifest.tasks[name], name, base, layouts)

    def read_file(self, entry: Entry, name: str, base: Base, layouts: Mapping[str, Layout]) -> Delta:
        """The task of a file, checked against checksum and signature and compared with the base."""
        source = str(self.folder / entry.file)
        content = self.content(entry, base_file.largest(base))
        delta = task_file.check(task_file.read(content, layouts, source), base, source)
        if delta.task != name:
            raise DamagedError(f"{source} holds the task {delta.task!r}, not {name!r}")
        return delta

    def read_base(self, like: Base) -> Base:
        """The store's base, on the architecture of `like`."""
        manifest = self.manifest()
        content = self.content(manifest.base, base_file.largest(like))
        return base_file.read(content, manifest, like, str(self.folder / manifest.base.file))

    def check_known(self) -> None:
        """Raise `StoreChangedError` if the folder holds something else than a later generation of what was seen.

        A store that is read with a key that only verifies cannot be written to, which is a `SettingError`, and a signed
        one not without a key, which is a `SignatureError`.
        """
        self._folder.check_writable()
        if self.known is not None:
            present = self.manifest() if self.exists() else None
            lineage.check(self.folder, self.known, present)
            self._folder.refuse_unsigned(present)

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

    def remove(self, name: str, expected: Entry | None = None) -> Manifest:
        """Remove a task and its old versions; their files go to the trash, and the base stays.

        With `expected`, the task's file as the caller knows it, another version there raises `ConflictError`.
        """
        return self._edit(lambda before: manage.removed(self._folder, before, name, expected))

    def rename(self, old: str, new: str, expected: Entry | None = None, base: Base | None = None) -> Manifest:
        """Give a task and its old versions another name; tasks of format 1 need the `base`."""

        def edit(before: Manifest) -> Manifest:
            layouts = self.layouts(before)
            return manage.renamed(self._folder, before, layouts, (old, new), expected, base)

        return self._edit(edit)

    def versions(self, name: str) -> tuple[Entry, ...]:
        """The old versions of a task, the newest first."""
        manifest = self.manifest()
        manage.entry_of_task(self._folder, manifest, name, None)
        return tuple(manifest.versions.get(name, ()))

    def read_versions(self, name: str, base: Base) -> tuple[Delta, ...]:
        """The old versions of a task, the newest first, compared with the base."""
        layouts = self.layouts(self.manifest())
        return tuple(self.read_file(entry, name, base, layouts) for entry in self.versions(name))

    def revert(self, name: str, expected: Entry | None = None) -> Manifest:
        """Bring the newest old version of a task back; the present one becomes an old version in its stead."""
        return self._edit(lambda before: manage.reverted(self._folder, before, name, expected))

    def drop_versions(self, name: str) -> Manifest:
        """Remove the old versions of a task; their files go to the trash."""
        return self._edit(lambda before: manage.without_versions(self._folder, before, name))

    def merge(self, other: Store | str | os.PathLike[str]) -> tuple[str, ...]:
        """Add the tasks of another store of the same base, in one commit; return their names.

        Tasks that both have must be identical, or `ConflictError` names them all and nothing changes. Old versions come
        with new tasks. An empty folder becomes a copy.
        """
        source = other if isinstance(other, Store) else Store(other)
        while True:
            theirs = source.manifest()
            try:
                return self._merge(source._folder, theirs)
            except StoreError:  # did another process change it meanwhile?
                if source.manifest() == theirs:
                    raise

    def _merge(self, source: Folder, theirs: Manifest) -> tuple[str, ...]:
        added: list[str] = []

        def edit(before: Manifest | None) -> Manifest:
            after = merge.merged(self._folder, before, source, theirs)
            added.extend(name for name in after.tasks if before is None or name not in before.tasks)
            return after

        self._change(edit)
        return tuple(added)

    def extract(self, name: str, folder: str | os.PathLike[str]) -> Store:
        """Copy a task without the base into an empty folder, as a store of that task alone.

        It is for where everybody has the base, such as a registry of models: the new store names the base by its
        fingerprint. `merge` brings the task into any store of the same base.
        """
        key = self._folder.signing_key
        target = Store(folder, signing_key=key)
        target.known = extract.extract(self._folder, self.manifest(), name, target._folder)
        return target

    def repair(self, *, like: Base | None = None, dry_run: bool = False, empty_trash: bool = False) -> Repair:
        """Bring a store back to a state that can be read, as far as its files allow, and report what was lost.

        Files that the manifest names come back from the trash, damaged ones are set aside there, a lost manifest is
        made again from the files, and tasks without a file are dropped from it. `like`, the base of a model, can give
        back a layout or the base. `empty_trash` deletes what the manifest no longer names, for good.
        """
        report = repair.repair(self._folder, like, dry_run, empty_trash)
        if report.done:
            self.known = None
        return report

    def _edit(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Change a store that must exist."""
        if self.known is None:
            self.manifest()
        return self._change(lambda before: edit(self.manifest() if before is None else before))

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
