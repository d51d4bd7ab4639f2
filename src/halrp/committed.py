"""What a learner has committed: its base and its tasks, in memory and in a store if there is one.

Every change goes to the store first and is then visible here, all at once, so a failed or interrupted one changes
nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from halrp.checks import check_task_name
from halrp.errors import DamagedError, DamagedTaskWarning, TaskError, UnknownTaskError, WrongBaseError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.serve.predictor import Predictor
from halrp.store import atomic, task_file
from halrp.store.changes import Changes
from halrp.store.manifest import Entry, Manifest
from halrp.store.store import Store
from halrp.training.distributed import Processes, agreed


class Committed:
    """A base, the tasks on it, and the store that holds both."""

    def __init__(self, initial: Base, given: bool, store: Store | None, skip_damaged: bool = False) -> None:
        """Start from a model: it is the base if it is `given`, or else what the first task's training starts from."""
        self.initial, self.store = initial, store
        self.base = initial if given else None
        self.tasks: Mapping[str, Delta] = {}
        self.damaged: Mapping[str, str] = {}
        """Tasks of the store that could not be read and were left out, and why."""
        self.entries: dict[str, Entry] = {}
        """The files of tasks, in the store that they were read from or written to."""
        self.digests: dict[str, str] = {}
        """Checksums of tasks that were committed here without a store, of the files that they would have."""
        self._old: dict[str, tuple[Delta, ...]] = {}
        """Old versions, the newest first, if there is no store that holds them."""
        self._predictor: Predictor | None = None
        self._skip_damaged = skip_damaged
        if store is not None and store.exists():
            self.restore(store, skip_damaged)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Tell the tasks their base again, which is not sent with each of them."""
        vars(self).update(state)
        tensors = self.body.tensors
        self.tasks = {name: delta.on(tensors) for name, delta in self.tasks.items()}
        self._old = {name: tuple(delta.on(tensors) for delta in old) for name, old in self._old.items()}
        self._predictor = None

    @property
    def body(self) -> Base:
        """The base, or what will become it."""
        return self.initial if self.base is None else self.base

    @property
    def ready(self) -> Base:
        """The base, or an error if there is none yet."""
        if self.base is None:
            raise UnknownTaskError("there is no base yet: learn a first task, or use Learner(..., base='given')")
        return self.base

    @property
    def predictor(self) -> Predictor:
        """What predicts for the committed tasks."""
        if self._predictor is None:
            self._predictor = Predictor(self.ready, self.tasks)
        return self._predictor

    def detached(self) -> Committed:
        """The same base and tasks, without a store; what is committed there is not seen here."""
        copy = Committed(self.initial, False, None)
        copy.base, copy.tasks, copy._old = self.base, self.tasks, dict(self._old)
        copy.entries, copy.digests = dict(self.entries), dict(self.digests)
        return copy

    def check_name(self, name: object, replaces: bool = False) -> None:
        """Refuse a name that no task can have or that is taken; one that is replaced must be there."""
        check_task_name(name)
        there = name in self.tasks or name in self.damaged
        if replaces and not there:
            known = ", ".join(map(repr, self.tasks)) or "none yet"
            raise UnknownTaskError(f"no task named {name!r} has been learned, to be replaced; learned: {known}")
        if not replaces and there:
            raise TaskError(
                f"task {name!r} is already learned and never changes; choose another name, or replace=True for a new "
                "version of it"
            )

    def check_store(self) -> None:
        """Raise `StoreChangedError` if the store is not a later generation of what was seen."""
        if self.store is not None:
            self.store.check_known()

    def commit(
        self,
        base: Base,
        tasks: Mapping[str, Delta],
        newest: str,
        replaces: bool = False,
        processes: Processes | None = None,
    ) -> None:
        """Make tasks immutable: a new one, or a new version of it, and those that the method's compression changed.

        Of several `processes`, which have the same tasks, the first writes to the store, and then the others follow.
        """
        for writes in (True,) if processes is None else (True, False):
            with agreed(processes, newest):
                if processes is None or processes.writes is writes:
                    self._commit(base, tasks, newest, replaces, writes)

    def _commit(self, base: Base, tasks: Mapping[str, Delta], newest: str, replaces: bool, writes: bool) -> None:
        tensors = base.tensors
        tasks = {n: delta if self.tasks.get(n) is delta else delta.on(tensors) for n, delta in tasks.items()}
        changed = {name: delta for name, delta in tasks.items() if self.tasks.get(name) is not delta}
        replaced = {newest: self.tasks.get(newest)} if replaces else {}
        if self.store is not None:
            pruned = {name: self.tasks[name] for name in changed if name != newest and name in self.tasks}
            if writes:
                manifest = self.store.commit(base, list(changed.values()), pruned=pruned, replaced=replaced)
            else:
                manifest = self.store.known = self.store.manifest()
            self.entries |= {name: manifest.tasks[name] for name in changed}
        else:
            self.digests |= {name: digest_of(delta) for name, delta in changed.items()}
            if replaces:
                self._old[newest] = (self.tasks[newest], *self._old.get(newest, ()))
        self.damaged = {name: reason for name, reason in self.damaged.items() if name != newest}
        self._show(base, tasks)

    def _show(self, base: Base, tasks: Mapping[str, Delta]) -> None:
        earlier = self._predictor if base is self.base else None
        self.base, self.tasks, self._predictor = base, dict(tasks), Predictor(base, tasks, earlier)
        self.initial = base  # the weights that the first task started from have no further use

    # ---- the store as a whole ---------------------------------------------------------------------------------------

    def restore(self, store: Store, skip_damaged: bool = False) -> None:
        """Take over a store's base and tasks; nothing changes if it cannot be read."""
        base = store.read_base(self.initial)
        if self.base is not None:
            # Heads are left out, whatever the store's fingerprint is of: its base answers with its own.
            theirs, ours = base.fingerprint_without_head, self.base.fingerprint_without_head
            if theirs != ours:
                raise WrongBaseError(
                    f"the store {store.folder} was made on a base with fingerprint {theirs[:12]}…, the given model has "
                    f"{ours[:12]}… (without heads){_difference(self.base, base)}; pass the model it was made with or "
                    "another folder, or use Learner.load, which takes the store's weights"
                )
        self._take_over(store, base, skip_damaged)

    def _take_over(self, store: Store, base: Base, skip_damaged: bool) -> None:
        at_hand = {name: (entry, self.tasks[name]) for name, entry in self.entries.items() if name in self.tasks}
        stored = store.read_tasks(base, skip_damaged, at_hand)
        self.damaged = {name: str(error) for name, error in stored.damaged.items()}
        if self.damaged:
            warnings.warn(
                f"{store.folder}: {len(self.damaged)} of {len(stored.manifest.tasks)} tasks cannot be read and are "
                f"left out: {', '.join(map(repr, self.damaged))}; halrp repair shows what can be done",
                DamagedTaskWarning,
                stacklevel=2,
            )
        self.entries = {name: stored.manifest.tasks[name] for name in stored.tasks}
        self._show(base, stored.tasks)

    def refresh(self) -> Changes:
        """Take over what other processes did to the store."""
        if self.store is None or (self.store.known is None and not self.store.exists()):
            return Changes()
        before = dict(self.tasks)
        if self.base is None:
            self.restore(self.store, self._skip_damaged)
        else:
            self._take_over(self.store, self.base, self._skip_damaged)
        return Changes.between(before, self.tasks)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the base and every task to a store; what is there and equal is left as it is."""
        here = self.store is not None and os.path.realpath(self.store.folder) == os.path.realpath(folder)
        attached = self.store if here else None
        target = Store(folder, signing_key=None if attached is None else attached.signing_key)
        manifest = target.commit(self.ready, list(self.tasks.values()))
        if attached is not None:
            # Whoever saves where the learner commits says that this is its store from then on.
            attached.known = manifest
            self.entries = {name: manifest.tasks[name] for name in self.tasks}

    # ---- single tasks -----------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Take a task away; the base stays, even if the task made it."""
        self._refuse_unknown(name)
        if self.store is not None:
            self.store.remove(name, self.entries.get(name))
        self._forget(name)
        self.damaged = {other: reason for other, reason in self.damaged.items() if other != name}
        self._show(self.ready, {other: delta for other, delta in self.tasks.items() if other != name})

    def rename(self, old: str, new: str) -> None:
        """Give a task another name; its outputs stay the same."""
        self._refuse_unknown(old)
        if old in self.damaged:
            raise DamagedError(f"task {old!r} cannot be renamed: {self.damaged[old]}")
        check_task_name(new)
        if new in self.tasks or new in self.damaged:
            raise TaskError(f"task {new!r} is already learned; choose another name for {old!r}")
        entry, versions, digest = None, self._old.get(old, ()), self.digests.get(old)
        if self.store is not None:
            entry = self.store.rename(old, new, self.entries.get(old), self.base).tasks[new]
        delta = replace(self.tasks[old], task=new)
        self._forget(old)
        if entry is not None:
            self.entries[new] = entry
        if digest is not None:
            self.digests[new] = digest_of(delta)
        if versions:
            self._old[new] = tuple(replace(version, task=new) for version in versions)
        self._show(self.ready, {new if n == old else n: delta if n == old else d for n, d in self.tasks.items()})

    def versions(self, name: str) -> tuple[Delta, ...]:
        """The old versions of a task, the newest first."""
        self._refuse_unknown(name)
        return self._old.get(name, ()) if self.store is None else self.store.read_versions(name, self.ready)

    def version(self, name: str) -> int:
        """The number of versions that a task has had before the next one."""
        if self.store is not None and self.store.known is not None:
            return 1 + len(self.store.known.versions.get(name, ()))
        return 1 + len(self._old.get(name, ()))

    def drop_versions(self, name: str) -> None:
        """Take the old versions of a task away."""
        self._refuse_unknown(name)
        if self.store is not None:
            self.store.drop_versions(name)
        self._old.pop(name, None)

    def revert(self, name: str) -> Delta:
        """Bring the newest old version back; the present one becomes an old version."""
        versions = self.versions(name)
        if self.store is not None:
            manifest: Manifest = self.store.revert(name, self.entries.get(name))
            self.entries[name] = manifest.tasks[name]
        elif not versions:
            raise TaskError(f"there is no other version of {name!r}; learn(..., replace=True) makes one")
        else:
            self._old[name] = (self.tasks[name], *versions[1:])
        self.digests.pop(name, None)  # nothing here remembers that of an old version
        self.damaged = {other: reason for other, reason in self.damaged.items() if other != name}
        self._show(self.ready, {**self.tasks, name: versions[0]})
        return versions[0]

    def _refuse_unknown(self, name: str) -> None:
        if name not in self.damaged:
            self.predictor.delta(name)

    def _forget(self, name: str) -> None:
        self.entries.pop(name, None)
        self.digests.pop(name, None)
        self._old.pop(name, None)


def digest_of(delta: Delta) -> str:
    """The checksum of the file that a task has, or would have."""
    return atomic.checksum(task_file.write(delta))


def _difference(ours: Base, theirs: Base) -> str:
    """Which weights of two bases of one architecture differ, in words for an error."""
    others = theirs.tensors
    names = [n for n, t in ours.tensors.items() if ours.plan.role(n) != "head" and not torch.equal(t, others[n])]
    return f", which differs in {', '.join(names[:3])}{', …' * (len(names) > 3)}" if names else ""
