"""The modules that predictions of one base are computed with, in bounded memory: `ResidentModules`.

A module has merged weights, so that predicting for a task costs what the merged network costs. It is built when it is
first needed, and the least recently used ones are dropped. Building it again gives the same bits, and which form a task
has is decided by the task alone, so outputs never depend on what was computed before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import NamedTuple

from torch import nn

from halrp.model import task_parts
from halrp.model.base import Base
from halrp.model.delta import Delta

LEAST_BYTES = 2**28
"""What merged weights may take in any case."""
TIMES_BASE = 4
"""And how many times the base's bytes, if that is more."""


class _Resident(NamedTuple):
    delta: Delta  # referred to here so that its id is not used twice
    module: nn.Module
    bytes: int


class ResidentModules:
    """Modules by task, at most `limit` bytes of merged weights. Threads may ask at the same time."""

    def __init__(self, base: Base, limit: int | None = None) -> None:
        """Take a base; the limit in bytes defaults to a multiple of its size."""
        self._base = base
        self.limit = max(LEAST_BYTES, TIMES_BASE * base.size.bytes) if limit is None else limit
        self._residents: OrderedDict[int, _Resident] = OrderedDict()
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """What the merged weights take at present."""
        with self._lock:
            return sum(resident.bytes for resident in self._residents.values())

    def module(self, delta: Delta) -> nn.Module:
        """The module of a task, in evaluation mode. It shares the base's tensors: never write to it."""
        with self._lock:
            resident = self._residents.get(id(delta))
            if resident is not None:
                self._residents.move_to_end(id(delta))
                return resident.module
        built = self._build(delta)  # without the lock: other tasks need not wait
        with self._lock:
            resident = self._residents.setdefault(id(delta), built)
            self._residents.move_to_end(id(delta))
            total = sum(each.bytes for each in self._residents.values())
            for key, each in list(self._residents.items()):
                if total > self.limit and each.bytes and key != id(delta):
                    total -= each.bytes
                    del self._residents[key]
        return resident.module

    def forget_all_but(self, deltas: Collection[Delta]) -> None:
        """Drop the modules of other tasks."""
        alive = {id(delta) for delta in deltas}
        with self._lock:
            for key in self._residents.keys() - alive:
                del self._residents[key]

    def _build(self, delta: Delta) -> _Resident:
        return _Resident(delta, self._base.serving_view(delta), module_bytes(self._base, delta))


def module_bytes(base: Base, delta: Delta) -> int:
    """What a task's module takes beside base and delta: merged weights, and all else that the delta holds in codes."""
    if delta.is_base:
        return 0
    slots, merged = delta.layout.by_name, base.merged_weights(delta)
    size = sum(math.prod(slots[name].shape) * slots[name].itemsize for name in merged)
    codes = {name for key in delta.coded if (name := task_parts.name_of(key)) not in merged}
    for name in codes - delta.ranks.keys():
        size += math.prod(slots[name].shape_in(delta.classes)) * slots[name].itemsize
    for name in codes & delta.ranks.keys():
        rows, columns = slots[name].shape[0], slots[name].columns(delta.view)
        size += delta.ranks[name] * (rows + columns) * slots[name].itemsize
    return size
