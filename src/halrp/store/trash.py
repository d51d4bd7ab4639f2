"""What a store no longer names: moved to its folder `trash`, from where it can be brought back.

A commit never deletes a file that a manifest could name: the manifest may have been rolled back, and a later one may
be restored. Only what pruning replaced is deleted, by the next commit, since pruning replaces every task each time.
`Store.repair(empty_trash=True)` deletes the rest.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from halrp.errors import StoreError, WriteError
from halrp.store import atomic
from halrp.store.folder import MANIFEST, SIGNATURES, TRASH, WORK, Folder, signature_name, work_name
from halrp.store.manifest import BASE, LAYOUT, TASK, Manifest

_TEMPORARY = re.compile(rf"({SIGNATURES}/|{TRASH}/)?(tasks/)?\.[^/]+{re.escape(atomic.TEMPORARY)}")
_OF_MANIFEST = re.compile(rf"{SIGNATURES}/manifest-[0-9a-f]{{16}}\.sig")


def is_store_file(relative: str) -> bool:
    """Whether a file has a name that this library gives to bases, layouts and tasks."""
    return any(pattern.fullmatch(relative) for pattern in (BASE, LAYOUT, TASK))


def strays(folder: Folder, manifest: Manifest | None) -> list[str]:
    """Files of the store that a manifest does not name."""
    named = frozenset() if manifest is None else manifest.files
    return sorted(file for file in folder.unordered(".", "tasks") if file not in named and is_store_file(file))


def unfinished(folder: Folder) -> list[str]:
    """Files that a killed process was writing; whoever holds the lock knows that nobody writes them now."""
    files = folder.unordered(".", "tasks", TRASH, SIGNATURES, f"{SIGNATURES}/tasks")
    return sorted(file for file in files if file.endswith(atomic.TEMPORARY) and _TEMPORARY.fullmatch(file))


def stale_signatures(folder: Folder, manifest: Manifest) -> list[str]:
    """Signatures of earlier manifests; those of other files stay, as the files may be brought back from the trash."""
    present = signature_name(MANIFEST, manifest.content)
    return [file for file in folder.files(SIGNATURES) if _OF_MANIFEST.fullmatch(file) and file != present]


def tidy(folder: Folder, manifest: Manifest) -> None:
    """After a commit: move what it no longer names to the trash, and remove unfinished files and finished work.

    What cannot be moved stays: the commit has happened.
    """
    with suppress(OSError, StoreError):
        for file in (*unfinished(folder), *stale_signatures(folder, manifest)):
            with suppress(OSError):
                os.unlink(folder.root / file)
        for file in strays(folder, manifest):
            with suppress(OSError, StoreError):
                discard(folder, file)
        clear_work(folder, manifest)


def discard(folder: Folder, file: str, mark: str = "") -> str:
    """Move a file to the trash, where nothing is overwritten; return its path in the store."""
    source, name = folder.path(file), f"{TRASH}/{file}{mark}"
    target, number = folder.path(name), 0
    while target.exists():
        if _same(source, target):
            os.unlink(source)
            return name
        number += 1
        name = f"{TRASH}/{file}{mark}.{number}"
        target = folder.path(name)
    atomic.make_folder(target.parent)
    os.rename(source, target)
    return name


def _same(path: Path, other: Path) -> bool:
    sizes = {item.stat().st_size for item in (path, other) if item.is_file()}
    return len(sizes) == 1 and other.is_file() and atomic.read(path) == atomic.read(other)


def forget_pruned(folder: Folder, before: Manifest, after: Manifest) -> None:
    """Before the next commit: delete what the last one replaced by pruning, unless it is in use again."""
    for file in before.pruned:
        for name in (file, f"{TRASH}/{file}", signature_name(file)) if file not in after.files else ():
            path = folder.path(name)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise WriteError(
                    f"{path} could not be deleted: {error.strerror or error}; what was there before is unchanged"
                ) from error
    trash = folder.path(f"{TRASH}/tasks")
    if before.pruned and trash.is_dir():
        atomic.flush_folder(trash)  # the next generation does not remember what this one pruned


def clear_work(folder: Folder, manifest: Manifest) -> None:
    """Remove the checkpoints of tasks that are committed."""
    work = folder.path(WORK)
    left = {path.name for path in work.glob("*")}
    if not left:
        return
    versions = {task: len(manifest.versions.get(task, ())) for task in manifest.tasks}
    done = {work_name(task, number) for task, count in versions.items() for number in range(count + 1)}
    for name in left & done:
        shutil.rmtree(folder.path(f"{WORK}/{name}"), ignore_errors=True)


def empty(folder: Folder, manifest: Manifest) -> None:
    """Delete the trash for good, and signatures of what was in it; a link in it is deleted, not followed."""
    path = folder.path(TRASH)
    if path.exists():
        shutil.rmtree(path)
    signed = {signature_name(file) for file in (*strays(folder, None), *(entry.file for entry in manifest.entries))}
    for file in folder.files(SIGNATURES, f"{SIGNATURES}/tasks"):
        if file.endswith(".sig") and file not in signed and not _OF_MANIFEST.fullmatch(file):
            os.unlink(folder.root / file)
