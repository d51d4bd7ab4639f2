"""Norm layers: y = a ∘ normalise(x) + c. A task owns all of their parameters and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model.layers.registry import Decision, LayerRule, layer_rule
from halrp.model.layers.stacks import LayerTasks, scale_and_shift
from halrp.model.rows import NotRowWise, rows_of

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (*BATCH_NORMS, *INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_STATISTICS = ("running_mean", "running_var")


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model cannot be trained on a batch of one example."""
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def uses_batch_statistics(layer: nn.Module) -> bool:
    """Whether a layer in evaluation mode normalises by the statistics of the batch."""
    return isinstance(layer, BATCH_NORMS) and layer.running_mean is None


def freeze_statistics(model: nn.Module) -> None:
    """Put the norm layers that have running statistics into evaluation mode: they use them, and leave them alone."""
    for module in model.modules():
        if isinstance(module, (*BATCH_NORMS, *INSTANCE_NORMS)) and module.running_mean is not None:
            module.eval()


class NormRule(LayerRule):
    """A norm layer with scale and shift, and perhaps running statistics."""

    by_channel: ClassVar[bool] = True
    """Whether scale and shift belong to channels (N, C, *space), rather than to the last dimensions."""

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """Norm parameters are few and decide much: a task owns them."""
        return Decision("owned", "norm", f"parameter of {type(layer).__name__}")

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """Normalise all rows at once, then scale and shift each by its task."""
        leaves = ("weight", "bias", *_STATISTICS)
        tasks.require_only(*leaves, "num_batches_tracked")
        stacks = {leaf: stack for leaf in leaves if (stack := tasks.stack(leaf)) is not None}
        return MixedNorm(self, tasks, stacks)

    def last_dims(self, layer: nn.Module) -> int | None:
        """Those that are normalised; channels must come second."""
        return None if self.by_channel else len(cast(Any, layer).normalized_shape)

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Apply a layer without its scale, shift and running statistics."""
        raise NotImplementedError

    def dims(self, layer: Any) -> int | None:
        """How many dimensions an input with rows must have; None leaves it open."""
        return None


@layer_rule(*BATCH_NORMS)
class BatchNormRule(NormRule):
    """Batch norms: their statistics are part of scale and shift."""

    trained_buffers = (*_STATISTICS, "num_batches_tracked")

    def prepare_mixed(self, path: str, layer: nn.Module) -> None:
        """Refuse one without running statistics."""
        if uses_batch_statistics(layer):
            raise NotRowWise(f"{path} normalises by the statistics of the batch, which mixes its rows")


@layer_rule(*INSTANCE_NORMS)
class InstanceNormRule(NormRule):
    """Instance norms, with or without running statistics."""

    trained_buffers = _STATISTICS

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Normalise each channel of each example."""
        return F.instance_norm(x, eps=layer.eps)

    def dims(self, layer: Any) -> int:
        """Instance norms also accept single examples, which have no dimension for rows."""
        return int(layer._get_no_batch_dim()) + 1


@layer_rule(nn.GroupNorm)
class GroupNormRule(NormRule):
    """Group norms."""

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Normalise groups of channels of each example."""
        return F.group_norm(x, layer.num_groups, eps=layer.eps)


@layer_rule(nn.LayerNorm)
class LayerNormRule(NormRule):
    """Layer norms."""

    by_channel = False

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Normalise the last dimensions."""
        return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)


@layer_rule(nn.RMSNorm)
class RMSNormRule(NormRule):
    """Root-mean-square norms."""

    by_channel = False

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Divide by the root mean square of the last dimensions."""
        return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)


class MixedNorm:
    """y_n = a_t ∘ normalise(x_n) + c_t, where running statistics, if the layer has them, are part of a_t and c_t."""

    def __init__(self, rule: NormRule, tasks: LayerTasks, stacks: Mapping[str, Tensor]) -> None:
        """Take the layer's parameters and buffers, stacked over the tasks: weight, bias, running_mean, running_var."""
        self.rule, self.path, self.layer = rule, tasks.path, cast(Any, tasks.layer)
        self.dims = rule.dims(tasks.layer)
        self.running = "running_mean" in stacks
        self.scale, self.shift = stacks.get("weight"), stacks.get("bias")
        if self.running:
            inverse = (stacks["running_var"] + self.layer.eps).rsqrt()
            self.scale = inverse if self.scale is None else inverse * self.scale
            centre = -stacks["running_mean"] * self.scale
            self.shift = centre if self.shift is None else centre + self.shift

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space) or (N, ..., *normalised shape)."""
        rows = rows_of(x, self.path, self.dims)
        per_row = rows.channels if self.rule.by_channel else rows.last
        scale, shift = (None if stack is None else per_row(stack, x) for stack in (self.scale, self.shift))
        if self.running:
            return scale_and_shift(x, scale, shift, overwrite=False)
        return scale_and_shift(self.rule.normalise(self.layer, x), scale, shift)
