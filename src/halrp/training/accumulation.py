"""Several batches as one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from torch import Tensor

from halrp.model.batch import Batch


def share_of(weight: Tensor | int, whole: Tensor | int) -> Tensor | float:
    """The share of a batch in a step, where nothing counts if every target is to be ignored."""
    return weight / (whole.where(whole > 0, 1) if isinstance(whole, Tensor) else whole)


def together(batches: Iterable[tuple[Batch, Tensor]], count: int) -> Iterator[Sequence[tuple[Batch, Tensor]]]:
    """The batches of each step."""
    rest = iter(batches)
    while step := list(islice(rest, count)):
        yield step
