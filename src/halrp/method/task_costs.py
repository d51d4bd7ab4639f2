"""What a task costs before its first component, and the exact size of its file for any ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from torch import Tensor

from halrp.method.protocols import Allocator, FixedCost, TaskCosts
from halrp.model.codec import Precision
from halrp.model.costs import weight_costs
from halrp.model.description import Description
from halrp.model.file_size import planned_bytes
from halrp.model.layout import Layout, Slot


def task_costs(
    layout: Layout, owned: Mapping[str, Tensor], described: Callable[[Allocator], Description], precision: Precision
) -> TaskCosts:
    """The costs of a task that owns some tensors in any case.

    `described` gives the task's description for an allocation: a budget is part of its provenance.
    """
    return _costs(layout, {name: tuple(tensor.shape) for name, tensor in owned.items()}, described, precision)


def foreseen_costs(
    layout: Layout,
    buffers: Collection[str],
    classes: int,
    described: Callable[[Allocator], Description],
    precision: Precision,
) -> TaskCosts:
    """The costs of a task before it is trained, which will own these `buffers` and a head of that many classes."""
    owned = {s.name: s.shape_in(classes) for s in layout.slots if s.kind == "owned" or s.name in buffers}
    return _costs(layout, owned, described, precision)


def _costs(
    layout: Layout,
    owned: Mapping[str, tuple[int, ...]],
    described: Callable[[Allocator], Description],
    precision: Precision,
) -> TaskCosts:
    def file_bytes(ranks: Mapping[str, int], allocation: Allocator) -> int:
        return planned_bytes(described(allocation), layout, ranks, owned.keys())

    return TaskCosts([_fixed_cost(layout.by_name[n], shape, precision) for n, shape in owned.items()], file_bytes)


def _fixed_cost(slot: Slot, shape: tuple[int, ...], precision: Precision) -> FixedCost:
    """What an owned tensor costs; small weights are written in the task's precision."""
    entries = math.prod(shape)
    encoded = weight_costs(shape, 0, precision, slot.itemsize).dense.bytes if slot.encoded else entries * slot.itemsize
    return FixedCost(slot.name, entries, encoded)
