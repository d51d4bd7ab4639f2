"""The forward and backward passes of adapted layers, as pure functions of tensors.

A task's weight is the frozen base weight, scaled by rows and columns, plus a low-rank residual:

    W_t = r ∘ W ∘ s + B,   B = p q

with ``weight`` W of shape (J, I, *kernel), ``r`` (J,), ``s`` (I,), ``p`` (J, k) and a ``q`` whose width
names the view of the residual. With width I ("kernel-mean") B[j, i] is added at every kernel position;
with width I·∏kernel ("full-kernel") every position has its own entry. The rank k may be 0. In a grouped
convolution I counts the input channels of one group, and s and q are shared by all groups.

Training a delta can cost less than training the layer, because W needs no gradient, and the gradient of
a full kernel is a third of a convolution's work. How to avoid it depends on the layer:

- A linear layer keeps the factors apart, y = r ∘ (W (s ∘ x)) + p (q x) + b. The scalings touch
  activations only, which are much smaller than W for the batches that training uses.
- A convolution builds its kernel W_t, because a second convolution branch would cost more than it saves,
  and takes the gradients of r and s from Euler's identity. Let y = conv(x; W_t) and g = ∂L/∂y. Scaling
  row j of W_t scales y_j, and scaling column i of W_t does the same as scaling x_i, so that

      Σ g_j y_j  = Σ_i <∂L/∂W_t, W_t>_ji = r_j ∂L/∂r_j + Σ_k p_jk ∂L/∂p_jk
      Σ x_i dx_i = Σ_j <∂L/∂W_t, W_t>_ji = s_i ∂L/∂s_i + Σ_k q_ki ∂L/∂q_ki

  Both left sides are single passes over tensors that training has at hand, and the gradients of p and q
  are small products. Dividing by r_j or s_i amplifies rounding where the base contributes almost nothing
  to a row or column; there, and only there, the gradient comes from the kernel's gradient itself.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from halrp.errors import SettingError

Strategy = Literal["merged", "euler", "factored"]

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)

_LEAST_SHARE = 1e-2
"""The least share of the base in a row or column of W_t for which Euler's identity is used: at worst two
digits of Σ g y, whose rounding is about 1e-7 relative in float32, are lost in the division."""


def merge(weight: Tensor, r: Tensor, s: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the task's weight W_t = r ∘ W ∘ s + p q, shaped like ``weight``, differentiable in r, s, p, q."""
    with torch.autocast(weight.device.type, enabled=False):
        scale = _over_kernel(torch.outer(r, s), weight)
        return torch.addcmul(_over_kernel(p @ q, weight), weight, scale)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, r: Tensor, s: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Apply an adapted linear layer without building its weight: y = r ∘ (W (s ∘ x)) + p (q x) + b.

    ``x`` is (..., I) and y is (..., J).
    """
    low_rank = functional.linear(functional.linear(x, q), p, bias)
    return low_rank + r * functional.linear(s * x, weight)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    r: Tensor,
    s: Tensor,
    p: Tensor,
    q: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    strategy: Strategy | None = None,
) -> Tensor:
    """Apply an adapted convolution in 1, 2 or 3 dimensions: y = conv(x; r ∘ W ∘ s + B) + b.

    ``x`` is (N, groups·I, *space); ``padding`` counts zeros on both sides. All strategies compute the same
    function: ``merged`` builds W_t and leaves the rest to autograd, ``euler`` builds W_t and avoids its
    gradient, ``factored`` convolves with W and adds a low-rank branch. Without a ``strategy`` the fastest
    one is taken, see `fastest`.
    """
    strategy = strategy or fastest(x, weight, r, s, p, q, groups)
    if strategy == "merged":
        return _convolve(x, merge(weight, r, s, p, q), bias, stride, padding, dilation, groups)
    if strategy == "factored":
        return _factored(x, weight, bias, r, s, p, q, stride, padding, dilation, groups)
    if groups != 1:
        raise SettingError(f"strategy 'euler' needs groups=1, but groups={groups}: use 'merged' or 'factored'.")
    return _Euler.apply(x, weight, bias, r, s, p, q, stride, padding, dilation)  # type: ignore[no-any-return]


def fastest(x: Tensor, weight: Tensor, r: Tensor, s: Tensor, p: Tensor, q: Tensor, groups: int) -> Strategy:
    """Choose how `conv` runs, from what the shapes and the gradients asked for make cheap."""
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (r, s, p, q))
    positions = math.prod(weight.shape[2:])
    if (
        not learns
        or not x.requires_grad
        or groups != 1
        or positions == 1
        or x.device.type != "cpu"
        or torch.is_autocast_enabled(x.device.type)
        or torch.compiler.is_compiling()
    ):
        return "merged"
    return "euler"


def _over_kernel(matrix: Tensor, weight: Tensor) -> Tensor:
    """Shape a (J, I) or (J, I·∏kernel) matrix so that it broadcasts against ``weight``."""
    rows, columns, *kernel = weight.shape
    if matrix.shape[1] == columns:
        return matrix.view(rows, columns, *(1 for _ in kernel))
    if matrix.shape[1] == columns * math.prod(kernel):
        return matrix.view(weight.shape)
    raise SettingError(
        f"q has {matrix.shape[1]} columns, but a weight of shape {tuple(weight.shape)} needs {columns} "
        f"(kernel-mean view) or {columns * math.prod(kernel)} (full-kernel view)."
    )


def _convolve(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Convolve in as many dimensions as the kernel has."""
    return _CONVOLUTIONS[kernel.dim() - 3](x, kernel, bias, stride, padding, dilation, groups)


def _window_sums(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Sum every channel of ``x`` over the windows a kernel of this size sees, zero padding included.

    A depthwise convolution with ones is the fastest way on one thread, in both memory formats.
    """
    channels = x.shape[1]
    ones = x.new_ones(()).expand(channels, 1, *kernel)
    return _convolve(x, ones, None, stride, padding, dilation, channels)


def _factored(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    r: Tensor,
    s: Tensor,
    p: Tensor,
    q: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Convolve with the frozen weight and with the factors, separately: y = r ∘ conv(s ∘ x; W) + p (q x) + b."""
    rows, columns, *kernel = weight.shape
    ones = [1 for _ in kernel]
    rank = p.shape[1]
    base = _convolve(x * s.repeat(groups).view(-1, *ones), weight, None, stride, padding, dilation, groups)
    if rank == 0:
        branch = None if bias is None else bias.view(-1, *ones)
    else:
        # Every group reads its own input channels with the same q and writes its own rows of p.
        if q.shape[1] == columns:
            narrow = _convolve(
                x,
                q.view(rank, columns, *ones).repeat(groups, *(1 for _ in weight.shape[1:])),
                None,
                tuple(ones),
                tuple(0 for _ in ones),
                tuple(ones),
                groups,
            )
            narrow = _window_sums(narrow, tuple(kernel), stride, padding, dilation)
        else:
            narrow = _convolve(
                x,
                q.view(rank, columns, *kernel).repeat(groups, *(1 for _ in weight.shape[1:])),
                None,
                stride,
                padding,
                dilation,
                groups,
            )
        branch = _convolve(
            narrow, p.view(rows, rank, *ones), bias, tuple(ones), tuple(0 for _ in ones), tuple(ones), groups
        )
    base = base * r.view(-1, *ones)
    return base if branch is None else base + branch


class _Euler(torch.autograd.Function):
    """A convolution with the merged kernel whose backward pass avoids the kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        r: Tensor,
        s: Tensor,
        p: Tensor,
        q: Tensor,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
    ) -> Tensor:
        """Return conv(x; W_t) + b."""
        kernel = merge(weight, r, s, p, q)
        y = _convolve(x, kernel, None, stride, padding, dilation)
        ctx.save_for_backward(x, weight, r, s, p, q, kernel, y)
        ctx.geometry = stride, padding, dilation
        # The backward pass reads y, so y stays private: a later layer may overwrite the output in place, as
        # nn.ReLU(inplace=True) does, and subtracting b from a sum would lose the digits of a small y.
        return y.clone() if bias is None else y + _per_channel(bias, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, b, r, s, p and q from that of the output."""
        x, weight, r, s, p, q, kernel, y = ctx.saved_tensors
        dx = _input_gradient(g, x, kernel, *ctx.geometry)
        dp, dq = _factor_gradients(g, x, p, q, weight.shape[2:], *ctx.geometry)
        dr = (_channel_dots(g, y) - (p * dp).sum(1)) / r
        ds = (_channel_dots(x, dx) - (q * dq).sum(0).view(len(s), -1).sum(1)) / s
        base = weight * _over_kernel(torch.outer(r, s), weight)
        rows = _vanishing(base, kernel, 0)
        if rows.numel():
            gradient = _kernel_gradient(g.index_select(1, rows), x, weight[rows], *ctx.geometry)
            dr[rows] = (gradient * weight[rows] * _per_channel(s, weight)).flatten(1).sum(1)
        columns = _vanishing(base, kernel, 1)
        if columns.numel():
            gradient = _kernel_gradient(g, x.index_select(1, columns), weight[:, columns], *ctx.geometry)
            scaled = (gradient * weight[:, columns]).transpose(0, 1).flatten(2).sum(2)
            ds[columns] = scaled @ r
        db = _channel_sums(g) if ctx.needs_input_grad[2] else None
        return dx, None, db, dr, ds, dp, dq, None, None, None


def _vanishing(base: Tensor, kernel: Tensor, dimension: int) -> Tensor:
    """Return the rows (dimension 0) or columns (1) of W_t to which the base contributes almost nothing."""
    others = [d for d in range(kernel.dim()) if d != dimension]
    share = base.square().sum(others)
    # Not `share < …`, which would miss a row that is all zero or not a number.
    kept = (share > 0) & (share >= _LEAST_SHARE**2 * kernel.square().sum(others))
    return (~kept).nonzero().squeeze(1)


def _per_channel(a: Tensor, like: Tensor) -> Tensor:
    """Shape a vector so that it broadcasts along the channels, the second dimension, of ``like``."""
    return a.view(-1, *(1 for _ in like.shape[2:]))


def _input_gradient(
    g: Tensor, x: Tensor, kernel: Tensor, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """Return ∂L/∂x of conv(x; kernel)."""
    return _convolution_backward(g, x, kernel, stride, padding, dilation, [True, False, False])[0]


def _kernel_gradient(
    g: Tensor, x: Tensor, kernel: Tensor, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """Return ∂L/∂kernel of conv(x; kernel)."""
    return _convolution_backward(g, x, kernel, stride, padding, dilation, [False, True, False])[1]


def _convolution_backward(
    g: Tensor,
    x: Tensor,
    kernel: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted gradients of x, kernel and bias."""
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        g, x, kernel, None, stride, padding, dilation, False, [0] * len(stride), 1, wanted
    )


def _factor_gradients(
    g: Tensor,
    x: Tensor,
    p: Tensor,
    q: Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Return ∂L/∂p and ∂L/∂q without the gradient of the whole kernel."""
    rank, width = q.shape
    if rank == 0:
        return torch.zeros_like(p), torch.zeros_like(q)
    channels = x.shape[1]
    ones = tuple(1 for _ in size)
    zeros = tuple(0 for _ in size)
    if width == channels:
        windows = _window_sums(x, size, stride, padding, dilation)
        residual = _kernel_gradient(g, windows, x.new_empty(g.shape[1], channels, *ones), ones, zeros, ones).flatten(1)
        return residual @ q.t(), p.t() @ residual
    filters = q.view(rank, channels, *size)
    narrow = _convolve(x, filters, None, stride, padding, dilation)
    dp = _kernel_gradient(g, narrow, p.view(*p.shape, *ones), ones, zeros, ones).flatten(1)
    back = _convolve(g, p.t().reshape(rank, -1, *ones), None, ones, zeros, ones)
    return dp, _kernel_gradient(back, x, filters, stride, padding, dilation).flatten(1)


def _channel_sums(a: Tensor) -> Tensor:
    """Sum over everything but the channel dimension."""
    return a.sum((0, *range(2, a.dim())))


def _channel_dots(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a b over everything but the channel dimension."""
    return (a * b).sum((0, *range(2, a.dim())))
