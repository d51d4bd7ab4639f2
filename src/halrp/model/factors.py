"""The low-rank delta of one weight: `Factors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from halrp.model import kernels


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

    def merged(self, weight: Tensor) -> Tensor:
        """The task's weight r ∘ W ∘ s + p q for a base weight W."""
        return kernels.merge(weight, self.r, self.s, self.p, self.q)


def identity_factors(weight: Tensor) -> Factors:
    """Factors of rank 0 that leave a weight as it is."""
    rows, columns = weight.shape[0], weight.shape[1]
    return Factors(
        torch.ones(rows, device=weight.device, dtype=weight.dtype),
        torch.ones(columns, device=weight.device, dtype=weight.dtype),
        weight.new_zeros(rows, 0),
        weight.new_zeros(0, columns),
    )
