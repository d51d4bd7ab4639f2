"""Adding tasks to a store: all of them or none, and never over a committed task of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from halrp.errors import ConflictError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.store import atomic, base_file, task_file
from halrp.store.change import refuse_without_manifest
from halrp.store.folder import Folder, slug
from halrp.store.manifest import Entry, Manifest

Stored = Callable[[str, Manifest], "bytes | None"]
"""The file of a committed task as this version writes it; None if it cannot be read."""


@dataclass(frozen=True)
class Commit:
    """Tasks to add to a store, and what they may take the name of."""

    base: Base
    deltas: Sequence[Delta]
    pruned: Mapping[str, Delta] = field(default_factory=dict)
    """Committed tasks that compression changed, as they were before it."""
    replaced: Mapping[str, Delta | None] = field(default_factory=dict)
    """Committed tasks that get a new version, as they are; None if the present one cannot be read."""

    def edit(self, folder: Folder, before: Manifest | None, stored: Stored) -> Manifest:
        """Check everything, then write the files; return the manifest that names them."""
        contents = {delta.task: self._checked(delta) for delta in self.deltas}
        if before is None:
            refuse_without_manifest(folder, contents.items())
            self._refuse_missing(folder, {})
        else:
            self._refuse_other_base(folder, before)
            self._refuse_missing(folder, before.tasks)
            contents = self._new_files(folder, before, contents, stored)
        if before is None:
            entry = folder.put("base", base_file.write(self.base))
            base = self.base
            before = Manifest(base.plan.head, base.channels_last, base.fingerprint, entry, base.counts_head)
        layouts = dict(before.layouts)
        used = [delta.layout for delta in self.deltas]
        for layout in {layout.digest: layout for layout in (used if layouts or used else [self.base.layout])}.values():
            layouts[layout.digest] = folder.put("layout", layout.content, ".json")
        entries = {name: folder.put(f"tasks/{slug(name)}", content) for name, content in contents.items()}
        return self._manifest(before, entries, layouts)

    def _manifest(self, before: Manifest, entries: Mapping[str, Entry], layouts: Mapping[str, Entry]) -> Manifest:
        versions = dict(before.versions)
        for name in self.replaced:
            if name in entries and before.tasks[name] != entries[name]:
                old = (before.tasks[name], *versions.get(name, ()))
                versions[name] = tuple(entry for entry in old if entry != entries[name])
        after = before.edited(tasks={**before.tasks, **entries}, layouts=layouts, versions=versions)
        dropped = [before.tasks[name].file for name in self.pruned if name in entries]
        return after.edited(pruned=tuple(file for file in dropped if file not in after.files))

    def _checked(self, delta: Delta) -> bytes:
        """The file of a task, which is read again: nothing is committed that cannot be."""
        content = task_file.write(delta)
        read = task_file.read(content, {delta.layout.digest: delta.layout}, delta.task)
        task_file.check(read, self.base, delta.task)
        return content

    def _refuse_other_base(self, folder: Folder, before: Manifest) -> None:
        if before.fingerprint != self.base.fingerprint:
            raise ConflictError(
                f"{folder.root} holds tasks of another base ({before.fingerprint[:12]}…, not "
                f"{self.base.fingerprint[:12]}…); choose another folder"
            )

    def _refuse_missing(self, folder: Folder, tasks: Mapping[str, Entry]) -> None:
        missing = [name for name in (*self.pruned, *self.replaced) if name not in tasks]
        if missing:
            raise ConflictError(
                f"{folder.root} does not hold {_names(missing)}, to be replaced: another process removed it; call "
                "learner.refresh() first"
            )

    def _new_files(
        self, folder: Folder, before: Manifest, contents: Mapping[str, bytes], stored: Stored
    ) -> dict[str, bytes]:
        """The contents that must be written: not those of tasks that are there, perhaps in an earlier format."""
        new, conflicts, changed = {}, [], []
        for name, content in contents.items():
            there = before.tasks.get(name)
            if there is None or there.sha256 == atomic.checksum(content):
                new[name] = content  # writing a file that is there changes nothing, unless it is damaged
                continue
            present = stored(name, before)
            if present == content:
                continue
            if name in self.pruned or name in self.replaced:
                expected = self.pruned.get(name) or self.replaced.get(name)
                if expected is not None and not _is(expected, there, present):
                    changed.append(name)
                new[name] = content
            else:
                conflicts.append(name)
        if conflicts:
            raise ConflictError(
                f"{folder.root} already holds another task {_names(conflicts)}, and a committed task never changes; "
                "choose another name, rename the task that is there, or learn(..., replace=True)"
            )
        if changed:
            raise ConflictError(
                f"{folder.root} holds another version of {_names(changed)} than the one to be replaced: another "
                "process changed it; call learner.refresh() first"
            )
        return new


def _is(delta: Delta, entry: Entry, present: bytes | None) -> bool:
    content = task_file.write(delta)
    return content == present or atomic.checksum(content) == entry.sha256


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
