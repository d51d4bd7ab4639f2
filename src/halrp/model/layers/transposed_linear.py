"""Linear layers with a transposed weight, y = x W + b for W (I, J): `Conv1D` of transformers, as in GPT-2.

A delta of W is the delta of a linear layer's weight with rows and columns exchanged, so everything is that layer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model import kernels
from halrp.model.factors import Factors
from halrp.model.layers.affine import AffineFamily
from halrp.model.layers.linear import LinearRule, MixedLinear
from halrp.model.layers.registry import layer_rule
from halrp.model.layers.stacks import LayerTasks


class TransposedLinearRule(LinearRule):
    """A layer with a weight (I, J) and perhaps a bias (J,)."""

    inputs_first = True

    def mixed(self, tasks: LayerTasks) -> Callable[..., Any]:
        """One product with W for all rows."""
        tasks.require_only("weight", "bias")
        weights = tasks.weights(transposed=True)
        return MixedLinear(tasks.path, weights, tasks.stack("bias"), self.finish_of(tasks.layer))

    def affine(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The product x W + b."""
        return F.linear(x, cast(Tensor, layer.weight).mT, getattr(layer, "bias", None))


@layer_rule("transformers.pytorch_utils.Conv1D")
class TransposedLinearFamily(AffineFamily):
    """y = f(((x ∘ r) W) ∘ s + (x p) q + b)."""

    _rule = TransposedLinearRule

    def forward(self, x: Tensor) -> Tensor:
        """Apply the factored layer to x (..., I)."""
        factors = Factors(self.r, self.s, self.p, self.q).transposed()
        return self.finish(kernels.linear(x, self.base_weight.mT, getattr(self, "bias", None), *factors.tensors()))
