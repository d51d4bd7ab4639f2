"""What the parts of an adapted weight cost: a component, the scales, or the whole weight as a dense copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from halrp.model import codec
from halrp.model.codec import Precision
from halrp.model.size import Size


class WeightCosts(NamedTuple):
    """Sizes of what a task may store of one weight (J, I, *kernel)."""

    component: Size
    """A column of p (J,) and a row of q."""
    scales: Size
    """r (J,) and s (I,)."""
    dense: Size
    """The whole weight, row by row."""


def weight_costs(shape: Sequence[int], columns: int, precision: Precision, element_size: int) -> WeightCosts:
    """The costs of a weight whose rows of q have this many columns, and whose entries have `element_size` bytes."""
    rows, width = shape[0], math.prod(shape[1:])
    scales = shape[0] + shape[1]

    def row(entries: int) -> int:
        return codec.row_bytes(entries, precision, element_size)

    return WeightCosts(
        Size(rows + columns, row(rows) + row(columns)),
        Size(scales, scales * element_size),
        Size(rows * width, rows * row(width)),
    )
