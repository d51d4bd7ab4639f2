"""One operation as a rule sees it: arguments by name, its result, and where tensors have their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halrp.model.rows import NotRowWise


class RowDim(NamedTuple):
    """The dimension of a tensor that holds the rows, each `inner` times in succession."""

    dim: int
    inner: int = 1
    numbers: bool = False
    """Whether entries are the numbers of the rows, 0, 1, …: they depend on a row's position in the batch, so they may
    only say which row is meant."""


FIRST = RowDim(0)
"""Rows in the first dimension, as in a batch."""


class Call(NamedTuple):
    """One operation: its arguments by name, its result, and what is known of rows."""

    arguments: Mapping[str, Any]
    result: Tensor
    """The first tensor of the result."""
    row_dim: Callable[[object], RowDim | None]
    """The rows of a tensor; None if it has none."""
    multiple: Callable[[object], int | None]
    """The factor of a size that is a multiple of the number of rows, or None."""
    before: tuple[Sequence[Any], Sequence[Any]] = ((), ())
    """Sizes and strides of `self` before an operation that changes them in place."""

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order."""
        values = self.arguments.values()
        given = (each for value in values for each in (value if isinstance(value, (list, tuple)) else (value,)))
        return [each for each in given if isinstance(each, Tensor)]

    def rank(self, name: str = "self") -> int:
        """How many dimensions an argument has."""
        tensor: Tensor = self.arguments[name]
        return tensor.dim()

    def rows(self, name: str) -> RowDim | None:
        """The rows of an argument; None if it has none or is not given."""
        return self.row_dim(self.arguments.get(name))

    def rows_of(self, name: str) -> RowDim:
        """The rows of an argument, which must be the only one that has any."""
        tensor = self.arguments[name]
        if any(self.row_dim(other) is not None for other in self.tensors() if other is not tensor):
            raise NotRowWise("has rows in an argument that must not depend on them")
        rows = self.row_dim(tensor)
        if rows is None:
            raise NotRowWise(f"has no rows in {name!r}")
        return rows

    def dims(self, name: str, rank: int) -> list[int]:
        """A dimension or a list of them, counted from the front; None or an empty list means all."""
        value = self.arguments.get(name)
        chosen = [value] if isinstance(value, int) else list(value or range(rank))
        return [dim % rank for dim in chosen] if rank else []


Rule = Callable[[Call], "RowDim | None"]
"""Where the result of an operation has its rows, or `NotRowWise`."""


def require(holds: bool, problem: str) -> None:
    """Raise `NotRowWise` unless a condition holds."""
    if not holds:
        raise NotRowWise(problem)


def same_number(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, as numbers or as expressions, without asking how many rows there are."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return str(a) == str(b)
    return bool(a == b)


def is_bool(tensor: Tensor) -> bool:
    """Whether a tensor is a mask when it is used as an index."""
    return tensor.dtype in (torch.bool, torch.uint8)
