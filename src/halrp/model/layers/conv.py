"""Convolutions in 1, 2 and 3 dimensions, and transposed ones: y = W * x + b."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model import kernels
from halrp.model.factors import Factors
from halrp.model.kernels import Geometry
from halrp.model.layers.affine import AffineFamily, AffineRule
from halrp.model.layers.groupwise import GroupwiseRule
from halrp.model.layers.registry import layer_rule
from halrp.model.layers.stacks import LayerTasks, WeightStack, scale_and_shift
from halrp.model.rows import Rows, compute_apart, rows_of


class ConvRule(AffineRule):
    """A layer with a weight (J, I, *kernel) and perhaps a bias (J,)."""

    kernel = True

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """One convolution with W for all rows."""
        tasks.require_only("weight", "bias")
        return MixedConv(tasks, tasks.weights(), tasks.stack("bias"), self.finish_of(tasks.layer))

    def measures(self, layer: nn.Module) -> bool:
        """Moments of a grouped convolution would be one pair for each group."""
        return super().measures(layer) and cast(Any, layer).groups == 1

    def input_rows(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The input patches that meet the kernel."""
        conv: Any = layer
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
            x = F.pad(x, conv._reversed_padding_repeated_twice, mode)
            padding: tuple[int, ...] = (0,) * len(conv.kernel_size)
        else:
            padding = conv.padding
        settings = [tuple(v) for v in (conv.kernel_size, conv.dilation, padding, conv.stride)]
        if len(conv.kernel_size) == 1:
            x, settings = x.unsqueeze(-2), [(1 if i != 2 else 0, *v) for i, v in enumerate(settings)]
        kernel, dilation, pad, stride = settings
        unfolded = F.unfold(x, kernel, dilation, pad, stride)
        return unfolded.movedim(-2, -1).reshape(-1, unfolded.shape[-2])

    def gradient_rows(self, layer: nn.Module, gradient: Tensor) -> Tensor:
        """The gradients of all channels at each position."""
        channel = 1 - cast(Tensor, layer.weight).dim()
        return gradient.movedim(channel, -1).reshape(-1, gradient.shape[channel])

    def affine(self, layer: nn.Module, x: Tensor) -> Tensor:
        """W * x + b."""
        conv: Any = layer
        batched = x if x.dim() == conv.weight.dim() else x.unsqueeze(0)
        batched, padding = pad_inputs(batched, layer)
        y = kernels.convolve(batched, conv.weight, getattr(conv, "bias", None), geometry(layer, padding))
        return y if x.dim() == conv.weight.dim() else y.squeeze(0)


class Conv3dRule(ConvRule):
    """Volumes have patches that torch cannot unfold."""

    lacks = ("moments",)


class ConvFamily(AffineFamily):
    """y = f(conv(x; r ∘ W ∘ s + p q) + b), by the strategy that is fastest for the shape."""

    _rule = ConvRule

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space), or to one unbatched example (C, *space)."""
        batched = x if x.dim() == self.base_weight.dim() else x.unsqueeze(0)
        padded, padding = pad_inputs(batched, self)
        bias = getattr(self, "bias", None)
        y = kernels.conv(
            padded, self.base_weight, bias, Factors(self.r, self.s, self.p, self.q), geometry(self, padding)
        )
        return self.finish(y if batched.dim() == x.dim() else y.squeeze(0))


@layer_rule(nn.Conv1d)
class AdaptedConv1d(ConvFamily, nn.Conv1d):  # type: ignore[override]
    """An adapted one-dimensional convolution."""


@layer_rule(nn.Conv2d)
class AdaptedConv2d(ConvFamily, nn.Conv2d):  # type: ignore[override]
    """An adapted two-dimensional convolution."""


@layer_rule(nn.Conv3d)
class AdaptedConv3d(ConvFamily, nn.Conv3d):  # type: ignore[override]
    """An adapted three-dimensional convolution."""

    _rule = Conv3dRule


@layer_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvRule(GroupwiseRule):
    """A transposed convolution: its weight is merged, and its rows are computed task by task."""

    kernel = True


def geometry(layer: nn.Module, padding: tuple[int, ...]) -> Geometry:
    """How a convolution layer's window moves over inputs that need this padding."""
    conv: Any = layer
    return Geometry(conv.stride, padding, conv.dilation, conv.groups)


def pad_inputs(x: Tensor, layer: nn.Module) -> tuple[Tensor, tuple[int, ...]]:
    """Pad x as a convolution layer does, except for zeros on both sides, which are returned as a number."""
    conv: Any = layer
    none = tuple(0 for _ in conv.kernel_size)
    if conv.padding_mode != "zeros":
        return F.pad(x, conv._reversed_padding_repeated_twice, mode=conv.padding_mode), none
    if conv.padding == "valid":
        return x, none
    if conv.padding == "same":
        return _same_padding(x, conv.kernel_size, conv.dilation)
    return x, conv.padding


def _same_padding(x: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Resolve padding "same": symmetric where it can be, the odd row or column added at the end."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    odd = [t % 2 for t in total]
    if any(odd):
        x = F.pad(x, [side for extra in reversed(odd) for side in (0, extra)])
    return x, tuple(t // 2 for t in total)


MERGE_FROM = 512
"""Output positions of a task in the batch from which a full-kernel convolution uses the task's merged weight.

Building a weight costs as much as convolving some positions with it, so it pays where a task has many. Filters of rank
k for each row cost more than their arithmetic suggests, because convolutions with many groups are slow. On one thread,
with 3 to 256 channels and 4 to 64 tasks in 64 rows, the two ways meet between 256 and 800 positions.
"""


class MixedConv:
    """y_n = f(r_t ∘ (W * (s_t ∘ x_n)) + p_t (q_t * x_n) + b_t), with biases stacked as (T, J)."""

    def __init__(
        self,
        tasks: LayerTasks,
        weights: WeightStack,
        bias: Tensor | None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.path, self.layer = tasks.path, cast(Any, tasks.layer)
        self.weights, self.bias, self.finish = weights, bias, finish

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space)."""
        rows = rows_of(x, self.path, self.weights.base.dim())
        x, padding = pad_inputs(x, self.layer)
        y = mixed_convolution(x, rows, self.weights, self.bias, geometry(self.layer, padding))
        return y if self.finish is None else self.finish(y)


def mixed_convolution(x: Tensor, rows: Rows, weights: WeightStack, bias: Tensor | None, window: Geometry) -> Tensor:
    """Convolve each row of x (N, C, *space) with its task's weight, and add its task's bias of a stack (T, J)."""
    depthwise = weights.base.shape[1] == 1 and window.groups == x.shape[1]
    if depthwise and any(weights.changes(task) for task, _ in rows.groups):
        return _depthwise(x, rows, weights, bias, window)
    positions = x[:, 0].numel() / math.prod(window.stride) / len(rows.groups)
    alone = {*weights.dense, *(weights.full_kernel if positions >= MERGE_FROM else ())}

    def one_task(x: Tensor, task: int) -> Tensor:
        return kernels.convolve(x, weights.of(task), None if bias is None else bias[task], window)

    def together(x: Tensor, rows: Rows) -> Tensor:
        shift = None if bias is None else rows.channels(bias, x)
        if not weights.scaled:
            return scale_and_shift(kernels.convolve(x, weights.base, None, window), None, shift)
        s = rows.channels(weights.s, x).repeat(1, window.groups, *(1 for _ in x.shape[2:]))
        y = kernels.convolve(x * s, weights.base, None, window)
        y = scale_and_shift(y, rows.channels(weights.r, x), shift)
        for stack in (weights.mean, weights.full):
            low_rank = stack and stack.among(rows)
            if low_rank:
                y = _add_low_rank(y, x, low_rank, rows, weights.base, window)
        return y

    return compute_apart(x, rows, alone, one_task, together)


def _depthwise(x: Tensor, rows: Rows, weights: WeightStack, bias: Tensor | None, window: Geometry) -> Tensor:
    """Convolve with merged weights, which in a depthwise convolution are as few as the numbers of one window.

    Channels of different rows are as independent as those of one row, so all of them are channels of one example. In
    channels-last memory they do not lie side by side, and tasks are computed one after another.
    """
    if _is_channels_last(x):
        pieces = [
            kernels.convolve(x[members.start : members.stop], weights.of(task), None, window)
            for task, members in rows.groups
        ]
        y = torch.cat(pieces)
    else:
        kernel = rows.of_groups([weights.of(task) for task, _ in rows.groups]).flatten(0, 1)
        joined = x.reshape(1, -1, *x.shape[2:])
        y = kernels.convolve(joined, kernel, None, window._replace(groups=joined.shape[1]))
        y = y.view(len(x), -1, *y.shape[2:])
    return scale_and_shift(y, None, None if bias is None else rows.channels(bias, x))


def _add_low_rank(
    y: Tensor, x: Tensor, low_rank: tuple[Tensor, Tensor], rows: Rows, weight: Tensor, window: Geometry
) -> Tensor:
    """Return y_n + p_t (q_t * x_n), maybe written over y, for stacks p (T, J, k) and q (T, k, columns).

    Kernel-mean: a 1×1 convolution for each row, then sums over windows. Full-kernel: k filters for each row, as one
    convolution whose groups are the rows. The groups of a grouped layer share q and are treated as more rows.
    """
    p, q = low_rank
    shape, groups, rank, columns = y.shape, window.groups, q.shape[1], weight.shape[1]
    count = len(rows) * groups
    p = rows.of(p).reshape(count, -1, rank)
    q = rows.of(q).repeat_interleave(groups, 0)
    if groups > 1:
        x = x.reshape(count, columns, *x.shape[2:])
        y = y.reshape(count, -1, *y.shape[2:])
    if q.shape[2] == columns:
        narrow = kernels.window_sums(_products(q, x), weight, window)
    else:
        filters = q.reshape(count * rank, columns, *weight.shape[2:])
        joined = x.reshape(1, -1, *x.shape[2:])
        narrow = kernels.convolve(joined, filters, None, window._replace(groups=count))
        narrow = narrow.reshape(count, rank, *narrow.shape[2:])
    return _products(p, narrow, y).reshape(shape)


def _products(matrices: Tensor, x: Tensor, y: Tensor | None = None) -> Tensor:
    """Multiply the channels of each row by its own matrix, (N, J, I) · (N, I, *space) = (N, J, *space).

    With y the product is added to it, and may be written over it. The result has the memory format of y, or else of
    x; changing the format would cost more than the product.
    """
    flat = x.flatten(2)
    last = _is_channels_last(x if y is None else y)
    left, right = (flat.mT, matrices.mT) if last else (matrices, flat)
    if y is None:
        product = left @ right
    else:
        start = y.flatten(2).mT if last else y.flatten(2)
        product = start.baddbmm_(left.to(y.dtype), right.to(y.dtype))
    return (product.mT if last else product).view(len(x), -1, *x.shape[2:])


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])
