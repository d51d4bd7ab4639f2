"""Bringing the tasks of one store into another store of the same base, in one commit."""

from __future__ import annotations

from halrp.errors import ConflictError, StoreError, WrongBaseError
from halrp.model.layout import Layout
from halrp.store import task_file
from halrp.store.change import refuse_without_manifest
from halrp.store.folder import Folder
from halrp.store.manifest import Entry, Manifest


def new_tasks(ours: Manifest | None, theirs: Manifest, into: Folder, source: Folder) -> dict[str, Entry]:
    """The tasks that the other store has and this one has not; conflicts are named all at once."""
    if ours is None:
        refuse_without_manifest(into, ())
        return dict(theirs.tasks)
    uses = {(manifest.head, manifest.channels_last, manifest.counts_head) for manifest in (ours, theirs)}
    if ours.fingerprint != theirs.fingerprint or len(uses) > 1:
        raise WrongBaseError(
            f"{source.root} has another base ({theirs.fingerprint[:12]}…, head {theirs.head!r}) than {into.root} "
            f"({ours.fingerprint[:12]}…, head {ours.head!r}); only tasks of one base can be merged"
        )
    both = [name for name in theirs.tasks if name in ours.tasks]
    conflicts = [name for name in both if not _same(ours.tasks[name], theirs.tasks[name], into, source, ours, theirs)]
    if conflicts:
        raise ConflictError(
            f"{into.root} and {source.root} hold different tasks of the same name: "
            f"{', '.join(map(repr, conflicts))}; rename or remove them in one of the two, then merge again"
        )
    return {name: entry for name, entry in theirs.tasks.items() if name not in ours.tasks}


def merged(into: Folder, before: Manifest | None, source: Folder, theirs: Manifest) -> Manifest:
    """Copy what is new, with its old versions, after everything has been read and checked."""
    new = new_tasks(before, theirs, into, source)
    versions = {name: theirs.versions[name] for name in new if name in theirs.versions}
    layouts = read_layouts(source, theirs)
    for name, entry in new.items():
        for version in (entry, *versions.get(name, ())):
            _check(source, version, layouts, name, theirs.fingerprint)
    if before is None:
        copy_file(source, into, theirs.base)
        before = Manifest(theirs.head, theirs.channels_last, theirs.fingerprint, theirs.base, theirs.counts_head)
    for entry in (*theirs.layouts.values(), *new.values(), *(entry for old in versions.values() for entry in old)):
        copy_file(source, into, entry)
    return before.edited(
        tasks={**before.tasks, **new},
        layouts={**before.layouts, **theirs.layouts},
        versions={**before.versions, **versions},
    )


def read_layouts(folder: Folder, manifest: Manifest) -> dict[str, Layout]:
    """The layouts of a manifest, by digest."""
    return {
        digest: Layout.parse(folder.content(entry), str(folder.root / entry.file))
        for digest, entry in manifest.layouts.items()
    }


def copy_file(source: Folder, into: Folder, entry: Entry) -> None:
    """Copy a file of one store into another, after its content was checked."""
    stem, _, ending = entry.file.rpartition(f"-{entry.sha256[:16]}")
    into.put(stem, source.content(entry), ending)


def _check(folder: Folder, entry: Entry, layouts: dict[str, Layout], name: str, fingerprint: str) -> None:
    path = str(folder.root / entry.file)
    delta = task_file.read(folder.content(entry), layouts, path)
    if delta.task != name or delta.base != fingerprint:
        raise WrongBaseError(f"{path} holds the task {delta.task!r} of the base {delta.base[:12]}…, not {name!r}")


def _same(entry: Entry, other: Entry, into: Folder, source: Folder, ours: Manifest, theirs: Manifest) -> bool:
    """Whether two files hold the same task, perhaps in two formats."""
    return entry.sha256 == other.sha256 or _rewritten(into, entry, ours) == _rewritten(source, other, theirs)


def _rewritten(folder: Folder, entry: Entry, manifest: Manifest) -> bytes | str:
    """A task's file as this version writes it, or its checksum if that cannot be known without the model."""
    try:
        delta = task_file.read(folder.content(entry), read_layouts(folder, manifest), entry.file)
    except StoreError:
        return entry.sha256
    return entry.sha256 if delta.layout.partial else task_file.write(delta)
