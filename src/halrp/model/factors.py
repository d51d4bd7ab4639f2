"""The low-rank delta of one weight, and the weight that it makes.

A task's weight is the frozen base weight, scaled by rows and columns, plus a low-rank residual:

    W_t = r ∘ W ∘ s + B,   B = p q

with W of shape (J, I, *kernel), r (J,), s (I,), p (J, k) and a q whose width names the view of the residual. With
width I ("kernel-mean") B[j, i] is added at every kernel position; with width I·∏kernel ("full-kernel") every position
has its own entry. The rank k may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from halrp.errors import SettingError


@dataclass(frozen=True, eq=False)
class Factors:
    """The delta of one adapted weight (J, I, *kernel): r (J,), s (I,), p (J, k), q (k, I) or (k, I·K)."""

    r: Tensor
    s: Tensor
    p: Tensor
    q: Tensor

    @property
    def rank(self) -> int:
        """The number of components."""
        return self.p.shape[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Factors:
        """Apply a function to each of the four tensors."""
        return Factors(change(self.r), change(self.s), change(self.p), change(self.q))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors in the order r, s, p, q."""
        return self.r, self.s, self.p, self.q

    def transposed(self) -> Factors:
        """The delta of the transposed weight (I, J)."""
        return Factors(self.s, self.r, self.q.mT, self.p.mT)

    def merged(self, weight: Tensor) -> Tensor:
        """The task's weight W_t for a base weight W."""
        return merge(weight, self.r, self.s, self.p, self.q)


def identity_factors(weight: Tensor) -> Factors:
    """Factors of rank 0 that leave a weight as it is."""
    rows, columns = weight.shape[0], weight.shape[1]
    return Factors(
        torch.ones(rows, device=weight.device, dtype=weight.dtype),
        torch.ones(columns, device=weight.device, dtype=weight.dtype),
        weight.new_zeros(rows, 0),
        weight.new_zeros(0, columns),
    )


def merge(weight: Tensor, r: Tensor, s: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the task's weight W_t = r ∘ W ∘ s + p q, shaped like `weight`, differentiable in r, s, p, q.

    It is built in the precision of the factors also under autocast, so that a small residual survives.
    """
    device = weight.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return merge(weight, r, s, p, q)
    scales = over_kernel(torch.outer(r, s), weight)
    return torch.addcmul(over_kernel(p @ q, weight), weight, scales)


def over_kernel(matrix: Tensor, weight: Tensor) -> Tensor:
    """Shape a matrix over (I,) or (I·∏kernel,) columns so that it broadcasts against rows of `weight`."""
    _, columns, *kernel = weight.shape
    width = matrix.shape[1]
    if width == columns:
        return as_filters(matrix, weight)
    if width == columns * math.prod(kernel):
        return matrix.view(-1, columns, *kernel)
    raise SettingError(
        f"q has {width} columns, but a weight of shape {tuple(weight.shape)} needs {columns} "
        f"(kernel-mean view) or {columns * math.prod(kernel)} (full-kernel view)."
    )


def as_filters(matrix: Tensor, weight: Tensor) -> Tensor:
    """Shape a matrix as the kernel of a 1×1 convolution with as many dimensions as `weight`."""
    return matrix.reshape(*matrix.shape, *(1 for _ in weight.shape[2:]))
