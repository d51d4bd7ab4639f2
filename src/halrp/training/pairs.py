"""Inputs and targets of some examples, in every form that users and loaders give them, checked."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from halrp.errors import DataError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.objectives import Objective

TARGETS = ("labels", "label")
"""Keys of a mapping under which targets are, as the collators of transformers name them."""


def pair(item: object, name: str) -> tuple[Batch, Tensor]:
    """Inputs and targets with as many rows: of a pair (x, y), or of a mapping with `labels`; `name` is for errors."""
    if isinstance(item, Mapping):
        keys = [key for key in TARGETS if key in item]
        if len(keys) != 1:
            raise DataError(
                f"{name}: a mapping of {', '.join(map(repr, item)) or 'nothing'} must have its targets under 'labels' "
                "(or 'label'); add them, or pass a pair (x, y)"
            )
        x: object = {key: value for key, value in item.items() if key != keys[0]}
        y = item[keys[0]]
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        x, y = item
    else:
        length = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
        raise DataError(
            f"{name}: expected a pair (x, y), got {type(item).__name__}{length}; several inputs are a tuple or a dict "
            "in it: ((a, b), y)"
        )
    inputs = tree.as_batch(x, name)
    if not isinstance(y, Tensor):
        raise DataError(
            f"{name}: the targets must be a tensor, got {type(y).__name__}; convert arrays with torch.as_tensor"
        )
    if y.is_meta or y.dim() == 0:
        fault = "a single number" if y.dim() == 0 else "on the meta device and has no values"
        raise DataError(f"{name}: y is {fault}; pass targets with examples in their first dimension")
    if tree.rows(inputs) != y.shape[0]:
        raise DataError(f"{name}: {tree.rows(inputs)} inputs but {y.shape[0]} targets; they must be paired")
    return inputs, y


def checked_pair(item: object, objective: Objective, name: str) -> tuple[Batch, Tensor]:
    """The same, with numbers that an objective can use; on a GPU they are not looked at, which would wait for it."""
    x, y = pair(item, name)
    if y.shape[0] == 0:
        return x, y
    if y.is_cuda:
        return x, objective.convert(y)
    tree.refuse_not_finite(x, name)
    return x, objective.check(y, name)
