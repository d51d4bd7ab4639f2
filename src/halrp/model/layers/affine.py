"""What linear layers and convolutions share: they compute f(W x + b), where f treats rows independently.

A user's layer of that form derives its adapted form from `LinearFamily` or `ConvFamily`, writes f as `finish`, and has
everything else: forward pass, mixed form, moments and costs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from halrp.model.layers.registry import Adapted, LayerRule


class AffineFamily(Adapted):
    """The adapted form of a layer that computes f(W x + b)."""

    def finish(self, y: Tensor) -> Tensor:
        """The layer's output from y = W x + b. It must treat rows independently and may read what tasks share."""
        return y


class AffineRule(LayerRule):
    """The rule of a layer that computes f(W x + b)."""

    def affine(self, layer: nn.Module, x: Tensor) -> Tensor:
        """W x + b with the layer's weight and bias as they are."""
        raise NotImplementedError

    def finish_of(self, layer: nn.Module) -> Callable[[Tensor], Tensor] | None:
        """The function f of a layer, or None if the layer is W x + b itself."""
        finish: Any = getattr(self.adapted, "finish", AffineFamily.finish)
        return None if finish is AffineFamily.finish else partial(finish, layer)

    def observed(self, layer: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """W x + b, and the output as a function of it."""
        finish = self.finish_of(layer)
        if finish is None:
            return output, output
        y = self.affine(layer, x)
        return y, finish(y)
