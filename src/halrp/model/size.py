"""How large something is: `Size`, the one unit of budgets, bases and methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor


class Size(NamedTuple):
    """Entries and bytes of all tensors that must be stored."""

    parameters: int
    """Entries of parameters, buffers and heads."""
    bytes: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Size:
        """Measure tensors; one that is given twice counts twice."""
        measured = list(tensors)
        return cls(sum(t.numel() for t in measured), sum(t.numel() * t.element_size() for t in measured))
