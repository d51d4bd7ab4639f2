"""Logits of one task, in batches that the model's norm layers can use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.errors import BatchOfOneError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.delta import Delta
from halrp.model.layers.norm import uses_batch_statistics
from halrp.model.precision import forward_precision


def batch_sizes(rows: int, batch: int, least: int = 2) -> list[int]:
    """Split a number of rows into batches; fewer than `least` last rows join the batch before them."""
    full, rest = divmod(rows, batch)
    sizes = [batch] * full + ([rest] if rest else [])
    if batch >= least and len(sizes) > 1 and sizes[-1] < least:
        sizes[-2:] = [sum(sizes[-2:])]
    return sizes


def normalises_by_batch(model: nn.Module) -> bool:
    """Whether a model in evaluation mode uses the statistics of the batch, so that a row's logits depend on others."""
    return any(uses_batch_statistics(module) for module in model.modules())


def inference_batches(model: nn.Module, rows: int, batch: int) -> list[int] | int:
    """How to split rows of one task into batches; where they give statistics, no batch has a single row."""
    return batch_sizes(rows, batch) if rows > batch and normalises_by_batch(model) else batch


def task_logits(module: nn.Module, call: Call, x: Batch, delta: Delta) -> Tensor:
    """The logits of a task from its module in the task's precision, or the reason why a single row has none."""
    try:
        with forward_precision(delta.autocast, tree.device_of(x)):
            logits = call(module, x)
    except ValueError as error:
        if tree.rows(x) != 1 or not normalises_by_batch(module):
            raise
        task = repr(delta.task) if delta.task else "the base's own task"
        raise BatchOfOneError(
            f"predict: a single row of {task}, and the model normalises by the statistics of the batch; pass two rows "
            "or more of each task, or use a model whose batch norms track running statistics"
        ) from error
    return logits


def batched_logits(module: nn.Module, call: Call, x: Batch, delta: Delta, batch: int) -> Tensor:
    """The logits of a task for any number of rows, about `batch` of them at a time."""
    rows = tree.rows(x)
    if rows <= batch:
        return task_logits(module, call, x, delta)
    sizes = inference_batches(module, rows, batch)
    with forward_precision(None, tree.device_of(x)):  # joining batches is not part of a forward pass
        return torch.cat([task_logits(module, call, part, delta) for part in tree.split(x, sizes)])
