"""The prototypes of a store's tasks, read once for each version of a task, in bounded memory: `KnownInputs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from halrp.errors import StoreError
from halrp.model import prototypes
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.prototypes import TaskPrototypes
from halrp.serve.follow import Generation
from halrp.serve.identify import chosen_names
from halrp.store.manifest import Entry


class KnownInputs:
    """Prototypes by version of a task. Threads may ask at the same time; what two read at once is read twice."""

    def __init__(self, limit: int) -> None:
        """Bound the bytes that are kept; beyond them, files are read again in every call."""
        self._limit, self._bytes = limit, 0
        self._models: dict[str, TaskPrototypes | None] = {}
        self._generation: Generation | None = None
        self._lock = Lock()

    def of(
        self, generation: Generation, tasks: Sequence[str] | None, read: Callable[[str, Entry], Delta]
    ) -> tuple[dict[str, TaskPrototypes], tuple[str, ...]]:
        """The prototypes of a generation's tasks, or of those that are named, and the names of tasks without any."""
        entries = generation.manifest.tasks
        self._keep_only(generation)
        models, left_out = dict[str, TaskPrototypes](), list[str]()
        for name in chosen_names(tasks, list(entries)):
            version = entries[name].sha256
            try:
                model = self._models[version] if version in self._models else self._read(name, entries[name], read)
            except StoreError:  # a damaged file is an error of calls for its task, not of all others
                model = None
            if model is None:
                left_out.append(name)
            else:
                models[name] = model
        return models, tuple(left_out)

    def _read(self, name: str, entry: Entry, read: Callable[[str, Entry], Delta]) -> TaskPrototypes | None:
        model = prototypes.read(held(read(name, entry).statistics))
        size = 0 if model is None else model.bytes
        with self._lock:
            if entry.sha256 not in self._models and self._bytes + size <= self._limit:
                self._models[entry.sha256] = model
                self._bytes += size
        return model

    def _keep_only(self, generation: Generation) -> None:
        """Forget versions that the store no longer names."""
        with self._lock:
            if self._generation is generation:
                return
            self._generation = generation
            present = {entry.sha256 for entry in generation.manifest.tasks.values()}
            self._models = {version: model for version, model in self._models.items() if version in present}
            self._bytes = sum(model.bytes for model in self._models.values() if model is not None)
