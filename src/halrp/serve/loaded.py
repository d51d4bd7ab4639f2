"""A task in memory: its delta, and the module that computes it. `LoadedTask`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from threading import Lock

from torch import Tensor, nn

from halrp.model.base import Base
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.serve.resident import module_bytes


class LoadedTask:
    """One version of a task. It never changes; threads may use it at the same time.

    Its module has merged weights (`Base.serving_view`). It is built when it is first needed, may be dropped, and is
    then built again with the same bits.
    """

    def __init__(self, base: Base, delta: Delta, version: str) -> None:
        """Take a delta that fits the base; `version` is the checksum of its file."""
        self.delta, self.version = delta, version
        self.resident = False
        """Whether it counts as one that is in memory; a request under way may still use another."""
        self.last_use = 0
        self._base = base
        self._module: nn.Module | None = None
        self._lock = Lock()
        self.delta_bytes = _bytes(delta)
        """Of the delta as it is stored; what is computed from it is decoded when it is needed."""
        self.module_bytes = module_bytes(base, delta)
        """Of merged weights and what else is decoded for the module, once it is built."""

    def __repr__(self) -> str:
        """Its name and version."""
        return f"LoadedTask({self.delta.task!r}, {self.version[:12]})"

    @property
    def bytes(self) -> int:
        """What the task takes in memory beside the base."""
        return self.delta_bytes + (0 if self._module is None else self.module_bytes)

    @cached_property
    def stacked_sizes(self) -> Mapping[str, int]:
        """The bytes of what a network for mixed batches stacks of the task, by tensor.

        Dense weights of layers are not stacked, but for heads.
        """
        factors, owned, head = self.delta.held_factors, self.delta.held_owned, self.delta.layout.head
        sizes = {name: sum(tensor.nbytes for tensor in part.tensors()) for name, part in factors.items()}
        return sizes | {name: t.nbytes for name, t in owned.items() if t.dim() < 2 or name in head}

    def module(self) -> nn.Module:
        """The task's module, in evaluation mode. It shares the base's tensors: never write to it."""
        with self._lock:
            if self._module is None:
                self._module = self._base.serving_view(self.delta)
            return self._module

    def drop_module(self) -> None:
        """Give the memory of merged weights back; calls under way keep them until they end."""
        with self._lock:
            self._module = None


def _bytes(delta: Delta) -> int:
    """The bytes of every tensor that a delta holds, each piece of memory once."""
    memory = {}
    for tensor in _tensors(delta):
        storage = tensor.untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
    return sum(memory.values())


def _tensors(delta: Delta) -> Iterator[Tensor]:
    for pair in held(delta.scales).values():
        yield from pair
    for coded in held(delta.coded).values():
        yield from coded.parts.values()
    yield from held(delta.plain).values()
    yield from held(delta.statistics).values()
