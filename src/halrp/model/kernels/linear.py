"""Adapted linear layers."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from halrp.model.factors import Factors
from halrp.model.kernels.conditions import learns, measured
from halrp.model.kernels.euler import analytic, channel_sums, differentiable
from halrp.model.kernels.products import rows_times, rows_times_transposed

LinearStrategy: TypeAlias = Literal["merged", "analytic", "factored"]
WIDE = 32
"""The number of components from which on products with factors are those of `products`."""


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    r: Tensor,
    s: Tensor,
    p: Tensor,
    q: Tensor,
    strategy: LinearStrategy | None = None,
) -> Tensor:
    """Apply an adapted linear layer, y = (r ∘ W ∘ s + p q) x + b, to ``x`` (..., I); y is (..., J).

    All strategies compute the same function; the default is the fastest, see `fastest`. The type of y is that of the
    plain layer: under autocast the lower one, to which the sum is rounded once.
    """
    factors = Factors(r, s, p, q)
    strategy = strategy or fastest(x, weight, factors)
    if strategy == "merged":
        return functional.linear(x, factors.merged(weight), bias)
    if not (measured(x) and learns(factors)):
        return _factored(x, weight, bias, factors)
    flat = x.reshape(-1, x.shape[-1])
    if strategy == "analytic":
        y = analytic(LinearMap(), flat, weight, bias, factors)
    else:
        y = _Factored.apply(flat, weight, bias, *factors.tensors())
    return y.view(*x.shape[:-1], weight.shape[0])


def fastest(x: Tensor, weight: Tensor, factors: Factors) -> LinearStrategy:
    """Choose the strategy of `linear` from the shapes and from the gradients that are wanted.

    Building W_t costs some passes over W, and keeping the factors apart some passes over x and y, so the smaller of the
    two decides. A layer that does not learn is factored, whatever the batch.
    """
    rows = x.numel() // max(1, x.shape[-1])
    if not (measured(x) and learns(factors)) or 2 * weight.numel() > rows * sum(weight.shape):
        return "factored"
    return "analytic"


class LinearMap:
    """y = W x for x (M, I) and W (J, I)."""

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> tuple[Tensor, None]:
        """W_t x + b."""
        return rows_times(x, _merged(weight, factors), bias), None

    def gradients(
        self, g: Tensor, x: Tensor, weight: Tensor, factors: Factors, again: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, p and q: dx = g W_t, dp = gᵀ (x qᵀ) and dq = (g p)ᵀ x.

        Every product has k rows and not k columns, which is several times faster for a small k.
        """
        p, q = factors.p, factors.q
        return rows_times_transposed(g, _merged(weight, factors)), ((q @ x.t()) @ g).t(), (p.t() @ g.t()) @ x

    def weight_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of W."""
        return g.t() @ x

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        """W_t x + b."""
        return _factored(x, weight, bias, factors)


def _merged(weight: Tensor, factors: Factors) -> Tensor:
    """W_t, without another tensor of its size."""
    return (weight * factors.s).mul_(factors.r[:, None]).addmm_(factors.p, factors.q)


def _factored(x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
    r, s, p, q = factors.tensors()
    low_rank = functional.linear(functional.linear(x, q), p, bias)
    return (low_rank + r * functional.linear(s * x, weight)).to(low_rank.dtype)


class _Factored(torch.autograd.Function):
    """y = r ∘ h + p z + b with h = W (s ∘ x) and z = q x, for x (M, I): the same as `_factored` in fewer passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *factors: Tensor) -> Tensor:
        """Return y; h and z are kept."""
        r, s, p, q = factors
        h = rows_times(s * x, weight)
        z = rows_times(x, q) if _is_wide(p) else (q @ x.t()).t()
        ctx.save_for_backward(x, weight, bias, h, z, *factors)
        low_rank = rows_times(z, p, bias) if _is_wide(p) else functional.linear(z, p, bias)
        return low_rank.addcmul_(h, r)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, b, r, s, p and q."""
        x, weight, bias, h, z, r, s, p, q = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates this once more
            return differentiable(_factored, x, weight, bias, Factors(r, s, p, q), g)
        v = rows_times_transposed(g, p) if _is_wide(p) else (p.t() @ g.t()).t()
        dx = rows_times_transposed(r * g, weight)
        (dr, db), (ds, _) = channel_sums(g, h), channel_sums(dx, x)
        dx = dx.mul_(s).add_(rows_times_transposed(v, q)) if _is_wide(p) else dx.mul_(s).addmm_(v, q)
        return dx, None, None if bias is None else db, dr, ds, (z.t() @ g).t(), v.t() @ x


def _is_wide(p: Tensor) -> bool:
    """Whether there are enough components that a product with k columns is as fast as one with k rows."""
    return p.shape[1] >= WIDE
