"""The fallback: a weight that is merged at each use, through torch's parametrization.

It is right for every layer that reads its weight: packed attention projections, recurrent weights, tied tables,
transposed convolutions, layers without a rule. It pays for building the merged weight at each use.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp.model.factors import Factors, merge
from halrp.model.layers.registry import Adapted, Decision, LayerRule, hold, layer_rule


class Merged(nn.Module):
    """A parametrization that makes the merged weight from the base weight beside it."""

    def __init__(self, factors: Factors) -> None:
        """Hold the factors."""
        super().__init__()
        hold(self, factors)

    def forward(self, weight: Tensor) -> Tensor:
        """Return r ∘ W ∘ s + p q."""
        held = cast(Adapted, self)
        return merge(weight, held.r, held.s, held.p, held.q)


def adapt_merged(layer: nn.Module, name: str, merged: Merged) -> None:
    """Make a parameter of any layer read as its merged weight."""
    parametrize.register_parametrization(layer, name, merged, unsafe=True)


@layer_rule(parametrize.ParametrizationList)
class ParametrizedRule(LayerRule):
    """Parameters of which the model itself makes a weight, as weight norm does with directions and lengths."""

    def plan(self, layer: nn.Module, leaf: str, parameter: Tensor, tied: bool) -> Decision:
        """The delta is one of the parameter, so it goes through the model's parametrization as training does."""
        decision = super().plan(layer, leaf, parameter, tied)
        if decision.kind != "adapted":
            return decision
        return decision._replace(reason="merged, and then parametrized by the model")


@layer_rule("torch.nn.utils.parametrizations._SpectralNorm")
class SpectralNormRule(LayerRule):
    """Estimates of singular vectors, which every step of training improves."""

    trained_buffers = ("_u", "_v")
