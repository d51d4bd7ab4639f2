"""Layer rules: how an adapted layer computes, one small class per layer type.

An adapted weight is W_t = r ∘ W ∘ s + p q, where W (J, I, *kernel) is the frozen base. A rule turns a layer in place
into its adapted form: same attributes, same hooks, still an instance of its old class, but `forward` uses the
factors and never asks for the gradient of W. Its `weight` is a property that gives the merged weight, so code that
reads `layer.weight` instead of calling the layer stays right.

Parameters for which no rule is registered (packed attention projections, recurrent weights, embeddings, transposed
convolutions, user layers) go through torch's own parametrization with `Merged`, which is right for every layer that
reads its weight, and pays for building the merged weight at each use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp.model import kernels
from halrp.model.factors import Factors

_RULES: dict[type[nn.Module], type[nn.Module]] = {}
Rule = TypeVar("Rule", bound=type[nn.Module])


def layer_rule(layer: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the adapted form of a layer type whose weight is its parameter `weight`.

    The decorated class derives from `Adapted` and from the layer's type, and defines `forward`. A rule holds for
    exactly this type: a subclass may compute something else and falls back to the merged weight.
    """

    def register(rule: Rule) -> Rule:
        _RULES[layer] = rule
        return rule

    return register


def rule_for(layer: nn.Module) -> type[nn.Module] | None:
    """The registered adapted form of a layer, or None."""
    return _RULES.get(type(layer))


class Adapted(nn.Module):
    """What all adapted forms share: the frozen base weight and the factors."""

    base_weight: Tensor
    r: Tensor
    s: Tensor
    p: Tensor
    q: Tensor

    @property
    def weight(self) -> Tensor:
        """The merged weight W_t, computed at each access."""
        return kernels.merge(self.base_weight, self.r, self.s, self.p, self.q)

    def extra_repr(self) -> str:
        """Add the rank to the layer's own description."""
        return f"{super().extra_repr()}, rank={self.p.shape[1]}"


def adapt(layer: nn.Module, factors: Factors) -> None:
    """Turn a layer in place into its registered adapted form. The factors' tensors are used as they are."""
    weight = cast(Tensor, layer._parameters.pop("weight"))
    layer.__class__ = _RULES[type(layer)]
    layer.register_buffer("base_weight", weight.detach(), persistent=False)
    _hold(layer, factors)


class Merged(nn.Module):
    """A parametrization that makes the merged weight of the base weight stored beside it."""

    def __init__(self, factors: Factors) -> None:
        """Hold the factors."""
        super().__init__()
        _hold(self, factors)

    def forward(self, weight: Tensor) -> Tensor:
        """Return r ∘ W ∘ s + p q."""
        own = cast(Adapted, self)
        return kernels.merge(weight, own.r, own.s, own.p, own.q)


def adapt_merged(layer: nn.Module, name: str, merged: Merged) -> None:
    """Make a parameter of any layer read as its merged weight."""
    parametrize.register_parametrization(layer, name, merged, unsafe=True)


def _hold(module: nn.Module, factors: Factors) -> None:
    for name, tensor in zip("rspq", factors.tensors(), strict=True):
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)


@layer_rule(nn.Linear)
class AdaptedLinear(Adapted, nn.Linear):  # type: ignore[override]
    """y = r ∘ (W (s ∘ x)) + p (q x) + b."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the factored layer to x (..., I)."""
        return kernels.linear(x, self.base_weight, self.bias, self.r, self.s, self.p, self.q)


class AdaptedConv(Adapted):
    """y = conv(x; r ∘ W ∘ s + p q) + b, by the strategy that is fastest for the shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (N, C, *space), or to one unbatched example (C, *space)."""
        layer = cast(Any, self)
        dims = self.base_weight.dim() - 2
        batched = x if x.dim() == dims + 2 else x.unsqueeze(0)
        if layer.padding_mode != "zeros":
            batched = F.pad(batched, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            padding = (0,) * dims
        elif layer.padding == "valid":
            padding = (0,) * dims
        elif layer.padding == "same":
            batched, padding = same_padding(batched, layer.kernel_size, layer.dilation)
        else:
            padding = layer.padding
        y = kernels.conv(
            batched,
            self.base_weight,
            layer.bias,
            self.r,
            self.s,
            self.p,
            self.q,
            layer.stride,
            padding,
            layer.dilation,
            layer.groups,
        )
        return y if batched.dim() == x.dim() else y.squeeze(0)


def same_padding(x: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Resolve padding "same": symmetric where it can be, the odd row or column added at the end."""
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    odd = [t % 2 for t in total]
    if any(odd):
        x = F.pad(x, [side for extra in reversed(odd) for side in (0, extra)])
    return x, tuple(t // 2 for t in total)


@layer_rule(nn.Conv1d)
class AdaptedConv1d(AdaptedConv, nn.Conv1d):  # type: ignore[override]
    """An adapted one-dimensional convolution."""


@layer_rule(nn.Conv2d)
class AdaptedConv2d(AdaptedConv, nn.Conv2d):  # type: ignore[override]
    """An adapted two-dimensional convolution."""


@layer_rule(nn.Conv3d)
class AdaptedConv3d(AdaptedConv, nn.Conv3d):  # type: ignore[override]
    """An adapted three-dimensional convolution."""
