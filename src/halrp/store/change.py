"""One change of a store: under its lock, new files first, then the manifest in one move, then what it no longer names.

A reader sees the manifest before or the one after. A process that dies in between leaves files that no manifest names;
the next change moves them to the trash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from halrp.errors import ConflictError, StoreError, WriteError
from halrp.store import atomic, lineage, trash
from halrp.store.folder import MANIFEST, SIGNATURES, Folder, slug
from halrp.store.manifest import MOST_FILES, TASK, Manifest, entry_of
from halrp.store.signing import Key

Edit = Callable[[Manifest | None], Manifest]
"""From the manifest that is there, if any, to the one to write. It writes the files that its manifest names."""


def change(folder: Folder, known: Manifest | None, edit: Edit) -> Manifest:
    """Change a store that is still the known one; return its manifest. An error of the edit leaves it as it was."""
    folder.check_writable()
    lineage.check(folder.root, known, _present(folder, known))  # before the lock makes a folder
    folder.path("lock")
    with atomic.locked(folder.root):
        folder.refuse_links()
        before = folder.manifest() if folder.exists() else None
        lineage.check(folder.root, known, before)
        folder.refuse_unsigned(before)
        after = edit(before).following(before)
        if after is not before:
            _check_number(folder, after)
            if before is not None:
                trash.forget_pruned(folder, before, after)
            replace_manifest(folder, after)
        trash.tidy(folder, after)
        return after


def _present(folder: Folder, known: Manifest | None) -> Manifest | None:
    return folder.manifest() if known is not None and folder.exists() else None


def _check_number(folder: Folder, manifest: Manifest) -> None:
    number = sum(1 for _ in manifest.entries)
    if number > MOST_FILES:
        raise StoreError(
            f"{folder.root} would hold {number:,} files, more than the {MOST_FILES:,} that a store may have; drop old "
            "versions, or begin another store"
        )


def replace_manifest(folder: Folder, manifest: Manifest) -> None:
    """Make a manifest the present one, in one move, after what it names."""
    folder.sign(MANIFEST, manifest.content)
    # The manifest may name only what the disk holds.
    for name in ("tasks", f"{SIGNATURES}/tasks", SIGNATURES, "."):
        if (folder.root / name).is_dir():
            atomic.flush_folder(folder.root / name)
    atomic.write(folder.root / MANIFEST, manifest.content)
    folder.remember(manifest)
    # The commit has happened; that it may not outlive a power cut does not undo it.
    with suppress(WriteError):
        atomic.flush_folder(folder.root)


def sign_all(root: Path, key: Key) -> int:
    """Sign every file that a store's manifest names, and the manifest; return their number.

    All files are read and checked before the first signature is written.
    """
    folder = Folder(root, key)
    unverified = Folder(root)
    with atomic.locked(root):
        folder.refuse_links()
        manifest = unverified.manifest()
        files = {entry.file: entry for entry in manifest.entries}
        for entry in files.values():
            unverified.content(entry)
        for entry in files.values():
            folder.sign(entry.file, unverified.content(entry))
        folder.sign(MANIFEST, manifest.content)
        return len(files) + 1


def refuse_without_manifest(folder: Folder, ours: Iterable[tuple[str, bytes]]) -> None:
    """Refuse to begin a store where tasks lie that no manifest names, other than `ours`, by name and content."""
    files = {entry_of(f"tasks/{slug(name)}", content).file for name, content in ours}
    lost = [file for file in folder.files("tasks") if TASK.fullmatch(file) and file not in files]
    if lost:
        raise ConflictError(
            f"{folder.root} holds {len(lost)} task files but no {MANIFEST} ({lost[0]}, …); halrp repair rebuilds it, "
            "or choose another folder"
        )
