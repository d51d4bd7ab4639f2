"""The leading singular values and right vectors of a sum of matrices that are seen once per pass and not kept.

A gradient over a task's data is a sum over batches, G = Σ_b G_b (J, C), and as large as its weight. A sketch keeps
what the spectrum needs and nothing else, in two passes over the same batches (randomized range finder, Halko et al.
2011):

    first pass    Y = Σ_b G_b Ω      Ω (C, w) gaussian;  Q (J, w) = orthonormal basis of Y
    second pass   B = Σ_b Qᵀ G_b     (w, C);             σ, v = singular values and right vectors of B

The values never exceed the true ones beyond rounding, and they are exact if w ≥ rank G. Otherwise, with k components
wanted and w = k + `OVERSAMPLING`, the expected squared error of Q Qᵀ G is at most (1 + k / (`OVERSAMPLING` − 1)) times
that of the best k components: small where the spectrum decays, as that of a gradient does. A matrix that has fewer
entries than its sketch is summed itself, in the first pass alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

OVERSAMPLING = 16
"""Columns of a sketch beyond the components that are wanted."""


class Spectrum(NamedTuple):
    """What is known of a matrix (J, C) after its sketch."""

    sigma: Tensor
    """(m,) leading singular values, descending."""
    v: Tensor
    """(C, m) their right vectors, the entry of largest magnitude positive."""
    energy: Tensor
    """(,) ‖G‖_F²; of a matrix that was not summed itself, an unbiased estimate from Y, and at least Σσ²."""


class Sketch:
    """The sketch of one matrix: `add` every part, `turn`, `add` every part again, then `spectrum`."""

    def __init__(self, rows: int, columns: int, components: int, like: Tensor, generator: torch.Generator) -> None:
        """Prepare for a matrix (rows, columns); sums have the type and device of `like`, which is float32 at least."""
        self.components = min(components, rows, columns)
        self.width = min(self.components + OVERSAMPLING, rows, columns)
        self.whole = rows * columns <= self.width * (rows + columns)
        self._columns, self._turned = columns, False
        if self.whole:
            self._sum = like.new_zeros(rows, columns)
            return
        # Drawn on the CPU, so that every device has the same numbers.
        self._test = torch.randn(columns, self.width, generator=generator, dtype=torch.float64).to(like)
        self._sum = like.new_zeros(rows, self.width)
        self._energy = like.new_zeros(())

    def add(self, part: Tensor) -> None:
        """Add a part (J, C) of the sum."""
        if self.whole:
            if not self._turned:
                self._sum += part
        elif self._turned:
            self._sum.addmm_(self._test.mT, part)
        else:
            self._sum.addmm_(part, self._test)

    @property
    def sum(self) -> Tensor | None:
        """What this pass has summed, so that sums of several processes can be added; None if it sums nothing."""
        return None if self.whole and self._turned else self._sum

    def turn(self) -> None:
        """End the first pass."""
        self._turned = True
        if not self.whole:
            self._energy = self._sum.square().sum() / self.width
            self._test = torch.linalg.qr(self._sum).Q
            self._sum = self._sum.new_zeros(self.width, self._columns)

    def spectrum(self) -> Spectrum:
        """The leading components, after the second pass."""
        _, sigma, vt = torch.linalg.svd(self._sum, full_matrices=False)
        energy = torch.maximum(self._sum.square().sum() if self.whole else self._energy, sigma.square().sum())
        v = vt[: self.components].mT
        largest = v.gather(0, v.abs().argmax(0, keepdim=True)).squeeze(0)
        return Spectrum(sigma[: self.components], v * torch.where(largest < 0, -1.0, 1.0).to(v.dtype), energy)
