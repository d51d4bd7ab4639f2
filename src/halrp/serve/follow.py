"""What a store holds at present, followed while other processes change it: `Follower`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from halrp.errors import StoreError
from halrp.model.layout import Layout
from halrp.store import lineage
from halrp.store.folder import MANIFEST
from halrp.store.manifest import Manifest
from halrp.store.store import Store


@dataclass(frozen=True)
class Generation:
    """What a store holds after one of its commits."""

    manifest: Manifest
    layouts: Mapping[str, Layout]


class Follower:
    """The newest generation of a store that could be read. Threads may ask at the same time.

    A commit replaces the manifest in one move, so looking whether there is another file costs a call of the system, and
    a generation is seen as a whole. If the store cannot be read, was rolled back or is another one, the generation
    before stays, and `problem` says why, until the store is right again.
    """

    def __init__(self, store: Store, every: float) -> None:
        """Read the manifest; look for another one after `every` seconds at the earliest."""
        self.store, self.every = store, every
        self.problem: StoreError | None = None
        """Why the store cannot be followed now."""
        self._lock = Lock()
        self._seen = self._mark()
        manifest = store.manifest()
        self.present = Generation(manifest, store.layouts(manifest))
        self._checked = time.monotonic()

    def generation(self, now: bool = False) -> Generation:
        """The present generation, read again if there is another manifest; looks in any case if `now`."""
        due = now or time.monotonic() - self._checked >= self.every
        # Of several threads one looks; the others need not wait for it, unless they must know.
        if due and self._lock.acquire(blocking=now):
            try:
                self._look()
            except StoreError as problem:
                self.problem = problem
            finally:
                self._lock.release()
        return self.present

    def refresh(self) -> Generation:
        """The same, now; what is wrong with the store is raised."""
        with self._lock:
            try:
                self._look()
            except StoreError as problem:
                self.problem = problem
                raise
        return self.present

    def _look(self) -> None:
        mark = self._mark()
        self._checked = time.monotonic()
        if mark == self._seen and self.problem is None:
            return
        before = self.present
        if not self.store.exists():
            lineage.check(self.store.folder, before.manifest, None)
        manifest = self.store.manifest()
        lineage.check(self.store.folder, before.manifest, manifest)
        if manifest != before.manifest or list(manifest.tasks) != list(before.manifest.tasks):
            same = manifest.layouts == before.manifest.layouts
            self.present = Generation(manifest, before.layouts if same else self.store.layouts(manifest))
        self._seen, self.problem = mark, None

    def _mark(self) -> tuple[int, int, int] | None:
        """What distinguishes the file of one manifest from that of another."""
        try:
            status = os.stat(self.store.folder / MANIFEST)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
