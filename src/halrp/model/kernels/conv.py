"""Adapted convolutions. In a grouped one I counts the input channels of one group, and s and q serve all groups.

A convolution has many more products than weights, so building W_t costs little, and the factors are never kept apart.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from halrp.errors import SettingError
from halrp.model.factors import Factors, as_filters, over_kernel
from halrp.model.kernels.conditions import learns, measured
from halrp.model.kernels.convolution import (
    Geometry,
    convolve,
    input_gradient,
    is_last,
    kernel_gradient,
    pointwise,
    window_sums,
)
from halrp.model.kernels.euler import analytic

SLICE = 2**19
"""The number of entries of inputs whose window sums are made at a time: more would not stay in the cache."""

ConvStrategy: TypeAlias = Literal["merged", "analytic"]
FEW_PRODUCTS = 64
"""Products with the weight for each number of x and y, from which on their gradient is worth avoiding."""
FEW_COMPONENTS = 8
"""How many times fewer numbers than a matrix components have, so that products with them take less time than one."""
BLOCK = 16
"""The number of filters that convolutions of the processor compute together."""


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    factors: Factors,
    geometry: Geometry,
    strategy: ConvStrategy | None = None,
) -> Tensor:
    """Apply an adapted convolution in 1, 2 or 3 dimensions, y = W_t * x + b.

    ``x`` is (N, groups·I, *space). All strategies compute the same function; the default is the fastest, see `fastest`.
    """
    strategy = strategy or fastest(x, weight, factors, geometry.groups)
    if strategy == "merged":
        return convolve(x, factors.merged(weight), bias, geometry)
    if geometry.groups != 1:
        raise SettingError(f"strategy 'analytic' needs groups=1, not {geometry.groups}: use 'merged'")
    return analytic(Convolution(geometry), x, weight, bias, factors)


def fastest(x: Tensor, weight: Tensor, factors: Factors, groups: int = 1) -> ConvStrategy:
    """Choose the strategy of `conv` from the shapes and from the gradients that are wanted.

    The rule follows measurements of float32 forward and backward passes on one thread, in layers of 20 to
    256 channels. "merged" costs about as much as training the plain layer:

    - Nothing to learn, x needs no gradient, groups: merged. Nothing is saved by the others.
    - Few products for each number of x and y, as in a 1×1 kernel with few channels: merged. The passes over x and y
      cost as much as the gradient of the weight.
    - Full-kernel, unless k is small beside J: merged. The k filters q cost as much as the gradient they avoid.
    - Otherwise analytic.
    """
    rows, columns = weight.shape[:2]
    few = weight.numel() < FEW_PRODUCTS * (rows + columns)
    full_kernel = factors.q.shape[1] != columns
    filters = 0 if factors.rank <= _free(rows) else -(-factors.rank // BLOCK) * BLOCK
    if (
        not (measured(x) and learns(factors))
        or not x.requires_grad
        or groups != 1
        or few
        or (full_kernel and 4 * filters > rows)
    ):
        return "merged"
    return "analytic"


def _free(rows: int) -> int:
    """How many more filters cost nothing, because they fill up a block."""
    return -rows % BLOCK


class Convolution:
    """y = W * x for x (N, I, *space) and W (J, I, *kernel), without groups."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> tuple[Tensor, Tensor | None]:
        """W_t * x + b, and q * x of a full-kernel residual if its k filters fill up the last block of filters."""
        kernel, (rows, columns), rank = merged(weight, factors), weight.shape[:2], factors.rank
        if factors.q.shape[1] == columns or not 0 < rank <= _free(rows):
            return convolve(x, kernel, bias, self.geometry), None
        wide = kernel.new_zeros(rows + _free(rows), *kernel.shape[1:])
        wide[:rows], wide[rows : rows + rank] = kernel, over_kernel(factors.q, weight)
        both = convolve(x, wide, None, self.geometry)
        y, narrow = both[:, :rows], both[:, rows : rows + rank]
        return y.clone() if bias is None else y + _per_channel(bias, y), narrow.clone()

    def gradients(
        self, g: Tensor, x: Tensor, weight: Tensor, factors: Factors, again: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, p and q."""
        dx = input_gradient(g, x, merged(weight, factors), self.geometry)
        p, q = factors.p, factors.q
        if not factors.rank:
            return dx, torch.zeros_like(p), torch.zeros_like(q)
        if q.shape[1] == weight.shape[1]:
            return dx, *self._kernel_mean(g, x, weight, p, q)
        narrow = convolve(x, over_kernel(q, weight), None, self.geometry) if again is None else again
        return dx, *self._full_kernel(g, x, weight, p, q, narrow)

    def weight_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of W."""
        return kernel_gradient(g, x, weight, self.geometry)

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors) -> Tensor:
        """W_t * x + b."""
        return convolve(x, factors.merged(weight), bias, self.geometry)

    def _kernel_mean(self, g: Tensor, x: Tensor, weight: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """With the window sums h of x: dp = Σ g ⊗ (q h) and dq = Σ (pᵀ g) ⊗ h, which are products with k rows.

        Unless k is small, dB = Σ g ⊗ h takes less time, and dp = dB qᵀ and dq = pᵀ dB follow from it.
        """
        like = as_filters(weight.new_empty(()).expand(weight.shape[:2]), weight)
        (rows, columns), rank = weight.shape[:2], p.shape[1]
        narrow = FEW_COMPONENTS * rank * (rows + columns) <= rows * columns and is_last(g) and is_last(x)
        residual, dp, dq = weight.new_zeros(rows, columns), torch.zeros_like(p.t()), torch.zeros_like(q)
        for u, v in _slices(g, x):
            sums = window_sums(v, weight, self.geometry)
            if narrow:
                flat, h = _as_rows(u), _as_rows(sums)
                dp.addmm_(q @ h.t(), flat)
                dq.addmm_(p.t() @ flat.t(), h)
            else:
                residual += kernel_gradient(u, sums, like, pointwise(weight)).flatten(1)
        return (dp.t(), dq) if narrow else (residual @ q.t(), p.t() @ residual)

    def _full_kernel(
        self, g: Tensor, x: Tensor, weight: Tensor, p: Tensor, q: Tensor, narrow: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual is a convolution with k filters q and then the 1×1 convolution p, and so are its gradients."""
        dp = kernel_gradient(g, narrow, as_filters(p, weight), pointwise(weight)).flatten(1)
        dnarrow = convolve(g, as_filters(p.t(), weight), None, pointwise(weight))
        return dp, kernel_gradient(dnarrow, x, over_kernel(q, weight), self.geometry).flatten(1)


def merged(weight: Tensor, factors: Factors) -> Tensor:
    """W_t in the memory format of W, without another tensor of its size."""
    (r, s, p, q), (rows, columns) = factors.tensors(), weight.shape[:2]
    last = weight.movedim(1, -1)
    if q.shape[1] == columns or not last.is_contiguous():
        return factors.merged(weight)
    positions, width = weight[0, 0].numel(), weight[0].numel()
    by_position = q.view(len(q), columns, positions).mT.reshape(len(q), width)
    kernel = (last.reshape(rows, positions, columns) * s).view(rows, width).mul_(r[:, None]).addmm_(p, by_position)
    return kernel.view(last.shape).movedim(-1, 1)


def _slices(g: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Examples of g and x in parts whose window sums stay in the cache."""
    parts = max(1, x.numel() // SLICE)
    return zip(g.chunk(parts), x.chunk(parts), strict=True)


def _as_rows(x: Tensor) -> Tensor:
    """The channels of every position as a row: (positions, C)."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def _per_channel(vector: Tensor, x: Tensor) -> Tensor:
    """Shape a vector so that it broadcasts along the channels of ``x``."""
    return vector.view(-1, *(1 for _ in x.shape[2:]))
