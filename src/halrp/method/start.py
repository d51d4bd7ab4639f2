"""From free weights to a low-rank start: scales, decomposition and allocation over all layers.

Warm-up leaves a weight W^free for each adapted base weight W. Here it becomes r ∘ W ∘ s + p q with a rank for each
layer, or a full copy where that is no dearer. Only tensors go in and out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from halrp.method import allocate, decompose
from halrp.method.budget import Allocation, Budget, FixedCost, LayerOptions
from halrp.method.importance import Curvature
from halrp.method.method import Halrp
from halrp.method.scales import scaled
from halrp.model.costs import weight_costs
from halrp.model.delta import Recovered
from halrp.model.factors import Factors
from halrp.model.size import Size


@dataclass(frozen=True, eq=False)
class Start:
    """Where fine-tuning starts."""

    factors: Mapping[str, Factors]
    owned: Mapping[str, Tensor]
    """Weights owned outright, at their free values."""
    recovered: Mapping[str, Recovered]
    scores: Mapping[str, Tensor]
    """For each weight, the loss that each component was predicted to buy, (components,)."""


class _Layer(NamedTuple):
    """One weight's residual, taken apart."""

    r: Tensor
    s: Tensor
    matrix: Tensor
    u: Tensor
    sigma: Tensor
    v: Tensor
    offer: LayerOptions


@torch.no_grad()
def truncate(
    free: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    importance: Mapping[str, Tensor],
    curvature: Mapping[str, Curvature],
    method: Halrp,
    views: Mapping[str, str],
    fixed: Sequence[FixedCost],
    base_size: Size,
    generator: torch.Generator,
) -> Start:
    """Replace free weights by scales and the components that the method's allocation keeps.

    `views` says for each weight how its residual becomes a matrix, "mean" or "full".
    """
    limits = _affordable(method, base, views, base_size)
    layers = {
        name: _take_apart(
            free[name], base[name], importance[name], curvature.get(name), method, views[name], limits.get(name)
        )
        for name in free
    }
    allocation = _allocate(layers, method, fixed, base_size)
    return Start(
        {name: _factors(layers[name], rank, method, generator) for name, rank in allocation.ranks.items()},
        {name: free[name].clone() for name in free if name in allocation.owned},
        {name: _recovered(layer, importance[name], allocation.ranks.get(name)) for name, layer in layers.items()},
        {name: layer.offer.scores for name, layer in layers.items()},
    )


def _affordable(method: Halrp, base: Mapping[str, Tensor], views: Mapping[str, str], base_size: Size) -> dict[str, int]:
    """The most components of each weight that a budget could pay for, so that large spectra need not be complete."""
    if not isinstance(method.allocate, Budget):
        return {}
    limit, most = method.allocate.limit(base_size), {}
    for name, weight in base.items():
        matrix = decompose.matrix(weight, views[name])
        most[name] = min(*matrix.shape, max(1, limit // _prices(method, weight, matrix)[0]))
    return most


def _prices(method: Halrp, weight: Tensor, matrix: Tensor) -> tuple[int, int, int]:
    """What a component, the scales, and the whole weight cost in the unit of the method's budget."""
    costs = weight_costs(weight.shape, matrix.shape[1], method.precision, weight.element_size())
    in_bytes = isinstance(method.allocate, Budget) and method.allocate.in_bytes
    component, scales, dense = (size.bytes if in_bytes else size.parameters for size in costs)
    return component, scales, dense


def _take_apart(
    free: Tensor,
    base: Tensor,
    importance: Tensor,
    curvature: Curvature | None,
    method: Halrp,
    view: str,
    limit: int | None,
) -> _Layer:
    r, s = method.scales(free, base)
    residual = free - scaled(base, r, s)
    matrix = decompose.matrix(residual, view)
    whitens = isinstance(method.decompose, decompose.Whitened)
    curvature = curvature.for_view(view, matrix.shape[1]) if curvature is not None and whitens else None
    u, sigma, v = method.decompose(matrix, curvature, limit)
    kernel = residual.numel() // matrix.numel()
    repeats = kernel if method.importance.counts_kernel else 1
    if curvature is None:
        scores = importance * repeats * sigma.square()
        rest = importance * (residual.square().sum() - kernel * sigma.square().sum()).clamp(min=0)
    else:  # the squared whitened spectrum is the predicted loss itself; what the view left out has a scalar one
        scores = sigma.square()
        left_out = residual.square().sum() - kernel * matrix.square().sum()
        tail = _cost(matrix, curvature, method) - scores.sum()
        rest = importance * left_out.clamp(min=0) + tail.clamp(min=0)
    component, scales, weight = _prices(method, base, matrix)
    may_own = kernel == 1  # a kernel's mean keeps to the form of the view
    offer = LayerOptions(scores, component, scales, weight, rest, may_own)
    return _Layer(r, s, matrix, u, sigma, v, offer)


def _cost(matrix: Tensor, curvature: Curvature, method: Halrp) -> Tensor:
    """The predicted loss of dropping a whole matrix B, tr(G B A Bᵀ), with the moments damped as for its spectrum."""
    damping = method.decompose.damping if isinstance(method.decompose, decompose.Whitened) else 0.0
    A, G = (decompose.damped(moment, damping) for moment in curvature)
    return ((G @ matrix @ A) * matrix).sum()


def _allocate(layers: Mapping[str, _Layer], method: Halrp, fixed: Sequence[FixedCost], base_size: Size) -> Allocation:
    if isinstance(method.allocate, Budget):
        return method.allocate.allocate({name: layer.offer for name, layer in layers.items()}, fixed, base_size)
    return Allocation(method.allocate({name: layer.offer.scores for name, layer in layers.items()}))


def _factors(layer: _Layer, rank: int, method: Halrp, generator: torch.Generator) -> Factors:
    if method.initial == "random":
        p, q = decompose.random_factors(layer.matrix, rank, generator)
        return Factors(torch.ones_like(layer.r), torch.ones_like(layer.s), p, q)
    u, sigma, v = layer.u, layer.sigma, layer.v
    if method.initial == "random components":
        kept = allocate.random_components(len(sigma), rank, generator).to(sigma.device)
        u, sigma, v = u[:, kept], sigma[kept], v[:, kept]
    return Factors(layer.r, layer.s, *decompose.factors(u, sigma, v, rank))


def _recovered(layer: _Layer, importance: Tensor, rank: int | None) -> Recovered:
    total = float(layer.offer.scores.sum() + layer.offer.rest)
    kept = total if rank is None else float(layer.offer.scores[:rank].sum())
    return Recovered(float(importance), total, min(1.0, kept / total) if total > 0 else 1.0)
