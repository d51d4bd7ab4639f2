"""Gradients of an adapted layer without the gradient of its weight, for any layer that is linear in weight and input.

Let y = W_t x with W_t = r ∘ W ∘ s + p q, let g = ∂L/∂y, and let a prefix d stand for ∂L/∂. The gradients of p and q are
products with k rows or columns (`AffineMap.gradients`). Those of r and s follow from Euler's identity: scaling row j of
W_t scales y_j, and scaling column i of W_t does the same as scaling x_i, so

    Σ g_j y_j  = Σ_i <dW_t, W_t>_ji = r_j dr_j + Σ_k p_jk dp_jk
    Σ x_i dx_i = Σ_j <dW_t, W_t>_ji = s_i ds_i + Σ_k q_ki dq_ki

The left sides are single passes over tensors at hand: x and g are there in any backward pass, and y is the layer's
output without its bias. Nothing but x and y is kept for the backward pass, and y shares the memory of the output, which
the next layer often keeps anyway.

Three things can spoil dr_j or ds_i; then the row or column comes from dW_t itself, and only that row or column:

- Dividing by r_j or s_i amplifies rounding where the base contributes almost nothing to a row or column of W_t.
- Next to a large bias the digits of a small y are lost.
- A later layer may have overwritten the output in place, as nn.ReLU(inplace=True) does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.utils.weak import WeakIdKeyDictionary

from halrp.model.factors import Factors

LEAST_SHARE = 1e-2
"""The least norm of the base's part of a row or column, relative to the residual's, for which Euler's identity is used:
at worst it costs two of the seven digits of float32."""
LARGEST_BIAS = 16
"""How many times the size of y a bias may have: at worst four of the 24 bits of float32 are lost."""
TERMS = 2**13
"""The most terms of a sum that is not pairwise: its rounding stays near 1e-5 of the norm of its terms."""


class AffineMap(Protocol):
    """A map (x, W) → y that is linear in both; dimension 1 of x and y are their channels, W is (J, I, *kernel)."""

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> tuple[Tensor, Tensor | None]:
        """W_t x + b, and something that `gradients` needs again."""

    def gradients(
        self, g: Tensor, x: Tensor, weight: Tensor, factors: Factors, again: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, p and q."""

    def weight_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the weight, of which only the shape matters."""

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        """W_t x + b as autograd differentiates it."""


def analytic(operation: AffineMap, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
    """Apply an adapted layer through its merged weight, with a backward pass that avoids the weight's gradient."""
    return _Analytic.apply(operation, x, weight, bias, *factors.tensors())  # type: ignore[no-any-return]


class _Analytic(torch.autograd.Function):
    """A layer with the merged weight, which is built again in the backward pass: keeping it would double the base."""

    @staticmethod
    def forward(
        ctx: Any, operation: AffineMap, x: Tensor, weight: Tensor, bias: Tensor | None, *factors: Tensor
    ) -> Tensor:
        """Return W_t x + b; autograd sees r, s, p and q only as arguments of their own."""
        y, again = operation.output(x, weight, bias, Factors(*factors))
        ctx.operation, ctx.is_overwritten = operation, watch(y)
        ctx.save_for_backward(x, weight, bias, y.data, again, *factors)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, b, r, s, p and q."""
        x, weight, bias, y, again, *rest = ctx.saved_tensors
        factors, operation = Factors(*rest), ctx.operation
        if torch.is_grad_enabled():  # somebody differentiates this once more
            return (None, *differentiable(operation.plain, x, weight, bias, factors, g))
        r, s, p, q = rest
        dx, dp, dq = operation.gradients(g, x, weight, factors, again)
        rows, columns = weak(weight, factors)
        rows = torch.arange(len(r)) if ctx.is_overwritten() else _joined(rows, _drowned(y, bias))
        products, db = channel_sums(g, y)
        if bias is not None:
            products.addcmul_(bias, db, value=-1)
        dr = products.sub_((p * dp).sum(1)).div_(r)
        if len(rows):
            gradient = operation.weight_gradient(g.index_select(1, rows), x, weight[rows])
            dr[rows] = _over_positions(gradient * weight[rows]) @ s
        ds = channel_sums(dx, x)[0].sub_(_by_column((q * dq).sum(0), s)).div_(s)
        if len(columns):
            gradient = operation.weight_gradient(g, x.index_select(1, columns), weight[:, columns])
            ds[columns] = r @ _over_positions(gradient * weight[:, columns])
        return None, dx, None, None if bias is None else db, dr, ds, dp, dq


def differentiable(
    plain: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors, g: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of x, weight (None), bias and factors by autograd, which can be differentiated again."""
    inputs = (x, None, bias, *factors.tensors())
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    with torch.enable_grad():
        y = plain(x, weight, bias, factors)
        gradients = iter(torch.autograd.grad(y, wanted, g, create_graph=True, materialize_grads=True))
    return tuple(next(gradients) if t is not None and t.requires_grad else None for t in inputs)


def watch(y: Tensor) -> Callable[[], bool]:
    """A function that tells whether y was written to since; it does not keep y, nor its memory."""
    counter = y.detach()  # it has the version counter of y,
    counter.data = y.new_empty(0)  # and keeps that when it gets other memory
    version = counter._version
    return lambda: counter._version != version


def channel_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ a b and Σ a over everything but the channels, dimension 1.

    They are the gradients of scale and shift of a norm layer with mean 0 and deviation 1, which torch computes in one
    pass: a product as large as the activations would cost more in fresh memory than in arithmetic. Its sums are plain
    ones, so not too many terms are added before the next sum begins.
    """
    zeros, ones = a.new_zeros(a.shape[1]), a.new_ones(a.shape[1])
    if not a.numel():  # torch would divide by zero
        return zeros, zeros
    parts = max(1, a.numel() // (a.shape[1] * TERMS))
    sums = [
        torch.ops.aten.native_batch_norm_backward(u, v, ones, None, None, zeros, ones, True, 0.0, [False, True, True])
        for u, v in ([(a, b)] if parts == 1 else zip(a.chunk(parts), b.chunk(parts), strict=True))
    ]
    if len(sums) == 1:
        return sums[0][1], sums[0][2]
    return torch.stack([part[1] for part in sums]).sum(0), torch.stack([part[2] for part in sums]).sum(0)


def _over_positions(kernel: Tensor) -> Tensor:
    """Sum a kernel over its positions: (J, I)."""
    return kernel if kernel.dim() == 2 else kernel.sum(tuple(range(2, kernel.dim())))


def _by_column(values: Tensor, s: Tensor) -> Tensor:
    """Sum values of the columns of q over the positions of a kernel: (I,)."""
    return values if len(values) == len(s) else values.view(len(s), -1).sum(1)


# ---- rows and columns for which the identity is not accurate ---------------------------------------------------------

_NONE = torch.empty(0, dtype=torch.long)
_NORMS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The norms of frozen weights, with the version of the weight that they are of."""


def weak(weight: Tensor, factors: Factors) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of W_t whose norm hardly comes from the base.

    A bound from the smallest scales and the norms of p and q decides nearly always, without a pass over the weight.
    """
    r, s, p, q = factors.tensors()
    each = weight[0, 0].numel() if q.shape[1] == weight.shape[1] else 1
    of_rows, of_columns = _norms(weight)
    residual = LEAST_SHARE * each**0.5 * float(vector_norm(p)) * float(vector_norm(q))
    rows = float(vector_norm(r * of_rows, -torch.inf)) * float(vector_norm(s, -torch.inf))
    columns = float(vector_norm(s * of_columns, -torch.inf)) * float(vector_norm(r, -torch.inf))
    if rows > 0 and columns > 0 and min(rows, columns) >= residual:
        return _NONE, _NONE
    base = _over_positions(weight.square()) * torch.outer(r, s).square()
    of_rows, of_columns = (p @ (q @ q.t()) * p).sum(1), _by_column((p.t() @ p @ q * q).sum(0), s)
    return _missing(base.sum(1), each * of_rows), _missing(base.sum(0), each * of_columns)


def _missing(base: Tensor, residual: Tensor) -> Tensor:
    """The indices at which the energy of the base is too small beside that of the residual."""
    sound = (base > 0) & (base >= LEAST_SHARE**2 * residual)
    return (~sound).nonzero().squeeze(1)


def _norms(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the rows and of the columns of a frozen weight, which are computed once."""
    version, rows, columns = _NORMS.get(weight, (None, _NONE, _NONE))
    if version != weight._version:
        energy = _over_positions(weight.square())
        rows, columns = energy.sum(1).sqrt_(), energy.sum(0).sqrt_()
        _NORMS[weight] = weight._version, rows, columns
    return rows, columns


def _drowned(y: Tensor, bias: Tensor | None) -> Tensor:
    """Return the channels in which y = W_t x + b is little but b, judged by some of its entries."""
    if bias is None or not y.numel():
        return _NONE
    positions = y[0, 0].numel()
    examples = min(len(y), max(1, 64 // positions))
    some = y[:examples] - bias.view(-1, *(1 for _ in y.shape[2:]))
    size = vector_norm(some, 1, (0, *range(2, y.dim())))
    drowned: Tensor = size * (LARGEST_BIAS / (examples * positions)) < bias.abs()
    return drowned.nonzero().squeeze(1)


def _joined(a: Tensor, b: Tensor) -> Tensor:
    """The indices that occur in either."""
    return torch.cat([a, b]).unique() if len(a) and len(b) else (a if len(a) else b)
