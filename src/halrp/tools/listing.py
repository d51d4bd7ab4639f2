"""What the manifest of a store says, without reading the files that it names: fast for any number of tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from halrp.store.folder import TRASH, Folder
from halrp.store.manifest import Manifest


def listing(folder: str | os.PathLike[str], manifest: Manifest | None = None) -> dict[str, Any]:
    """The store as plain JSON values, with the file, the bytes and the old versions of each task in order."""
    root = Path(folder)
    present = Folder(root).manifest() if manifest is None else manifest
    return {
        "store": str(root),
        "version": present.version,
        "head": present.head,
        "fingerprint": present.fingerprint,
        "identity": present.identity,
        "generation": present.generation,
        "base_bytes": present.base.bytes,
        "tasks": [
            {
                "name": name,
                "file": entry.file,
                "bytes": entry.bytes,
                "versions": [old._asdict() for old in present.versions.get(name, ())],
            }
            for name, entry in present.tasks.items()
        ],
        "bytes": sum({entry.file: entry.bytes for entry in present.entries}.values()),
        "trash_bytes": sum(path.stat().st_size for path in (root / TRASH).rglob("*") if path.is_file()),
        "separate_bytes": present.base.bytes * len(present.tasks),
    }
