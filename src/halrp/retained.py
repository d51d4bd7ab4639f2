"""Whether tasks are what was committed: what was compared, and what came of it.

Nothing is inferred. A file in a store has a checksum from its commit, a learner remembers one of each task that it
commits, a task's file may hold outputs that can be computed again, and a base has the fingerprint that tasks name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from halrp.committed import Committed, digest_of
from halrp.errors import SettingError, StoreError
from halrp.method.prune import Keep
from halrp.model import proof
from halrp.model.delta import Delta
from halrp.model.layout import Layout
from halrp.provenance import recalled_method

State: TypeAlias = Literal["bitwise", "to rounding", "may have changed", "not checked", "damaged"]
Outputs: TypeAlias = Literal["same bits", "to rounding"]


@dataclass(frozen=True)
class Retained:
    """What of a task was compared with its commit; None stands for what could not be compared."""

    file: bool | None = None
    """Whether its file in the store has the checksum of its commit."""
    memory: bool | None = None
    """Whether the numbers that the learner predicts from are those that it committed, or those of the file."""
    base: bool | None = None
    """Whether the base has the fingerprint that the task was learned on."""
    outputs: Outputs | None = None
    """How the outputs for the inputs of its proof agree with those that its file holds; None without a proof."""
    pruned: bool = False
    """Whether the method that learned it changes committed tasks, so that a later commit may have changed it."""
    problem: str = ""
    """Why it is not what was committed."""

    @property
    def state(self) -> State:
        """What follows from all of it."""
        if self.problem:
            return "damaged"
        if self.pruned:
            return "may have changed"
        if self.base and (self.file or self.memory or self.outputs == "same bits"):
            return "bitwise"
        return "to rounding" if self.outputs else "not checked"

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        compared = {"file": self.file, "memory": self.memory, "base": self.base, "outputs": self.outputs}
        return {"state": self.state, **compared, "pruned": self.pruned, "problem": self.problem or None}


def of_file(delta: Delta, base_is_good: bool) -> Retained:
    """What is known of a task whose file was just read, and agreed with its checksum."""
    return Retained(file=True, base=base_is_good, pruned=is_pruned(delta))


def of_learner(committed: Committed) -> dict[str, Retained]:
    """What is known of every task in memory: its file if there is a store, its numbers, its base, and its outputs."""
    store, base = committed.store, committed.ready
    if not base.is_unchanged:
        changed = Retained(base=False, problem="the base's weights in memory are not those that it was learned on")
        return dict.fromkeys(committed.tasks, changed)
    layouts = {} if store is None or not store.exists() else store.layouts(store.manifest())
    return {name: _of_task(name, committed, layouts) for name in committed.tasks}


def _of_task(name: str, committed: Committed, layouts: Mapping[str, Layout]) -> Retained:
    delta, base, entry = committed.tasks[name], committed.ready, committed.entries.get(name)
    file = memory = None
    if committed.store is not None and entry is not None:
        try:
            stored = committed.store.read_file(entry, name, base, layouts)
        except StoreError as error:
            return Retained(file=False, base=True, problem=" ".join(str(error).split()))
        file, memory = True, digest_of(stored) == digest_of(delta)
    elif name in committed.digests:
        memory = digest_of(delta) == committed.digests[name]
    elif entry is not None:  # a file of an old format is written in another way today, so that nothing follows then
        memory = digest_of(delta) == entry.sha256 or None
    if memory is False:
        return Retained(file, False, True, problem="its numbers in memory are not those that were committed")
    compared = proof.comparison(delta, base)
    if compared is not None and compared.problem:
        return Retained(file, memory, True, problem=compared.problem)
    outputs: Outputs | None = None if compared is None else "same bits" if compared.same_bits else "to rounding"
    return Retained(file, memory, True, outputs, is_pruned(delta))


def is_pruned(delta: Delta) -> bool:
    """Whether the method that a task was learned with changes committed tasks, or compresses by code of a user's."""
    method = delta.provenance.get("method")
    compress = method.get("compress") if isinstance(method, Mapping) else None
    if delta.is_base or not isinstance(compress, Mapping) or compress.get("type") == Keep.__name__:
        return False
    try:
        return recalled_method(delta.provenance).compress.changes_committed
    except SettingError:
        return True
