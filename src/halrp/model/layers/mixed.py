"""How each kind of layer computes a batch whose rows belong to different tasks.

A row n of task t sees the weight r_t ∘ W ∘ s_t + p_t q_t. The scales act on activations and W is the same for all
rows, so one product or convolution with W serves the whole batch. What differs between tasks is small, and is looked
up for each row in stacks over the tasks, in which ranks are padded with zeros:

    linear         y_n = r_t ∘ (W (s_t ∘ x_n)) + p_t (q_t x_n) + b_t
    convolution    y_n = r_t ∘ (W * (s_t ∘ x_n)) + p_t (q_t * x_n) + b_t
    norm layer     y_n = a_t ∘ normalise(x_n) + c_t
    head           y_n = W_t x_n + b_t, padded to the widest task

A weight that tasks own outright, and a layer of another kind that is known to treat rows independently, is applied to
one group of rows after another.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model import kernels
from halrp.model.factors import Factors, identity_factors
from halrp.model.kernels import Geometry
from halrp.model.layers import registry
from halrp.model.rows import ROWS, NotRowWise, Rows, apart, rows_of


@dataclass(frozen=True, eq=False)
class Branch:
    """The low-rank parts of all tasks in one view of a weight: p (T, J, k) and q (T, k, columns)."""

    p: Tensor
    q: Tensor
    ranks: tuple[int, ...]

    @staticmethod
    def stacked(base: Tensor, parts: Sequence[Factors | None]) -> Branch | None:
        """Stack factors, padded with zeros to the largest rank. A task without factors has rank 0."""
        given = [part for part in parts if part is not None and part.rank]
        if not given:
            return None
        rank, columns = max(part.rank for part in given), given[0].q.shape[1]
        p = base.new_zeros(len(parts), base.shape[0], rank)
        q = base.new_zeros(len(parts), rank, columns)
        for task, part in enumerate(parts):
            if part is not None and part.rank:
                p[task, :, : part.rank] = part.p
                q[task, : part.rank] = part.q
        return Branch(p, q, tuple(0 if part is None else part.rank for part in parts))

    def among(self, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """The stacks p and q, cut to the largest rank of the tasks that are present; None if that is 0."""
        rank = max(self.ranks[task] for task, _ in rows.groups)
        return (self.p[:, :, :rank], self.q[:, :rank]) if rank else None


class Weights:
    """What the tasks make of one weight (J, I, *kernel): factors, or a weight of their own."""

    def __init__(self, base: Tensor, factors: Sequence[Factors | None], outright: Mapping[int, Tensor]) -> None:
        """Stack the factors, one entry per task; a task that has neither uses the base weight as it is."""
        self.base = base
        self.outright = outright
        self.scaled = any(part is not None for part in factors)
        same = identity_factors(base)
        self.r = torch.stack([(part or same).r for part in factors])
        self.s = torch.stack([(part or same).s for part in factors])
        narrow = base.shape[1]
        mean = [part if part is not None and part.q.shape[1] == narrow else None for part in factors]
        full = [part if part is not None and part.q.shape[1] != narrow else None for part in factors]
        self.mean, self.full = Branch.stacked(base, mean), Branch.stacked(base, full)
        self.full_kernel = {task: part for task, part in enumerate(full) if part is not None}

    def of(self, task: int) -> Tensor:
        """The whole weight of a task that owns it outright or has full-kernel factors."""
        if task in self.outright:
            return self.outright[task]
        return self.full_kernel[task].merged(self.base)


def _affine(x: Tensor, scale: Tensor | None, shift: Tensor | None, fresh: bool = True) -> Tensor:
    """Return scale ∘ x + shift in the precision of x; written over x if that is `fresh`, nobody else's.

    In layers with large activations, memory that is already at hand halves the time.
    """
    out = x if fresh else torch.empty_like(x)
    if scale is None:
        return x if shift is None else torch.add(x, shift, out=out)
    return torch.mul(x, scale, out=out) if shift is None else torch.addcmul(shift, x, scale, out=out)


class MixedLinear:
    """y_n = r_t ∘ (W (s_t ∘ x_n)) + p_t (q_t x_n) + b_t for x (N, ..., I), with biases stacked as (T, J)."""

    def __init__(self, name: str, weights: Weights, bias: Tensor | None) -> None:
        self.name, self.weights, self.bias = name, weights, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return apart(x, rows_of(x, self.name), self.weights.outright, self._one, self._together)

    def _one(self, x: Tensor, task: int) -> Tensor:
        return F.linear(x, self.weights.of(task), None if self.bias is None else self.bias[task])

    def _together(self, x: Tensor, rows: Rows) -> Tensor:
        weights = self.weights
        shift = None if self.bias is None else rows.last(self.bias, x)
        if not weights.scaled:
            return _affine(F.linear(x, weights.base), None, shift)
        y = _affine(F.linear(x * rows.last(weights.s, x), weights.base), rows.last(weights.r, x), shift)
        low_rank = weights.mean and weights.mean.among(rows)
        return y.add_(rows.times(x, low_rank[1], low_rank[0])) if low_rank else y


class MixedHead:
    """y_n = W_t x_n + b_t for heads padded to one width: W (T, widest, I) and b (T, widest).

    In the padding b is −inf, so that a softmax after the head sees no class that a task does not have.
    """

    def __init__(self, name: str, weight: Tensor, bias: Tensor) -> None:
        self.name, self.weight, self.bias = name, weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the heads to x (N, ..., I)."""
        rows = rows_of(x, self.name)
        return _affine(rows.times(x, self.weight), None, rows.last(self.bias, x))


MERGE_FROM = 512
"""Output positions of a task in the batch from which a full-kernel convolution uses the task's merged weight.

Building a weight costs as much as convolving some positions with it, so it pays where a task has many. Filters of rank
k for each row cost more than their arithmetic says, because convolutions with many groups are slow. On one thread,
with 3 to 256 channels and 4 to 64 tasks in 64 rows, the two ways meet between 256 and 800 positions.
"""


class MixedConv:
    """y_n = r_t ∘ (W * (s_t ∘ x_n)) + p_t (q_t * x_n) + b_t in 1, 2 or 3 dimensions, with biases stacked as (T, J)."""

    def __init__(self, name: str, layer: nn.Module, weights: Weights, bias: Tensor | None) -> None:
        self.name, self.layer, self.weights, self.bias = name, cast(Any, layer), weights, bias
        self.s = weights.s.repeat(1, self.layer.groups)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space)."""
        layer, weights = self.layer, self.weights
        rows = rows_of(x, self.name, weights.base.dim())
        x, padding = _padded(x, layer)
        geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)
        positions = x[:, 0].numel() / math.prod(layer.stride) / len(rows.groups)
        alone = {*weights.outright, *(weights.full_kernel if positions >= MERGE_FROM else ())}

        def one(x: Tensor, task: int) -> Tensor:
            return kernels.convolve(x, weights.of(task), None if self.bias is None else self.bias[task], geometry)

        return apart(x, rows, alone, one, lambda x, rows: self._together(x, rows, geometry))

    def _together(self, x: Tensor, rows: Rows, geometry: Geometry) -> Tensor:
        weights = self.weights
        shift = None if self.bias is None else rows.channels(self.bias, x)
        if not weights.scaled:
            return _affine(kernels.convolve(x, weights.base, None, geometry), None, shift)
        y = kernels.convolve(x * rows.channels(self.s, x), weights.base, None, geometry)
        y = _affine(y, rows.channels(weights.r, x), shift)
        for branch in (weights.mean, weights.full):
            low_rank = branch and branch.among(rows)
            if low_rank:
                y = _add_low_rank(y, x, *low_rank, rows, weights.base, geometry)
        return y


def _add_low_rank(y: Tensor, x: Tensor, p: Tensor, q: Tensor, rows: Rows, weight: Tensor, geometry: Geometry) -> Tensor:
    """Return y_n + p_t (q_t * x_n), maybe written over y, for stacks p (T, J, k) and q (T, k, columns).

    Kernel-mean: a 1×1 convolution for each row, then sums over windows. Full-kernel: k filters for each row, as one
    convolution whose groups are the rows. The groups of a grouped layer share q and are treated as more rows.
    """
    shape, groups, rank, columns = y.shape, geometry.groups, q.shape[1], weight.shape[1]
    count = len(rows) * groups
    p = rows.of(p).reshape(count, -1, rank)
    q = rows.of(q).repeat_interleave(groups, 0)
    if groups > 1:
        x = x.reshape(count, columns, *x.shape[2:])
        y = y.reshape(count, -1, *y.shape[2:])
    if q.shape[2] == columns:
        narrow = kernels.window_sums(_products(q, x), weight, geometry)
    else:
        filters = q.reshape(count * rank, columns, *weight.shape[2:])
        joined = x.reshape(1, -1, *x.shape[2:])
        narrow = kernels.convolve(joined, filters, None, geometry._replace(groups=count))
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


def _padded(x: Tensor, layer: Any) -> tuple[Tensor, tuple[int, ...]]:
    """Pad x as a convolution layer does, except for zeros on both sides, which are returned as a number."""
    none = tuple(0 for _ in layer.kernel_size)
    if layer.padding_mode != "zeros":
        return F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), none
    if layer.padding == "valid":
        return x, none
    if layer.padding == "same":
        return registry.same_padding(x, layer.kernel_size, layer.dilation)
    return x, layer.padding


RUNNING_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
CHANNEL_NORMS = (*RUNNING_NORMS, *INSTANCE_NORMS, nn.GroupNorm)
LAST_NORMS = (nn.LayerNorm, nn.RMSNorm)


class MixedNorm:
    """y_n = a_t ∘ normalise(x_n) + c_t, where running statistics, if the layer has them, are part of a_t and c_t."""

    def __init__(self, name: str, layer: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Take the layer's parameters and buffers, stacked over the tasks: weight, bias, running_mean, running_var."""
        self.name, self.layer = name, cast(Any, layer)
        self.by_channel = type(layer) in CHANNEL_NORMS
        # Instance norms also take single examples, which have no dimension for rows.
        self.dims = self.layer._get_no_batch_dim() + 1 if type(layer) in INSTANCE_NORMS else None
        self.running = "running_mean" in tensors
        self.scale, self.shift = tensors.get("weight"), tensors.get("bias")
        if self.running:
            inverse = (tensors["running_var"] + self.layer.eps).rsqrt()
            self.scale = inverse if self.scale is None else inverse * self.scale
            centre = -tensors["running_mean"] * self.scale
            self.shift = centre if self.shift is None else centre + self.shift

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space) or (N, ..., *normalised shape)."""
        rows = rows_of(x, self.name, self.dims)
        place = rows.channels if self.by_channel else rows.last
        scale, shift = (None if stack is None else place(stack, x) for stack in (self.scale, self.shift))
        return _affine(x, scale, shift, fresh=False) if self.running else _affine(self._normalise(x), scale, shift)

    def _normalise(self, x: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(x, layer.num_groups, eps=layer.eps)
        if isinstance(layer, nn.LayerNorm):
            return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)
        return F.instance_norm(x, eps=layer.eps)


RECURRENT = (nn.RNN, nn.GRU, nn.LSTM)
ROW_WISE = (
    nn.Embedding,
    nn.PReLU,
    nn.Bilinear,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.MultiheadAttention,
    *RECURRENT,
)
"""Layers that treat rows independently; the last two kinds only with batch_first=True."""

_ALONG = {"input": 0, "input1": 0, "input2": 0, "query": 0, "key": 0, "value": 0, "key_padding_mask": 0, "hx": 1}
"""The dimension of the rows in the arguments of these layers; all other arguments are the same for every row."""


class MixedGroups:
    """Any row-wise layer, applied to one group of rows after another; `of(task)` is the layer as the task has it."""

    def __init__(self, name: str, layer: nn.Module, of: Callable[[int], nn.Module]) -> None:
        self.name, self.of = name, of
        self.recurrent = isinstance(layer, RECURRENT)
        self.signature = inspect.signature(type(layer).forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer; arguments and results are as the layer's own."""
        given = self.signature.bind(None, *args, **kwargs).arguments
        given.pop("self")
        mask = given.get("attn_mask")
        if mask is not None and mask.dim() != 2:
            raise NotRowWise(f"{self.name} has an attention mask for each row")
        rows = ROWS.get()
        results = []
        for task, members in rows.groups:
            part = {key: self._narrow(key, value, members, len(rows)) for key, value in given.items()}
            results.append(self.of(task)(**part))
        if self.recurrent:
            return tuple(_join([result[dim] for result in results], dim) for dim in (0, 1))
        return _join(results, 0)

    def _narrow(self, key: str, value: Any, members: range, count: int) -> Any:
        if key not in _ALONG or value is None:
            return value
        if type(value) is tuple:
            return tuple(self._narrow(key, each, members, count) for each in value)
        dim = _ALONG[key]
        if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] != count:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise NotRowWise(f"{self.name} sees a {type(value).__name__}{shape} in a batch of {count} rows")
        return value.narrow(dim, members.start, len(members))


def _join(parts: Sequence[Any], dim: int) -> Any:
    """Concatenate results of groups: tensors, None, or tuples of them."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(_join(each, dim) for each in zip(*parts, strict=True))
    return None if first is None else torch.cat(list(parts), dim)
