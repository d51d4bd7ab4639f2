"""Managing what a learner has learned: remove, rename, versions of a task, and what other processes did."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor

from halrp import seeding
from halrp.committed import Committed
from halrp.model.delta import Delta
from halrp.report import Report, of_learner
from halrp.store.changes import Changes
from halrp.training.bar import Show


class Managed:
    """The tasks of a learner, and changes of them. Each change is one commit of the store, if there is one.

    Predictions of all other tasks are bit-identical before and after.

    A copy of a learner (`copy.copy`, `copy.deepcopy`) has the same tasks on the same base, in the same memory, and
    belongs to no store: what it learns, removes or renames stays in it. One that was pickled for another process
    belongs to no store either. Progress callbacks stay with the original.
    """

    _committed: Committed
    _scores: dict[str, Mapping[str, Tensor]]
    progress: Show

    def __getstate__(self) -> dict[str, Any]:
        """All of a learner but its store and its progress callback."""
        with seeding.exclusive():
            state = vars(self) | {"_committed": self._committed.detached(), "_scores": dict(self._scores)}
        return state | {"progress": None if callable(self.progress) else self.progress}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy: what it shares with the original never changes."""
        return copy.copy(self)

    @property
    def tasks(self) -> Mapping[str, Delta]:
        """What each learned task owns, in the order of learning. Read-only."""
        return MappingProxyType(self._committed.tasks)

    @property
    def damaged(self) -> Mapping[str, str]:
        """Tasks of the store that could not be read and were left out, and why; see `skip_damaged`."""
        return MappingProxyType(dict(self._committed.damaged))

    @property
    def scores(self) -> Mapping[str, Mapping[str, Tensor]]:
        """By task and adapted weight, the predicted loss that each component recovers, (components,).

        Only of deltas that this learner object has learned: a task's file has the chosen components, not all of them.
        """
        return MappingProxyType(self._scores)

    def remove(self, name: str) -> None:
        """Remove a task and its old versions; in a store their files go to the trash, where `repair` finds them.

        Removing the task that made the base leaves the base as it is, and with it all other tasks.
        """
        with seeding.exclusive():
            self._committed.remove(name)
            self._scores.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        """Give a task another name, in its position; its predictions stay bit-identical."""
        with seeding.exclusive():
            self._committed.rename(old, new)
            if old in self._scores:
                self._scores[new] = self._scores.pop(old)

    def versions(self, name: str) -> tuple[Delta, ...]:
        """The versions of a task that `learn(..., replace=True)` replaced, the newest first."""
        return self._committed.versions(name)

    def revert(self, name: str) -> Delta:
        """Bring the last replaced version of a task back; the present one becomes an old version in its stead."""
        with seeding.exclusive():
            self._scores.pop(name, None)
            return self._committed.revert(name)

    def drop_versions(self, name: str) -> None:
        """Remove the old versions of a task; in a store their files go to the trash."""
        with seeding.exclusive():
            self._committed.drop_versions(name)

    def report(self) -> Report:
        """What there is, as a table of tasks: bytes, ranks, scores, and whether tasks are what was committed.

        That is compared, not assumed: files in the store with the checksums of their commits, numbers in memory with
        the files, the base with its fingerprint, and, where a task's file has a proof, outputs that are computed again.
        """
        with seeding.exclusive():
            return of_learner(self._committed)

    def refresh(self) -> Changes:
        """Read what other processes have done to the store since, and return the names of tasks that changed.

        A store that vanished, was rolled back or is another one raises `StoreChangedError`.
        """
        with seeding.exclusive():
            changes = self._committed.refresh()
            for name in (*changes.removed, *changes.replaced):
                self._scores.pop(name, None)
            return changes
