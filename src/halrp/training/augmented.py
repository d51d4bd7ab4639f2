"""Whether what an augmentation gives can stand for its input."""

from __future__ import annotations

from torch import Tensor

from halrp.errors import DataError
from halrp.model import batch as tree
from halrp.model.batch import Batch


def refuse_unlike(augmented: object, x: Batch, task: str) -> None:
    """Raise unless a batch has the structure, shapes, types and device of another."""
    if isinstance(x, Tensor) and not isinstance(augmented, Tensor):
        raise DataError(f"{task}: augment gives {type(augmented).__name__}; it must return a tensor like its input")
    if not isinstance(augmented, (Tensor, tuple, dict)) or tree.structure(augmented) != tree.structure(x):
        raise DataError(
            f"{task}: augment gives a {type(augmented).__name__} with other tensors than its input; it must return "
            "the same tuple or dict"
        )
    for (_, before), (path, after) in zip(tree.named_leaves(x), tree.named_leaves(augmented), strict=True):
        for attribute in ("shape", "dtype", "device"):
            old, new = getattr(before, attribute), getattr(after, attribute)
            if old != new:
                where = f" ({path})" if path else ""
                raise DataError(
                    f"{task}: augment changes the {attribute} of a batch{where} from {old} to {new}; "
                    "it must keep shape, dtype and device"
                )
