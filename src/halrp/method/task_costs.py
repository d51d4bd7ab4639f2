"""What a task costs before its first component, and the exact size of its file for any ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from halrp.method.protocols import Allocator, FixedCost, TaskCosts
from halrp.model.codec import Precision
from halrp.model.costs import weight_costs
from halrp.model.description import Description
from halrp.model.file_size import planned_bytes
from halrp.model.layout import Layout


def task_costs(
    layout: Layout, owned: Mapping[str, Tensor], described: Callable[[Allocator], Description], precision: Precision
) -> TaskCosts:
    """The costs of a task that owns some tensors in any case.

    `described` gives the task's description for an allocation: a budget is part of its provenance.
    """

    def file_bytes(ranks: Mapping[str, int], allocation: Allocator) -> int:
        return planned_bytes(described(allocation), layout, ranks, owned.keys())

    return TaskCosts(fixed_costs(layout, owned, precision), file_bytes)


def fixed_costs(layout: Layout, owned: Mapping[str, Tensor], precision: Precision) -> list[FixedCost]:
    """What owned tensors cost; small weights are written in the task's precision."""
    costs = []
    for name, tensor in owned.items():
        size = tensor.numel() * tensor.element_size()
        if layout.by_name[name].encoded:
            size = weight_costs(tensor.shape, 0, precision, tensor.element_size()).dense.bytes
        costs.append(FixedCost(name, tensor.numel(), size))
    return costs
