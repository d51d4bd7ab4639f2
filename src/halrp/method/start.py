"""Where fine-tuning starts: what every start gives, and what parts of a weight cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from halrp.method.protocols import Allocator
from halrp.model.codec import Precision
from halrp.model.costs import weight_costs
from halrp.model.delta import Recovered
from halrp.model.factors import Factors


@dataclass(frozen=True, eq=False)
class Start:
    """Where fine-tuning starts."""

    factors: Mapping[str, Factors]
    dense: Mapping[str, Tensor]
    """Weights that are stored densely, at their free values."""
    recovered: Mapping[str, Recovered]
    scores: Mapping[str, Tensor]
    """For each weight, the predicted loss that each component recovers, (components,)."""


class Starts(NamedTuple):
    """What the first half of Algorithm 1 gives."""

    by_view: Mapping[str, Start]
    """Where fine-tuning starts, for each view of convolutions that is tried."""
    owned: Mapping[str, Tensor]
    """What the task owns in any case: head, biases, norms, changed buffers."""


class Prices(NamedTuple):
    """What parts of one weight cost in the unit of the method's allocation."""

    component: int
    scales: int
    weight: int


def prices(allocate: Allocator, precision: Precision, shape: tuple[int, ...], columns: int, element: int) -> Prices:
    """What parts of a weight of that shape cost, of which a component has that many columns."""
    costs = weight_costs(shape, columns, precision, element)
    return Prices(*(allocate.price(size) for size in costs))
