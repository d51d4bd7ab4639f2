"""Changes of what a store holds: remove, rename, old versions. Each is a function from one manifest to the next."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from halrp.checks import check_task_name
from halrp.errors import ConflictError, FormatError, StoreError, TaskError, UnknownTaskError
from halrp.model.base import Base
from halrp.model.layout import Layout
from halrp.store import task_file
from halrp.store.folder import Folder, slug
from halrp.store.manifest import Entry, Manifest


def entry_of_task(folder: Folder, manifest: Manifest, name: str, expected: Entry | None) -> Entry:
    """The file of a task, or an error if there is none or not the one that the caller knows."""
    if name not in manifest.tasks:
        known = ", ".join(map(repr, manifest.tasks)) or "none"
        raise UnknownTaskError(f"{folder.root} has no task {name!r}; it has: {known}")
    entry = manifest.tasks[name]
    if expected is not None and entry != expected:
        raise ConflictError(
            f"{folder.root} holds another version of {name!r} than the one at hand: another process changed it; call "
            "learner.refresh() first"
        )
    return entry


def removed(folder: Folder, manifest: Manifest, name: str, expected: Entry | None) -> Manifest:
    """Without a task and its old versions. The base stays, even if the task made it."""
    entry = entry_of_task(folder, manifest, name, expected)
    versions = manifest.versions.get(name, ())
    _refuse_parents(folder, manifest, (entry, *versions), f"remove {name!r}", leaving=name)
    return manifest.edited(tasks=_without(manifest.tasks, name), versions=_without(manifest.versions, name))


def renamed(
    folder: Folder,
    manifest: Manifest,
    layouts: Mapping[str, Layout],
    names: tuple[str, str],
    expected: Entry | None,
    base: Base | None,
) -> Manifest:
    """With a task and its old versions under another name; their files are written again, since they hold the name."""
    old, new = names
    check_task_name(new)
    entry = entry_of_task(folder, manifest, old, expected)
    if new in manifest.tasks:
        raise TaskError(f"{folder.root} already holds a task {new!r}; choose another name for {old!r}")
    before = (entry, *manifest.versions.get(old, ()))
    _refuse_parents(folder, manifest, before, f"rename {old!r}", leaving=old)
    contents, added = [], dict(manifest.layouts)
    for version in before:
        source = str(folder.root / version.file)
        delta = task_file.read(folder.content(version), layouts, source)
        if base is not None:
            delta = task_file.check(delta, base, source)
        if delta.layout.partial:
            raise FormatError(
                f"{source} has format 1, whose tasks only a learner can rename: Learner.load(store, model).rename(…)"
            )
        contents.append((task_file.write(dataclasses.replace(delta, task=new)), delta.layout))
    for _, layout in contents:
        added[layout.digest] = folder.put("layout", layout.content, ".json")
    after = [folder.put(f"tasks/{slug(new)}", content) for content, _ in contents]
    tasks = {new if name == old else name: after[0] if name == old else e for name, e in manifest.tasks.items()}
    versions = _without(manifest.versions, old) | ({new: tuple(after[1:])} if after[1:] else {})
    return manifest.edited(tasks=tasks, versions=versions, layouts=added)


def reverted(folder: Folder, manifest: Manifest, name: str, expected: Entry | None) -> Manifest:
    """With the newest old version of a task as the present one, which becomes an old version in its stead."""
    entry = entry_of_task(folder, manifest, name, expected)
    versions = manifest.versions.get(name, ())
    if not versions:
        raise TaskError(f"{folder.root} has no other version of {name!r}; learn(..., replace=True) makes one")
    folder.content(versions[0])  # raises if it is damaged
    return manifest.edited(
        tasks={**manifest.tasks, name: versions[0]}, versions={**manifest.versions, name: (entry, *versions[1:])}
    )


def without_versions(folder: Folder, manifest: Manifest, name: str) -> Manifest:
    """Without the old versions of a task."""
    entry_of_task(folder, manifest, name, None)
    _refuse_parents(folder, manifest, manifest.versions.get(name, ()), f"drop old versions of {name!r}")
    return manifest.edited(versions=_without(manifest.versions, name))


def _without(entries: Mapping[str, object], name: str) -> dict[str, object]:
    return {other: entry for other, entry in entries.items() if other != name}


def _refuse_parents(
    folder: Folder, manifest: Manifest, entries: Iterable[Entry], action: str, leaving: str | None = None
) -> None:
    """Refuse to take away files that another task started from, which it names by their content."""
    hashes = {entry.sha256 for entry in entries}
    children = [
        name
        for name, entry in manifest.tasks.items()
        if hashes and name != leaving and not hashes.isdisjoint(_parents(folder, entry))
    ]
    if children:
        raise ConflictError(
            f"{folder.root}: cannot {action}: {', '.join(map(repr, children))} started from it and names it as a "
            "parent; remove that first"
        )


def _parents(folder: Folder, entry: Entry) -> list[str]:
    """The content hashes that a task's file names as its parents; none if it cannot be read."""
    try:
        content = folder.content(entry)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        parents = json.loads(header["__metadata__"]["halrp"]).get("parents", [])
        return [str(parent) for parent in parents]
    except (StoreError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []
