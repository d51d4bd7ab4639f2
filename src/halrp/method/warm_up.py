"""A start from a warm-up: scales, decomposition and allocation of where a freely trained copy of the base went.

This is the first half of the paper's Algorithm 1. Warm-up leaves a weight W^free for each adapted base weight W, which
`low_rank_start` turns into r ∘ W ∘ s + p q with a rank for each layer, or a dense copy where that costs no more. It
needs the memory of training the whole network. Weights in half precision are decomposed in float32, and their factors
rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DivergedError
from halrp.method import allocate, decompose
from halrp.method.importance import Curvature, Sensitivity, at_least_float32, measure
from halrp.method.method import Halrp, StartRule
from halrp.method.protocols import LayerOptions, TaskCosts
from halrp.method.scales import scaled
from halrp.method.start import Start, Starts, prices
from halrp.method.task_costs import Costs
from halrp.model.base import Base
from halrp.model.codec import Precision
from halrp.model.commit_check import CommitCheck
from halrp.model.delta import Recovered
from halrp.model.factors import Factors
from halrp.model.size import Size
from halrp.training.groups import Group, by_kind, by_role
from halrp.training.run import TaskRun
from halrp.training.shared_data import whole


@dataclass(frozen=True)
class WarmUp(StartRule):
    """Choose the paper's start: a free warm-up of the whole network, decomposed."""

    def __call__(
        self,
        base: Base,
        method: Halrp,
        run: TaskRun,
        check: CommitCheck,
        costs: Costs,
    ) -> Starts:
        """Return where fine-tuning starts, by view, and what the task owns in any case."""
        # Warm up: train a copy of the base freely, to see where the task wants to go.
        net = base.trainable(run.data.width, *run.seed_key)
        everything = Group([parameter for parameter in net.parameters() if parameter.requires_grad])
        adapted = base.adapted_weights()
        groups = by_kind([everything], by_role(base.plan, net.named_parameters()), run.recipe)
        training = run.training("warm-up", net, groups, method.warm_up, is_final=False).run()
        check.gradients({n: p for n, p in net.named_parameters() if n in adapted}, training.without_gradient)
        return starts_at(net, base, method, run, costs)


def starts_at(net: nn.Module, base: Base, method: Halrp, run: TaskRun, costs: Costs) -> Starts:
    """Where fine-tuning starts if the task wants to go where a freely trained network went."""
    data, weights = run.data, base.adapted_weights()
    free = {n: p for n, p in net.named_parameters() if n in weights}
    # Importance: what an error in each free weight costs.
    held_out = whole(data.train) if data.val is None else data.val
    with seeding.isolated(*run.seed_key, "importance", device=base.device):  # a loader may draw its order
        sensitivity = measure(
            method.importance, method.decompose.needs_curvature, net, free, held_out, run.recipe.batch
        )
    if run.processes is not None:  # each has measured all that it can read
        factors = [part for curvature in sensitivity.curvature.values() for part in curvature]
        run.processes.take_first([*sensitivity.importance.values(), *factors], "importance")
    # Scales, decomposition, allocation: one start for each view of convolutions that is tried.
    owned, base_size = base.owned_tensors(net), Size(base.parameter_count, base.size.bytes)
    kernels = {n: base.plan.parameters[n].kernel for n in free}
    scales = {slot.name: method.allocate.price(costs.scales(slot)) for slot in base.layout.adapted}
    starts = {
        view: low_rank_start(
            {n: p.detach() for n, p in free.items()},
            weights,
            sensitivity,
            method,
            {n: view if kernel else "full" for n, kernel in kernels.items()},
            costs(owned, view),
            base_size,
            seeding.generator(*run.seed_key, "truncate", view),
            scales,
        )
        for view in method.views(any(kernels.values()), data.val is not None)
    }
    if method.rest != "float32":
        plain = {f"plain/{name}": costs.owned_precision(name) for name in owned}
        starts = {view: _by_parts(start, method, plain) for view, start in starts.items()}
    return Starts(starts, owned)


def _by_parts(start: Start, method: Halrp, plain: Mapping[str, Precision]) -> Start:
    """A start that stores all that a task owns, and both scales of its weights, in the method's precision of these."""
    return replace(start, parts={**plain, **{f"{side}/{name}": method.rest for name in start.factors for side in "rs"}})


class _Layer(NamedTuple):
    """The decomposed residual of one weight, and what an allocation may choose for it."""

    r: Tensor
    s: Tensor
    matrix: Tensor
    u: Tensor
    sigma: Tensor
    v: Tensor
    options: LayerOptions


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
    scales: Mapping[str, int] | None = None,
) -> Start:
    """Replace free weights by scales and the components that the method's allocation chooses.

    `views` gives for each weight how its residual becomes a matrix, "mean" or "full", `scales` what r and s cost, if
    that is not their price in the type of the weight.
    """
    importance, limit = sensitivity.importance, method.allocate.limit(base_size)
    layers = {
        name: _decomposed(
            free[name],
            base[name],
            importance[name],
            sensitivity.curvature.get(name),
            method,
            views[name],
            limit,
            None if scales is None else scales[name],
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
    scales: int | None,
) -> _Layer:
    element = base.element_size()
    free, base = at_least_float32(free), at_least_float32(base)
    r, s = method.scales(free, base)
    residual = free - scaled(base, r, s)
    matrix = decompose.matrix(residual, view)
    price = prices(method.allocate, method.precision, base.shape, matrix.shape[1], element)
    price = price if scales is None else price._replace(scales=scales)
    # Components that no budget pays for need not be computed, which spares most of a large spectrum.
    most = None if limit is None else min(*matrix.shape, max(1, limit // price.component))
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
    return _Layer(r, s, matrix, u, sigma, v, LayerOptions(scores, *price, rest, may_be_dense))


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
