"""Rows of different tasks, computed for one task after another: always right, and often the fastest way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from halrp.errors import DataError
from halrp.model import batch as tree
from halrp.model.batch import Batch


def task_by_task(
    x: Batch,
    tasks: Tensor,
    sizes: Callable[[int], list[int] | int],
    one_task: Callable[[Batch, int], Tensor],
) -> Tensor:
    """Outputs of N rows of x, where tasks (N,) holds the index of each row's task, in the order of the rows.

    `sizes` says how to split a number of rows of one task into batches, `one_task` computes a batch of rows of a task.
    """
    groups = [(tasks == task).nonzero().flatten() for task in tasks.unique()]
    pieces = [part for group in groups for part in group.split(sizes(len(group)))]
    device = tree.device_of(x)
    outputs = concatenate([one_task(tree.take(x, piece.to(device)), int(tasks[piece[0]])) for piece in pieces])
    return outputs[torch.cat(pieces).argsort().to(device)]


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate outputs of batches, padded with −inf to the widest in the one dimension in which they differ."""
    shapes = dict.fromkeys(tuple(part.shape[1:]) for part in parts)
    same_dims = len({len(shape) for shape in shapes}) == 1
    differing = [d for d, sizes in enumerate(zip(*shapes, strict=True), 1) if len(set(sizes)) > 1] if same_dims else []
    if not same_dims or len(differing) > 1:
        raise DataError(
            f"predict: the tasks of these rows give outputs of the shapes {', '.join(map(str, shapes))} for a row, "
            "which no one tensor holds; predict for them one by one"
        )
    for dimension in differing:
        width = max(part.shape[dimension] for part in parts)
        after = (0, 0) * (parts[0].dim() - dimension - 1)
        pads = [(*after, 0, width - part.shape[dimension]) for part in parts]
        parts = [nn.functional.pad(part, pad, value=-torch.inf) for part, pad in zip(parts, pads, strict=True)]
    return torch.cat(list(parts))
