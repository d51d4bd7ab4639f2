"""A task without its base: what is sent to where everybody has the base."""

from __future__ import annotations

from halrp._version import __version__
from halrp.errors import ConflictError
from halrp.store import task_file
from halrp.store.change import replace_manifest
from halrp.store.folder import Folder
from halrp.store.manage import entry_of_task
from halrp.store.manifest import FORMAT, Manifest
from halrp.store.merge import copy_file, read_layouts


def extract(source: Folder, manifest: Manifest, name: str, into: Folder) -> Manifest:
    """Copy a task and its layout into an empty folder, after both were read and checked; return its manifest.

    The manifest names the base by checksum and fingerprint, and the file of the base is not there. Old versions stay
    behind.
    """
    entry = entry_of_task(source, manifest, name, None)
    delta = task_file.read(source.content(entry), read_layouts(source, manifest), str(source.root / entry.file))
    digest = delta.layout.digest
    layouts = {digest: manifest.layouts[digest]} if digest in manifest.layouts else {}  # format 1 had none
    if into.root.exists() and (not into.root.is_dir() or any(into.root.iterdir())):
        raise ConflictError(f"{into.root} is not an empty folder; name another for the task {name!r}")
    for file in (*layouts.values(), entry):
        copy_file(source, into, file)
    alone = manifest.edited(tasks={name: entry}, layouts=layouts, versions={}, version=__version__, format=FORMAT)
    written = alone.following(None)
    replace_manifest(into, written)
    return written
