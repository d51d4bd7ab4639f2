"""From scores to a rank per layer.

`scores[l][i]` is the predicted loss that component i of layer l recovers: importance of the layer times the squared
singular value. A rank keeps the leading components of a layer, so every rule here selects a prefix in each layer.

`by_loss_rate` is the paper's Eq. 11: the fewest components, over all layers together, that recover a share α
of the loss. `by_budget` maximises what a fixed budget recovers. `flat` ignores the scores.

Ranks are Python integers and decide the shapes of what follows, so the pooled scores are brought to the host once,
in float64; nothing here is worth a device.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halrp.errors import SettingError
from halrp.method.protocols import Allocation, Allocator, LayerOptions, TaskCosts

if TYPE_CHECKING:
    from halrp.model.size import Size

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def by_loss_rate(scores: Mapping[str, Tensor], rate: float, strict: bool = False) -> dict[str, int]:
    """Choose the fewest components whose scores reach the share `rate` of all scores (paper Eq. 11).

    All components are pooled and sorted by score, descending; the shortest prefix with share ≥ rate is kept, or with
    share > rate if `strict`, as in the authors' released code. Where scores do not descend inside a layer, a component
    ranks no higher than those before it. Ties go to the layer named first, then to the lower component. Components
    with a score of zero are never chosen, not even by rate 1; if all are zero, every rank is 0.
    """
    _check_rate(rate)
    layers = _on_host(scores)
    if not any(layer.any() for layer in layers.values()):
        return dict.fromkeys(layers, 0)
    pooled = np.concatenate(list(layers.values()))
    ceilings = np.concatenate([np.minimum.accumulate(layer) for layer in layers.values()])
    order = np.argsort(-ceilings, kind="stable")
    descending = pooled[order]
    useful = int(np.flatnonzero(descending)[-1]) + 1
    if rate == 1:
        count = useful  # the cumulative share may round to 1 before the smallest scores
    else:
        recovered = np.cumsum(descending)
        share = recovered / recovered[-1]
        count = min(int(np.searchsorted(share, rate, side="right" if strict else "left")) + 1, useful)
    owner = np.repeat(np.arange(len(layers)), [len(layer) for layer in layers.values()])
    ranks = np.bincount(owner[order[:count]], minlength=len(layers))
    return dict(zip(layers, ranks.tolist(), strict=True))


def by_budget(scores: Mapping[str, Tensor], cost: Mapping[str, int | Tensor], budget: int) -> dict[str, int]:
    """Choose the ranks with the highest total score for a total cost of at most `budget`.

    `cost[l]` is the cost of one component of layer l, or a 1-D integer tensor with the cost of each successive one.

    Each layer is a curve of cumulative score over cumulative cost. Its upper concave envelope joins components into
    segments whose score per cost never rises, so a poor step before a very good one (the last, which stores a layer
    densely) is weighed together with it. Segments are taken by score per cost, ties to the layer named first. When a
    segment does not fit, that layer's curve is cut to what the rest of the budget allows and its envelope is computed
    again, until nothing fits. The result is short of the optimum by less than one segment, which is one component
    where score per cost descends, and it is the optimum where moreover all costs are equal to 1.
    """
    if budget < 0:
        raise SettingError(f"budget is {budget}; give a budget of at least 0")
    curves = _curves(_on_host(scores), cost)
    envelopes = [_envelope(*curve) for curve in curves]
    taken = _take_all_that_fit_in_order(envelopes, budget)
    ranks = [int(each.lengths[:count].sum()) for each, count in zip(envelopes, taken, strict=True)]
    spent = sum(int(each.costs[:count].sum()) for each, count in zip(envelopes, taken, strict=True))
    rest = [each.after(count) for each, count in zip(envelopes, taken, strict=True)]
    _fill(ranks, rest, curves, budget - spent)
    return dict(zip(scores, ranks, strict=True))


def flat(limits: Mapping[str, int], rank: int) -> dict[str, int]:
    """Give every layer the same rank, or its limit if that is lower: the paper's "LRP" ablation."""
    if rank < 0:
        raise SettingError(f"rank is {rank}; give a rank of at least 0")
    return {layer: min(rank, limit) for layer, limit in limits.items()}


def random_components(count: int, rank: int, generator: torch.Generator) -> Tensor:
    """Draw which `rank` of `count` components to keep, as sorted indices: a "Random LRP" ablation."""
    if not 0 <= rank <= count:
        raise SettingError(f"rank is {rank}; of {count} components 0 to {count} can be kept")
    shuffled = torch.randperm(count, generator=generator, device=generator.device)
    return shuffled[:rank].sort().values


class RankRule(Allocator):
    """An allocation by scores alone, without a budget: a subclass returns the rank of every layer when called."""

    def __call__(self, scores: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the rank of every layer, for the scores of its components."""
        raise NotImplementedError

    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size, /) -> Allocation:
        """Give every weight its rank; none is stored densely."""
        return Allocation(self({name: layer.scores for name, layer in options.items()}))


@dataclass(frozen=True)
class LossRate(RankRule):
    """Choose ranks by the paper's loss-approximation rate, `by_loss_rate`, within bounds."""

    rate: float = 0.9
    """Share α of the predicted loss that the chosen components must recover."""
    strict: bool = False
    """Whether the share must exceed the rate, as in the released code, or reach it, as in the paper."""
    floor: int = 0
    """Lowest rank of a layer (the released code has 1); a layer with fewer components keeps them all."""
    cap: int | None = None
    """Highest rank of a layer (the released code has 100); None for no bound."""

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if self.floor < 0 or (self.cap is not None and self.cap < self.floor):
            raise SettingError(
                f"LossRate has floor {self.floor} and cap {self.cap}; give 0 <= floor <= cap, or cap None"
            )

    def __call__(self, scores: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the rank of every layer."""
        ranks = by_loss_rate(scores, self.rate, self.strict)
        return {layer: self._bounded(rank, len(scores[layer])) for layer, rank in ranks.items()}

    def _bounded(self, rank: int, components: int) -> int:
        cap = components if self.cap is None else min(self.cap, components)
        return min(max(rank, self.floor), cap)


@dataclass(frozen=True)
class Flat(RankRule):
    """Choose the same rank for every layer, `flat`."""

    rank: int = 100
    """The rank; a layer with fewer components keeps them all."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise SettingError(f"Flat.rank is {self.rank}; give a rank of at least 0")

    def __call__(self, scores: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the rank of every layer."""
        return flat({layer: len(values) for layer, values in scores.items()}, self.rank)


@dataclass(frozen=True)
class _Segments:
    """Consecutive stretches of a layer's components: how many, what they score and what they cost."""

    lengths: Integers
    scores: Floats
    costs: Integers

    def after(self, count: int) -> _Segments:
        """Return what remains when the first `count` segments are taken."""
        return _Segments(self.lengths[count:], self.scores[count:], self.costs[count:])

    def slopes(self) -> Floats:
        """Return score per cost; made monotone, because division may round a tie the wrong way."""
        with np.errstate(divide="ignore"):
            return np.minimum.accumulate(self.scores / self.costs)


def _envelope(scores: Floats, costs: Integers) -> _Segments:
    """Join components into the segments of the upper concave envelope; worthless ones at the end are left out."""
    concave = costs.all() and np.all(scores[1:] * costs[:-1] <= scores[:-1] * costs[1:])
    segments = _Segments(np.ones_like(costs), scores, costs) if concave else _join(scores, costs)
    worth = int(np.count_nonzero(segments.scores))
    return _Segments(segments.lengths[:worth], segments.scores[:worth], segments.costs[:worth])


def _join(scores: Floats, costs: Integers) -> _Segments:
    """Join each component with the segment before it as long as it is the better of the two."""
    lengths: list[int] = []
    joined: list[tuple[float, int]] = []
    for score, price in zip(scores.tolist(), costs.tolist(), strict=True):
        length = 1
        while joined:
            last_score, last_price = joined[-1]
            better = score * last_price > last_score * price or (last_score == 0 < score)
            if not better:
                break
            joined.pop()
            score, price, length = last_score + score, last_price + price, lengths.pop() + length
        joined.append((score, price))
        lengths.append(length)
    return _Segments(
        np.array(lengths, dtype=np.int64),
        np.array([score for score, _ in joined], dtype=np.float64),
        np.array([price for _, price in joined], dtype=np.int64),
    )


def _take_all_that_fit_in_order(envelopes: list[_Segments], budget: int) -> list[int]:
    """Take pooled segments by descending slope up to the first that does not fit; count them per layer."""
    if not envelopes:
        return []
    slopes = np.concatenate([each.slopes() for each in envelopes])
    order = np.argsort(-slopes, kind="stable")
    spent = np.cumsum(np.concatenate([each.costs for each in envelopes])[order])
    fitting = order[: int(np.searchsorted(spent, budget, side="right"))]
    owner = np.repeat(np.arange(len(envelopes)), [len(each.costs) for each in envelopes])
    taken: list[int] = np.bincount(owner[fitting], minlength=len(envelopes)).tolist()
    return taken


def _fill(ranks: list[int], rest: list[_Segments], curves: list[tuple[Floats, Integers]], budget: int) -> None:
    """Spend what is left on the best segments that fit, raising `ranks`.

    Cutting a curve shortens it each time, and a cut curve fits unless another layer spent in between, so this ends.
    """
    slopes = [each.slopes() for each in rest]
    position = [0] * len(rest)
    queue = [(-float(slope[0]), layer) for layer, slope in enumerate(slopes) if len(slope)]
    heapq.heapify(queue)
    while queue:
        _, layer = heapq.heappop(queue)
        price = int(rest[layer].costs[position[layer]])
        if price <= budget:
            budget -= price
            ranks[layer] += int(rest[layer].lengths[position[layer]])
            position[layer] += 1
        else:
            scores, costs = curves[layer]
            start = ranks[layer]
            end = start + int(np.searchsorted(np.cumsum(costs[start:]), budget, side="right"))
            rest[layer] = _envelope(scores[start:end], costs[start:end])
            slopes[layer], position[layer] = rest[layer].slopes(), 0
        if position[layer] < len(slopes[layer]):
            heapq.heappush(queue, (-float(slopes[layer][position[layer]]), layer))


def _on_host(scores: Mapping[str, Tensor]) -> dict[str, Floats]:
    """Bring scores to the host in float64, checked."""
    layers: dict[str, Floats] = {}
    for layer, values in scores.items():
        if values.ndim != 1:
            raise SettingError(
                f"scores of layer {layer!r} have shape {tuple(values.shape)}; give one score per component, 1-D"
            )
        array: Floats = values.detach().cpu().double().numpy()
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise SettingError(
                f"scores of layer {layer!r} range from {array.min()} to {array.max()}; "
                "they must be finite and not negative: check that the importance is"
            )
        layers[layer] = array
    return layers


def _curves(layers: Mapping[str, Floats], cost: Mapping[str, int | Tensor]) -> list[tuple[Floats, Integers]]:
    """Pair the scores of each layer with the cost of each of its components, checked."""
    curves = []
    for layer, scores in layers.items():
        if layer not in cost:
            raise SettingError(f"layer {layer!r} has scores but no cost; give the cost of its components")
        price = cost[layer]
        if isinstance(price, Tensor):
            if price.is_floating_point() or price.shape != scores.shape:
                raise SettingError(
                    f"cost of layer {layer!r} is {price.dtype} of shape {tuple(price.shape)}; "
                    f"give an integer, or {len(scores)} integers, one per component"
                )
            costs: Integers = price.detach().cpu().long().numpy()
        else:
            costs = np.full(len(scores), price, dtype=np.int64)
        if (costs < 0).any():
            raise SettingError(f"cost of layer {layer!r} falls to {costs.min()}; a component costs 0 or more")
        curves.append((scores, costs))
    return curves


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and 0 < rate <= 1):
        raise SettingError(f"rate is {rate}; give a share in (0, 1], such as 0.9")
