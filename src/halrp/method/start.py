"""From free weights to a low-rank start: scales, decomposition and allocation over all layers.

Warm-up leaves a weight W^free for each adapted base weight W. Here it becomes r ∘ W ∘ s + p q with a rank for each
layer, or a dense copy where that costs no more. Only tensors go in and out. Weights in half precision are decomposed in
float32, and their factors rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from halrp.errors import DivergedError
from halrp.method import allocate, decompose
from halrp.method.importance import Curvature, Sensitivity, at_least_float32
from halrp.method.method import Halrp
from halrp.method.protocols import LayerOptions, TaskCosts
from halrp.method.scales import scaled
from halrp.model.costs import weight_costs
from halrp.model.delta import Recovered
from halrp.model.factors import Factors
from halrp.model.size import Size


@dataclass(frozen=True, eq=False)
class Start:
    """Where fine-tuning starts."""

    factors: Mapping[str, Factors]
    dense: Mapping[str, Tensor]
    """Weights that are stored densely, at their free values."""
    recovered: Mapping[str, Recovered]
    scores: Mapping[str, Tensor]
    """For each weight, the predicted loss that each component recovers, (components,)."""


class _Layer(NamedTuple):
    """The decomposed residual of one weight, and what an allocation may choose for it."""

    r: Tensor
    s: Tensor
    matrix: Tensor
    u: Tensor
    sigma: Tensor
    v: Tensor
    options: LayerOptions


class _Prices(NamedTuple):
    """What parts of one weight cost in the unit of the method's allocation."""

    component: int
    scales: int
    weight: int


@torch.no_grad()
def low_rank_start(
    free: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    sensitivity: Sensitivity,
    method: Halrp,
    views: Mapping[str, str],
    costs: TaskCosts,
    base_size: Size,
    generator: torch.Generator,
) -> Start:
    """Replace free weights by scales and the components that the method's allocation chooses.

    `views` gives for each weight how its residual becomes a matrix, "mean" or "full".
    """
    importance, limit = sensitivity.importance, method.allocate.limit(base_size)
    layers = {
        name: _decomposed(
            free[name], base[name], importance[name], sensitivity.curvature.get(name), method, views[name], limit
        )
        for name in free
    }
    allocation = method.allocate.allocate({name: layer.options for name, layer in layers.items()}, costs, base_size)
    return Start(
        {
            name: _factors(layers[name], rank, method, generator).map(partial(torch.Tensor.to, dtype=free[name].dtype))
            for name, rank in allocation.ranks.items()
        },
        {name: free[name].clone() for name in free if name in allocation.dense},
        {name: _recovered(layer, importance[name], allocation.ranks.get(name)) for name, layer in layers.items()},
        {name: layer.options.scores for name, layer in layers.items()},
    )


def _decomposed(
    free: Tensor,
    base: Tensor,
    importance: Tensor,
    curvature: Curvature | None,
    method: Halrp,
    view: str,
    limit: int | None,
) -> _Layer:
    element = base.element_size()
    free, base = at_least_float32(free), at_least_float32(base)
    r, s = method.scales(free, base)
    residual = free - scaled(base, r, s)
    matrix = decompose.matrix(residual, view)
    prices = _prices(method, base.shape, matrix, element)
    # Components that no budget pays for need not be computed, which spares most of a large spectrum.
    most = None if limit is None else min(*matrix.shape, max(1, limit // prices.component))
    if curvature is not None:
        curvature = curvature.for_view(view, matrix.shape[1]) if method.decompose.needs_curvature else None
    u, sigma, v = method.decompose(matrix, curvature, most)
    kernel = residual.numel() // matrix.numel()
    if curvature is None:
        repeats = kernel if method.importance.counts_kernel else 1
        scores = importance * repeats * sigma.square()
        rest = importance * (residual.square().sum() - kernel * sigma.square().sum()).clamp(min=0)
    else:  # sigma² is the predicted loss itself; the curvature does not predict that of what the view left out
        scores = sigma.square()
        left_out = residual.square().sum() - kernel * matrix.square().sum()
        tail = method.decompose.dropped_loss(matrix, curvature) - scores.sum()
        rest = importance * left_out.clamp(min=0) + tail.clamp(min=0)
    if not bool(scores.isfinite().all() & rest.isfinite()):
        raise DivergedError(
            f"the residual of a weight of shape {tuple(free.shape)} is so large that its predicted loss is not finite; "
            "lower the learning rate of the warm-up"
        )
    may_be_dense = kernel == 1  # a kernel's mean keeps to the form of the view
    return _Layer(r, s, matrix, u, sigma, v, LayerOptions(scores, *prices, rest, may_be_dense))


def _prices(method: Halrp, shape: tuple[int, ...], matrix: Tensor, element: int) -> _Prices:
    costs = weight_costs(shape, matrix.shape[1], method.precision, element)
    return _Prices(*(method.allocate.price(size) for size in costs))


def _factors(layer: _Layer, rank: int, method: Halrp, generator: torch.Generator) -> Factors:
    if method.initial == "random":
        p, q = decompose.random_factors(layer.matrix, rank, generator)
        return Factors(torch.ones_like(layer.r), torch.ones_like(layer.s), p, q)
    u, sigma, v = layer.u, layer.sigma, layer.v
    if method.initial == "random components":
        chosen = allocate.random_components(len(sigma), rank, generator).to(sigma.device)
        u, sigma, v = u[:, chosen], sigma[chosen], v[:, chosen]
    return Factors(layer.r, layer.s, *decompose.factors(u, sigma, v, rank))


def _recovered(layer: _Layer, importance: Tensor, rank: int | None) -> Recovered:
    scores, rest = layer.options.scores, layer.options.rest
    total = float(scores.sum() + rest)
    recovered = total if rank is None else float(scores[:rank].sum())
    return Recovered(float(importance), total, min(1.0, recovered / total) if total > 0 else 1.0)
