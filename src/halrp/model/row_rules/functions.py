"""Functions of torch that are known as a whole.

What they consist of computes shapes from numbers, where a symbol for the number of rows is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from halrp.model.row_rules import lookups
from halrp.model.row_rules.call import Rule
from halrp.model.row_rules.entries import first


class Function(NamedTuple):
    """The names of a function's arguments in order, and its rule."""

    names: tuple[str, ...]
    rule: Rule

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        return dict(zip(self.names, args, strict=False)) | dict(kwargs)


_take = Function(("self", "index", "dim"), lookups.taken)
FUNCTIONS: Mapping[Callable[..., Any], Function] = {
    F.interpolate: Function(("input", "size", "scale_factor", "mode", "align_corners"), first("input")),
    torch.take_along_dim: _take,
    Tensor.take_along_dim: _take,
}
