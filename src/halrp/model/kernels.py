"""The forward and backward passes of adapted layers, as pure functions of tensors.

A task's weight is W_t = r ∘ W ∘ s + p q (see `factors`). In a grouped convolution I counts the input channels of
one group, and s and q are shared by all groups.

Training a delta can cost less than training the layer, because W needs no gradient, and the gradient of
a full weight is a third of a layer's work. How to avoid it depends on the layer:

- A linear layer keeps the factors apart, y = r ∘ (W (s ∘ x)) + p (q x) + b. The scalings touch
  activations only, which are much smaller than W for the batches that training uses.
- A convolution whose activations outweigh its kernel builds W_t, because a second branch would cost more
  than it saves, and takes the gradients of r and s from Euler's identity. Let y = conv(x; W_t) and
  g = ∂L/∂y, and let a prefix d stand for ∂L/∂. Scaling row j of W_t scales y_j, and scaling column i of
  W_t does the same as scaling x_i, so

      Σ g_j y_j  = Σ_i <dW_t, W_t>_ji = r_j dr_j + Σ_k p_jk dp_jk
      Σ x_i dx_i = Σ_j <dW_t, W_t>_ji = s_i ds_i + Σ_k q_ki dq_ki

  The left sides are single passes over tensors at hand, and dp and dq are small products. Dividing by
  r_j or s_i amplifies rounding where the base contributes almost nothing to a row or column of W_t;
  there, and only there, the gradient comes from dW_t itself.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from halrp.errors import SettingError
from halrp.model.factors import Factors, as_filters, merge, over_kernel

__all__ = ["Geometry", "Strategy", "conv", "convolve", "fastest", "linear", "merge", "window_sums"]

Strategy = Literal["merged", "analytic", "factored"]

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)

_LEAST_SHARE = 1e-2
"""The least norm of the base's part of a row or column, relative to the whole, for which Euler's identity
is used: at worst it costs two of the seven digits of float32."""


class Geometry(NamedTuple):
    """How a convolution's window moves; one entry per spatial dimension, zeros padded on both sides."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, r: Tensor, s: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Apply an adapted linear layer without building its weight: y = r ∘ (W (s ∘ x)) + p (q x) + b.

    ``x`` is (..., I) and y is (..., J), of the type that the plain layer gives: under autocast the lower one, to which
    the sum is rounded once.
    """
    low_rank = functional.linear(functional.linear(x, q), p, bias)
    return (low_rank + r * functional.linear(s * x, weight)).to(low_rank.dtype)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factors: Factors,
    geometry: Geometry,
    strategy: Strategy | None = None,
) -> Tensor:
    """Apply an adapted convolution in 1, 2 or 3 dimensions, y = W_t * x + b.

    ``x`` is (N, groups·I, *space). All strategies compute the same function. "merged" builds W_t and leaves the rest to
    autograd; "analytic" builds W_t and has a backward pass of its own, which can be differentiated once only;
    "factored" convolves with W and adds a low-rank branch. The default is the fastest, see `fastest`.
    """
    strategy = strategy or fastest(x, weight, factors, geometry.groups)
    if strategy == "merged":
        return convolve(x, factors.merged(weight), bias, geometry)
    if strategy == "factored":
        return _factored_conv(x, weight, bias, factors, geometry)
    if geometry.groups != 1:
        raise SettingError(f"strategy 'analytic' needs groups=1, not {geometry.groups}: use 'merged' or 'factored'")
    return _AnalyticConv.apply(x, weight, bias, geometry, *factors.tensors())  # type: ignore[no-any-return]


def fastest(x: Tensor, weight: Tensor, factors: Factors, groups: int = 1) -> Strategy:
    """Choose the strategy of `conv` from the shapes and from the gradients that are wanted.

    The rule follows measurements of float32 forward and backward passes on one thread, in layers of 20 to
    256 channels. "merged" costs about as much as training the plain layer:

    - Nothing to learn, x needs no gradient, a 1×1 kernel: merged. Nothing is saved by the others.
    - Full-kernel with k > J/4: merged. The k filters q cost as much as the gradient they avoid; the gain is
      already small near that limit.
    - A weight of at least half the size of x: factored. Building W_t and its guards costs more than scaling
      the activations.
    - Otherwise analytic.

    Merged is also the choice where the analytic pass does not belong or was not measured: groups, other
    devices than the processor (its guard would wait for the device at every step), autocast, and graphs
    traced by a compiler.
    """
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in factors.tensors())
    full_kernel = factors.q.shape[1] != weight.shape[1]
    if (
        not learns
        or not x.requires_grad
        or math.prod(weight.shape[2:]) == 1
        or (full_kernel and 4 * factors.rank > weight.shape[0])
        or groups != 1
        or x.device.type != "cpu"
        or torch.is_autocast_enabled(x.device.type)
        or torch.compiler.is_compiling()
    ):
        return "merged"
    return "factored" if 2 * weight.numel() >= x.numel() else "analytic"


class _AnalyticConv(torch.autograd.Function):
    """A convolution with the merged kernel, whose backward pass avoids the kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *factors: Tensor
    ) -> Tensor:
        """Return W_t * x + b; autograd sees r, s, p and q only as arguments of their own."""
        kernel = Factors(*factors).merged(weight)
        y = _output(x, kernel, geometry)
        ctx.save_for_backward(x, weight, kernel, y, *factors)
        ctx.geometry = geometry
        # The backward pass reads y, so y stays private: a later layer may overwrite the output in place, as
        # nn.ReLU(inplace=True) does, and next to a large bias the digits of a small y would be lost.
        return y.clone() if bias is None else y + _per_channel(bias, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, b, r, s, p and q."""
        x, weight, kernel, y, *factors = ctx.saved_tensors
        dx, dr, ds, dp, dq = _euler_gradients(g, x, weight, Factors(*factors), kernel, y, ctx.geometry)
        db = _channel_sums(g) if ctx.needs_input_grad[2] else None
        return dx, None, db, None, dr, ds, dp, dq


def _euler_gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    factors: Factors,
    kernel: Tensor,
    y: Tensor,
    geometry: Geometry,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dx, dr, ds, dp and dq; dr and ds by Euler's identity."""
    r, s, p, q = factors.tensors()
    dx = _input_gradient(g, x, kernel, geometry)
    dp, dq = _factor_gradients(g, x, weight, p, q, geometry)
    dr = (_channel_dots(g, y) - (p * dp).sum(1)) / r
    ds = (_channel_dots(x, dx) - (q * dq).sum(0).view(len(s), -1).sum(1)) / s
    base, whole = _energy(weight) * torch.outer(r, s).square(), _energy(kernel)
    rows = _vanishing(base.sum(1), whole.sum(1))
    if len(rows):
        gradient = _kernel_gradient(g.index_select(1, rows), x, weight[rows], geometry)
        dr[rows] = (gradient * weight[rows]).flatten(2).sum(2) @ s
    columns = _vanishing(base.sum(0), whole.sum(0))
    if len(columns):
        gradient = _kernel_gradient(g, x.index_select(1, columns), weight[:, columns], geometry)
        ds[columns] = r @ (gradient * weight[:, columns]).flatten(2).sum(2)
    return dx, dr, ds, dp, dq


def _energy(kernel: Tensor) -> Tensor:
    """Return the squares of a kernel, summed over its positions: (J, I)."""
    return kernel.square().flatten(2).sum(2)


def _vanishing(base: Tensor, whole: Tensor) -> Tensor:
    """Return the rows or columns whose energy hardly comes from the base, from the energies of both."""
    sound = (base > 0) & (base >= _LEAST_SHARE**2 * whole)
    return (~sound).nonzero().squeeze(1)


def _factor_gradients(
    g: Tensor, x: Tensor, weight: Tensor, p: Tensor, q: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """Return dp and dq without the gradient of the whole kernel.

    Kernel-mean: dB = Σ g ⊗ (window sums of x), then dp = dB qᵀ and dq = pᵀ dB. Full-kernel: the residual is
    a convolution with k filters q followed by the 1×1 convolution p, and so are its gradients.
    """
    rank, width = q.shape
    if rank == 0:
        return torch.zeros_like(p), torch.zeros_like(q)
    columns = weight.shape[1]
    pointwise = _pointwise(weight)
    if width == columns:
        sums = window_sums(x, weight, geometry)
        residual = _kernel_gradient(g, sums, as_filters(p @ q, weight), pointwise).flatten(1)
        return residual @ q.t(), p.t() @ residual
    narrow = convolve(x, over_kernel(q, weight), None, geometry)
    dp = _kernel_gradient(g, narrow, as_filters(p, weight), pointwise).flatten(1)
    dnarrow = convolve(g, as_filters(p.t(), weight), None, pointwise)
    return dp, _kernel_gradient(dnarrow, x, over_kernel(q, weight), geometry).flatten(1)


def _factored_conv(x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors, geometry: Geometry) -> Tensor:
    """Convolve with the frozen weight and with the factors apart: y = r ∘ (W * (s ∘ x)) + p (q * x) + b."""
    (r, s, p, q), groups = factors.tensors(), geometry.groups
    wide = convolve(_per_channel(s.repeat(groups), x) * x, weight, None, geometry)
    y = _per_channel(r, x) * wide
    if p.shape[1] == 0:
        return (y if bias is None else y + _per_channel(bias, x)).to(wide.dtype)
    # Every group reads its own channels with the same q and writes its own rows of p.
    pointwise = _pointwise(weight, groups)
    filters = q.repeat(groups, 1)
    if q.shape[1] == weight.shape[1]:
        narrow = window_sums(convolve(x, as_filters(filters, weight), None, pointwise), weight, geometry)
    else:
        narrow = convolve(x, over_kernel(filters, weight), None, geometry)
    return (y + convolve(narrow, as_filters(p, weight), bias, pointwise)).to(wide.dtype)


def _per_channel(vector: Tensor, x: Tensor) -> Tensor:
    """Shape a vector so that it broadcasts along the channels of ``x``."""
    return vector.view(-1, *(1 for _ in x.shape[2:]))


def _channel_sums(x: Tensor) -> Tensor:
    """Sum over everything but the channels."""
    return x.sum((0, *range(2, x.dim())))


def _channel_dots(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a b over everything but the channels.

    The batch goes in slices whose product stays in the cache: a product as large as the activations would
    cost more in fresh memory than in arithmetic.
    """
    slices = math.ceil(a.numel() / 2**18) or 1
    pairs = zip(a.chunk(slices), b.chunk(slices), strict=True)
    return torch.stack([_channel_sums(u * v) for u, v in pairs]).sum(0)


def _pointwise(weight: Tensor, groups: int = 1) -> Geometry:
    """Return the geometry of a 1×1 convolution with as many dimensions as ``weight``."""
    ones = tuple(1 for _ in weight.shape[2:])
    return Geometry(ones, tuple(0 for _ in ones), ones, groups)


def window_sums(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Sum every channel over each window that a kernel shaped like ``weight`` sees, padding included.

    A depthwise convolution with ones: on one thread it beats average pooling, which knows no dilation
    either, in both memory formats.
    """
    channels = x.shape[1]
    ones = x.new_ones(()).expand(channels, 1, *weight.shape[2:])
    return convolve(x, ones, None, geometry._replace(groups=channels))


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolve in as many dimensions as the kernel has."""
    return _CONVOLUTIONS[kernel.dim() - 3](x, kernel, bias, *geometry)


def _fills_blocks(channels: int, x: Tensor) -> bool:
    """Whether this number of channels is best filled up with zeros to full blocks.

    The processor's convolutions work on blocks of eight channels, and in channels-last memory a last block that is
    not full costs more than one filled up with zeros.
    """
    filled = channels % 8 == 0 or channels >= 64
    return not filled and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _output(x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return y = kernel * x, perhaps as a part of a wider tensor."""
    rows = kernel.shape[0]
    if _fills_blocks(rows, x):
        kernel = functional.pad(kernel, (0, 0, 0, 0, 0, 0, 0, -rows % 8))
    return convolve(x, kernel, None, geometry)[:, :rows]


def _input_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x in y = kernel * x."""
    channels = kernel.shape[1]
    if _fills_blocks(channels, x):
        missing = -channels % 8
        kernel = functional.pad(kernel, (0, 0, 0, 0, 0, missing))
        shape = x.new_empty(()).expand(len(x), channels + missing, *x.shape[2:])
        dx = _convolution_backward(g, shape, kernel, geometry, [True, False, False])[0]
        return dx[:, :channels].contiguous(memory_format=torch.channels_last)
    return _convolution_backward(g, x, kernel, geometry, [True, False, False])[0]


def _kernel_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the kernel, of which only the shape matters, in y = kernel * x."""
    return _convolution_backward(g, x, kernel, geometry, [False, True, False])[1]


def _convolution_backward(
    g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted ones of the gradients of x, kernel and bias."""
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        g, x, kernel, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted
    )
