"""Networks for mixed batches over the tasks that are in use: `Rosters`.

A mixed network holds the deltas of its tasks stacked (`model.mixed`), so stacking all tasks of a large store would cost
more memory than the tasks themselves, and stacking those of every batch more time than the batch. Here one network is
over a roster of tasks, and serves every batch whose tasks are among them. A batch with other tasks gets a small
network, until as many tasks have been stacked in this way as a larger roster has; then the roster is made again, with
these tasks. So stacking costs at most twice what knowing the future would save.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import Lock

import torch
from torch import Tensor, nn

from halrp.model.base import Base
from halrp.model.mixed import MixedModule
from halrp.serve.loaded import LoadedTask


class Roster:
    """Some tasks, and the network for rows of them."""

    def __init__(
        self,
        base: Base,
        tasks: Sequence[LoadedTask],
        module_of: Callable[[LoadedTask], nn.Module],
        compared: set[Hashable],
    ) -> None:
        """Stack the deltas of the tasks."""
        self.positions = {task: number for number, task in enumerate(tasks)}
        by_delta = {id(task.delta): task for task in tasks}
        deltas = [task.delta for task in tasks]
        self.network = MixedModule(base, deltas, lambda delta: module_of(by_delta[id(delta)]), compared)

    def indices(self, rows: Sequence[LoadedTask], device: torch.device) -> Tensor:
        """The position of each row's task, (N,)."""
        return torch.tensor([self.positions[task] for task in rows], device=device)


class Rosters:
    """The roster at present; threads may ask at the same time."""

    def __init__(self, base: Base, module_of: Callable[[LoadedTask], nn.Module], limit: int) -> None:
        """Bound the bytes of what is stacked."""
        self.limit = limit
        self.compared: set[Hashable] = set()
        """Kinds of batches of which one pass has been compared with the tasks' own modules."""
        self.enlarged = 0
        """How often the roster was made again."""
        self._base, self._module_of = base, module_of
        self._present: Roster | None = None
        self._waiting: dict[LoadedTask, None] = {}
        self._stacked = 0
        """Tasks that small networks have stacked since the roster was made."""
        self._lock = Lock()

    def over(self, tasks: Sequence[LoadedTask]) -> Roster:
        """A roster with these tasks."""
        with self._lock:
            present = self._present
            if present is not None and all(task in present.positions for task in tasks):
                return present
            self._forget_dropped()
            self._waiting.update(dict.fromkeys(tasks))
            self._stacked += len(tasks)
            known = () if self._present is None else self._present.positions
            wanted = [task for task in {**dict.fromkeys(known), **self._waiting} if task.resident or task in tasks]
            enlarge = self._stacked >= len(wanted)
            if enlarge:
                self._waiting.clear()
                self._stacked = 0
        chosen = self._bounded(wanted, tasks) if enlarge else tasks
        roster = Roster(self._base, chosen, self._module_of, self.compared)
        if enlarge:
            with self._lock:
                self._present = roster
                self.enlarged += 1
        return roster

    def forget_dropped(self) -> None:
        """Give the roster up if many of its tasks are no longer in memory, so that it does not hold them there."""
        with self._lock:
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        self._waiting = {task: None for task in self._waiting if task.resident}
        if self._present is not None:
            gone = sum(not task.resident for task in self._present.positions)
            if 4 * gone > len(self._present.positions):
                self._present = None

    def _bounded(self, tasks: Iterable[LoadedTask], needed: Sequence[LoadedTask]) -> list[LoadedTask]:
        """Those that are needed, and of the others the most recently used, as far as their stacks fit the limit."""
        others = sorted(set(tasks) - set(needed), key=lambda task: -task.last_use)
        chosen, widths = list(needed), _widths(needed)
        for task in others:
            wider = {name: max(size, widths.get(name, 0)) for name, size in task.stacked_sizes.items()}
            merged = widths | wider
            if (len(chosen) + 1) * sum(merged.values()) > self.limit:
                break
            chosen.append(task)
            widths = merged
        return chosen


def _widths(tasks: Iterable[LoadedTask]) -> dict[str, int]:
    """The largest size of each tensor, to which a stack is padded."""
    widths: dict[str, int] = {}
    for task in tasks:
        for name, size in task.stacked_sizes.items():
            widths[name] = max(size, widths.get(name, 0))
    return widths
