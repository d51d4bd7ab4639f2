"""Ridge regression onto one-hot targets, for a task alone and for a stream of tasks.

With features F (n, d), centred, and targets Y, the weights are W = (FᵀF + λ n I)⁻¹ FᵀY, in float64. All λ of a grid
share one singular value decomposition F = U S Vᵀ: W(λ) = V S (S² + λ n)⁻¹ Uᵀ Y.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halrp.lab.streams import Split

PENALTIES = tuple(10.0**power for power in range(-8, 3))
"""Values of λ, in units of the mean square of a feature."""


def fitted(train: Split, val: Split, classes: int) -> dict[str, Tensor]:
    """Weight (classes, d) and bias (classes,) of the λ with the best accuracy on validation data, then least error."""
    x, centre = _centred(train.x)
    y = nn.functional.one_hot(train.y, classes).double()
    offset = y.mean(0)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    unit = float(s.square().sum()) / x.shape[1]
    projected = u.T @ (y - offset)
    heads = [vh.T @ ((s / (s.square() + penalty * unit)).unsqueeze(1) * projected) for penalty in PENALTIES]
    held, targets = val.x.double() - centre, nn.functional.one_hot(val.y, classes).double()

    def rank(head: Tensor) -> tuple[float, float]:
        outputs = held @ head + offset
        right = float((outputs.argmax(1) == val.y).double().mean())
        return right, -float((outputs - targets).square().mean())

    best = max(heads, key=rank)
    return {"weight": best.T.float().contiguous(), "bias": (offset - centre @ best).float()}


def _centred(x: Tensor) -> tuple[Tensor, Tensor]:
    centre = x.double().mean(0)
    return x.double() - centre, centre


class Moments:
    """Sums over all examples of a stream, from which one ridge regression for all classes follows."""

    def __init__(self, width: int, device: torch.device) -> None:
        """Begin without an example; a constant feature stands for the bias."""
        self.gram = torch.zeros(width + 1, width + 1, dtype=torch.float64, device=device)
        self.cross = torch.zeros(width + 1, 0, dtype=torch.float64, device=device)

    def add(self, data: Split, classes: int) -> None:
        """Add examples of new classes."""
        x = torch.cat([data.x.double(), data.x.new_ones(len(data.x), 1, dtype=torch.float64)], 1)
        self.gram += x.T @ x
        self.cross = torch.cat([self.cross, x.T @ nn.functional.one_hot(data.y, classes).double()], 1)

    def solved(self, penalty: float) -> Tensor:
        """Weights (classes, d + 1) of all classes so far; λ is in units of the mean square of a feature."""
        size = len(self.gram) - 1
        scale = penalty * float(self.gram.diagonal()[:size].mean())
        ridge = torch.full((size + 1,), scale, dtype=torch.float64, device=self.gram.device)
        ridge[-1] = 1e-8 * max(scale, 1e-8)  # the bias is free
        solution: Tensor = torch.linalg.solve(self.gram + ridge.diag(), self.cross)
        return solution.T
