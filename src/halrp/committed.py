"""What a learner has committed: its base and its tasks, in memory and in a store if there is one.

A commit goes to the store first and is then visible here, all at once, so a failed or interrupted commit changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from halrp.errors import UnknownTaskError, WrongBaseError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.serve.predictor import Predictor
from halrp.store.store import Store


class Committed:
    """A base, the tasks on it, and the store that holds both."""

    def __init__(self, initial: Base, given: bool, store: Store | None) -> None:
        """Start from a model: it is the base if it is `given`, or else what the first task's training starts from."""
        self.initial, self.store = initial, store
        self.base = initial if given else None
        self.tasks: Mapping[str, Delta] = {}
        self._predictor: Predictor | None = None
        if store is not None and store.exists():
            self.restore(store)

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

    def check_store(self) -> None:
        """Raise `StoreChangedError` if the store is not a later generation of what was seen."""
        if self.store is not None:
            self.store.check_known()

    def commit(self, base: Base, tasks: Mapping[str, Delta]) -> None:
        """Make tasks immutable: in the store first, if there is one, then here, all at once.

        A task that is already here and differs is one that the method's compression changed.
        """
        changed = [delta for name, delta in tasks.items() if self.tasks.get(name) is not delta]
        if self.store is not None:
            pruned = {delta.task: self.tasks[delta.task] for delta in changed if delta.task in self.tasks}
            self.store.commit(base, changed, pruned=pruned)
        self.base, self.tasks, self._predictor = base, dict(tasks), Predictor(base, tasks, self._predictor)
        self.initial = base  # the weights that the first task started from have no further use

    def restore(self, store: Store) -> None:
        """Take over a store's base and tasks; nothing changes if it cannot be read."""
        base = store.read_base(self.initial)
        if self.base is not None and base.fingerprint != self.base.fingerprint:
            raise WrongBaseError(
                f"the store {store.folder} was made on a base with fingerprint {base.fingerprint[:12]}…, the given "
                f"model has {self.base.fingerprint[:12]}…; pass the model it was made with, or another folder"
            )
        self.base, self.tasks, self._predictor = base, store.read_all(base), None
        self.initial = base
