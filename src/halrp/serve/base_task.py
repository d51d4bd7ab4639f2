"""The base's own task: what `None` means where tasks are named."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.serve.follow import Generation
from halrp.serve.loaded import LoadedTask
from halrp.store.manifest import Entry
from halrp.store.store import Store

LARGEST = 1 << 20
"""Bytes that the file of a base's own task may have: it holds a description, and prototypes at most."""
INDEX = b'"index":{'
"""How a tensor begins in a file's header that every task has which owns something; in a text its quotes are escaped."""


def as_learned(base: Base, learned: Delta | None) -> Delta:
    """The base's own task, with precision, class names and objective of the task that made the base, if any did."""
    if learned is None or learned is base.task:
        return base.task
    return replace(base.task, autocast=learned.autocast, class_names=learned.class_names, objective=learned.objective)


class BaseTask:
    """The base's own task in a store, which knows it by the file of the task that made the base, if it has one."""

    def __init__(self, store: Store, base: Base) -> None:
        self._store, self._base = store, base
        self._is_base: dict[str, bool] = {}
        """Which files hold such a task, by checksum."""
        self._loaded: dict[str | None, LoadedTask] = {}
        self._present: tuple[Generation, LoadedTask] | None = None
        self._lock = Lock()

    def of(self, generation: Generation) -> LoadedTask:
        """The task as a generation of the store has it."""
        with self._lock:
            if self._present is None or self._present[0] is not generation:
                self._present = generation, self._of(generation)
            return self._present[1]

    def _of(self, generation: Generation) -> LoadedTask:
        manifest = generation.manifest
        # A base that was given was made by no task.
        tasks = manifest.tasks if manifest.counts_head else {}
        made = next((name for name, entry in tasks.items() if self._owns_nothing(entry)), None)
        version = None if made is None else tasks[made].sha256
        if version not in self._loaded:
            learned = None
            if made is not None:
                learned = self._store.read_file(tasks[made], made, self._base, generation.layouts)
            task = LoadedTask(self._base, as_learned(self._base, learned), manifest.base.sha256)
            task.resident = True  # it is the base, which is always there
            self._loaded[version] = task
        return self._loaded[version]

    def _owns_nothing(self, entry: Entry) -> bool:
        """Whether a task's file has no index of what it owns."""
        if entry.bytes > LARGEST:
            return False
        if entry.sha256 not in self._is_base:
            content = self._store.content(entry, LARGEST)
            header = content[8 : 8 + int.from_bytes(content[:8], "little")]
            self._is_base[entry.sha256] = INDEX not in header
        return self._is_base[entry.sha256]
