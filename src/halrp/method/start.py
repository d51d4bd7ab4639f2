"""Where fine-tuning starts: what every start gives, and what parts of a weight cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from halrp.method.cross_fit import CrossFit
from halrp.method.front import Front
from halrp.method.protocols import Allocator, TaskCosts
from halrp.method.task_costs import Costs
from halrp.model.base import Base
from halrp.model.codec import Precision
from halrp.model.costs import weight_costs
from halrp.model.delta import Recovered
from halrp.model.factors import Factors
from halrp.model.plan import trained_buffers
from halrp.model.size import Size


@dataclass(frozen=True, eq=False)
class Start:
    """Where fine-tuning starts."""

    factors: Mapping[str, Factors]
    dense: Mapping[str, Tensor]
    """Weights that are stored densely, at their free values."""
    recovered: Mapping[str, Recovered]
    scores: Mapping[str, Tensor]
    """For each weight, the predicted loss that each component recovers, (components,)."""
    parts: Mapping[str, Precision] | None = None
    """What is stored besides components and dense weights, and in which precision: `r/NAME` and `s/NAME` of a weight,
    `plain/NAME` of a tensor. None: both scales of every factored weight, and all that the task owns."""
    small: Mapping[str, Tensor] = field(default_factory=dict)
    """The tensors that the task owns besides those that it owns in any case."""
    units: Mapping[str, float] = field(default_factory=dict)
    """By part, the step of its entries after which the loss has changed by about one, if all of them take it."""
    matrices: Mapping[str, Precision] = field(default_factory=dict)
    """The precision of components and of the dense copy, by weight, where it is not the method's."""
    is_solution: bool = False
    """Whether the network is of use as it is: then it is trained to nothing worse."""
    freezes_statistics: bool = False
    """Whether norms are trained over the running statistics of the base."""
    cross_fit: CrossFit | None = None
    """The heads by which fine-tuning sees the examples, if not by the task's own."""
    front: Front | None = None
    """What the modules before all that changes give for each example, if that is kept."""


class Starts(NamedTuple):
    """What the first half of Algorithm 1 gives."""

    by_view: Mapping[str, Start]
    """Where fine-tuning starts, for each view of convolutions that is tried."""
    owned: Mapping[str, Tensor]
    """What the task owns in any case: head, biases, norms, changed buffers."""


class Least(NamedTuple):
    """What a task costs before a part of it is chosen."""

    costs: TaskCosts
    scales: Mapping[str, Size]
    """Of each weight, what its factors cost without a component."""


def least_whole(base: Base, costs: Costs, classes: int, view: str) -> Least:
    """The least cost of a task that stores all that tasks own, and both scales of every adapted weight."""
    scales = {slot.name: costs.scales(slot) for slot in base.layout.adapted}
    return Least(costs.foreseen(trained_buffers(base.module), classes, view), scales)


class Prices(NamedTuple):
    """What parts of one weight cost in the unit of the method's allocation."""

    component: int
    scales: int
    weight: int


def prices(allocate: Allocator, precision: Precision, shape: tuple[int, ...], columns: int, element: int) -> Prices:
    """What parts of a weight of that shape cost, of which a component has that many columns."""
    costs = weight_costs(shape, columns, precision, element)
    return Prices(*(allocate.price(size) for size in costs))
