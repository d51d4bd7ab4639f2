"""What the components of an adapted weight promise, and where they start, from gradients that are seen once.

A pass over the data has two halves with mean gradients G₁ and G₂ (J, C). The first names directions, the second tells
what they are worth, so that no direction is praised for the noise that it was chosen by. A component with a fixed row v
and a free column p (J,) changes the loss by −⟨G v, p⟩ + h‖p‖², where h is the mean square of an entry of G_b v over
batches b, times their size: the empirical Fisher along it. The best p lowers the loss by

    score = ⟨G₁v, G₂v⟩ / 4h,

where the product of the two halves estimates ‖Gv‖² without bias; a negative one counts as zero.

`Summed` holds the sum of all gradients, as large as the weight, and takes its directions from all of it. `Sketched`
holds what the spectrum needs (randomized range finder, Halko et al. 2011):

    first half    Y = Σ_b G_b Ω      Ω (C, w) gaussian;  Q (J, w) = orthonormal basis of Y
    second half   B = Σ_b Qᵀ G_b     (w, C), and M = Σ_b |b| (QᵀG_b)(QᵀG_b)ᵀ

with directions σ a vᵀ from the mean of B. What the first half has of one is estimated from its sketch, aᵀQᵀY along Ωᵀv.
The mean of |b|‖aᵀQᵀG_b‖² = aᵀMa has a signal, which is that of |b|‖G_b v‖², and noise in C entries in place of J.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from halrp import seeding
from halrp.method import decompose
from halrp.method.bits import LOST
from halrp.method.importance import at_least_float32
from halrp.method.protocols import Allocator, LayerOptions
from halrp.method.start import prices
from halrp.model.codec import Precision
from halrp.model.delta import Recovered
from halrp.model.factors import Factors, identity_factors
from halrp.model.size import Size

OVERSAMPLING = 16
"""Columns of a sketch beyond the components that are wanted."""
SUMMED = 2**22
"""The most entries of a weight whose gradients are summed themselves."""


class Components(NamedTuple):
    """The components that a weight may have in a view."""

    scores: Tensor
    """(m,) predicted decrease of the loss by each."""
    v: Tensor
    """(C, m) their rows, of unit norm."""
    rest: Tensor
    """(,) predicted decrease by all that they leave out."""
    rate: float
    """The step of an entry of p after which the loss has changed by about one, if all entries take it."""


class WeightGradient(Protocol):
    """The gradient of one weight (J, I, *kernel) over the two halves of a pass."""

    batches: int

    @abstractmethod
    def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        """Add the gradient of the mean loss of a batch of some rows, which counts `weight` in means over several."""

    @abstractmethod
    def end_half(self) -> None:
        """End a half of the pass."""

    @abstractmethod
    def sums(self) -> list[Tensor]:
        """What has been summed in this half, so that processes can add theirs up before it ends."""

    @property
    @abstractmethod
    def importance(self) -> Tensor:
        """The mean diagonal entry of the empirical Fisher, (,)."""

    @abstractmethod
    def components(self, view: str) -> Components:
        """What components promise in a view, after the second half."""


class _Halves:
    """Counts of the two halves of a pass, and the mean square of the gradient's entries."""

    def __init__(self, weight: Tensor) -> None:
        self.zero = at_least_float32(weight.new_zeros(()))
        self.count = [self.zero.clone(), self.zero.clone()]
        """What the batches of each half count together."""
        self.square, self.number = self.zero.clone(), self.zero.clone()
        self.half = self.batches = 0

    def see(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        self.batches += 1
        self.number += 1
        self.count[self.half] += weight
        self.square += rows * gradient.square().mean()

    @property
    def importance(self) -> Tensor:
        """The mean diagonal entry of the empirical Fisher, (,)."""
        return self.square / self.number.clamp(min=1)

    def counted(self) -> list[Tensor]:
        return [self.count[self.half], *([self.square, self.number] if self.half else [])]


class Summed(_Halves):
    """A gradient that is summed itself."""

    def __init__(self, weight: Tensor, views: Mapping[str, int]) -> None:
        """Prepare for a weight; `views` gives the most components that are wanted in each view."""
        super().__init__(weight)
        self._views = views
        self._sums = [at_least_float32(torch.zeros_like(weight)), None]
        self._directions: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        self._seen = self.zero.clone()

    def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        """Add the gradient of a batch."""
        self.see(gradient, rows, weight)
        total = self._sums[self.half]
        assert total is not None
        total.add_(gradient * weight)
        if self.half:
            self._seen += 1
            for view, v in self._directions.items():
                self._squares[view] += rows * (as_matrix(gradient, view) @ v).square().mean(0)

    def sums(self) -> list[Tensor]:
        """The sums of this half."""
        total = self._sums[self.half]
        assert total is not None
        return [total, *self.counted(), *([self._seen, *self._squares.values()] if self.half else [])]

    def end_half(self) -> None:
        """Find directions after the first half."""
        if self.half:
            return
        for view, most in self._views.items():
            total = as_matrix(self._mean(0), view)
            self._directions[view] = decompose.plain(total, most)[2]
            self._squares[view] = total.new_zeros(self._directions[view].shape[1])
        self.half = 1
        self._sums[1] = torch.zeros_like(self._mean(0))

    def _mean(self, half: int) -> Tensor:
        total = self._sums[half]
        assert total is not None
        return total / self.count[half].clamp(min=1e-12)

    def components(self, view: str) -> Components:
        """Directions of the whole gradient, with the worth of those of its first half."""
        first, second, v = as_matrix(self._mean(0), view), as_matrix(self._mean(1), view), self._directions[view]
        h = self._squares[view] / self._seen.clamp(min=1)
        scores = _worth(((first @ v) * (second @ v)).sum(0), h)
        rest = _worth((first * second).sum(), self.importance) - scores.sum()
        both = self.count[0] + self.count[1]
        whole = (first * self.count[0] + second * self.count[1]) / both.clamp(min=1e-12)
        _, _, v = decompose.plain(whole, v.shape[1])
        rate = 1 / math.sqrt(len(first) * float(h.mean()) + 1e-30)
        return Components(scores, v, rest.clamp(min=0), rate)


class Sketched(_Halves):
    """A gradient of which only a sketch is held, in one view."""

    def __init__(self, weight: Tensor, view: str, most: int, generator: torch.Generator) -> None:
        """Prepare for a weight."""
        super().__init__(weight)
        rows, columns = weight.shape[0], weight.shape[1] if view == "mean" else weight[0].numel()
        self._view, self._most = view, min(most, rows, columns)
        width = min(self._most + OVERSAMPLING, rows, columns)
        # Drawn on the CPU, so that every device has the same numbers.
        self._test = torch.randn(columns, width, generator=generator, dtype=torch.float64).to(self.zero)
        self._sum, self._moment = self.zero.new_zeros(rows, width), self.zero.new_zeros(width, width)
        self._seen, self._rows = self.zero.clone(), self.zero.clone()

    def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        """Add the gradient of a batch."""
        self.see(gradient, rows, weight)
        matrix = as_matrix(gradient, self._view)
        if not self.half:
            self._sum.addmm_(matrix * weight, self._test)
            return
        part = self._test.mT @ matrix
        self._sum += weight * part
        self._moment.addmm_(part, part.mT, alpha=rows)
        self._seen += 1
        self._rows += rows

    def sums(self) -> list[Tensor]:
        """The sums of this half."""
        return [self._sum, *self.counted(), *([self._seen, self._rows, self._moment] if self.half else [])]

    def end_half(self) -> None:
        """Find the range of the gradient after the first half."""
        if not self.half:
            self._first = self._sum / self.count[0].clamp(min=1e-12)
            self._range = torch.linalg.qr(self._sum).Q
            self._omega, self._test = self._test, self._range
            self._sum = self._sum.new_zeros(self._range.shape[1], self._omega.shape[0])
            self.half = 1

    def components(self, view: str) -> Components:
        """Directions of the second half inside the range of the first, with their worth."""
        mean, most, seen = self._sum / self.count[1].clamp(min=1e-12), self._most, self._seen.clamp(min=1)
        a, sigma, v = decompose.plain(mean, len(mean))
        along = v.mT @ self._omega
        first = ((a.mT @ (self._range.mT @ self._first)) * along).sum(1) / along.square().sum(1).clamp(min=1e-30)
        products = sigma * first
        energy = (a * (self._moment @ a)).sum(0) / seen
        signal = torch.minimum(products.clamp(min=0) * self._rows / seen, energy)
        h = ((energy - signal) / len(v) + signal / len(self._range))[:most]
        scores = _worth(products[:most], h)
        rest = (_worth(products.sum(), self.importance) - scores.sum()).clamp(min=0)
        rate = 1 / math.sqrt(len(self._range) * float(h.mean()) + 1e-30)
        return Components(scores, v[:, :most], rest, rate)


def _worth(product: Tensor, curvature: Tensor) -> Tensor:
    """The decrease of the loss by the best step: a squared slope over four times the curvature, or 0."""
    return torch.where(curvature > 0, product / (4 * torch.where(curvature > 0, curvature, 1)), 0).clamp(min=0)


def as_matrix(gradient: Tensor, view: str) -> Tensor:
    """The slope along weights of unit norm of a view's form: (J, I) with one value per kernel, or (J, I·K)."""
    if gradient.dim() == 2:
        return gradient
    return gradient.flatten(2).sum(2) / math.sqrt(gradient[0, 0].numel()) if view == "mean" else gradient.flatten(1)


def new_gradient(
    name: str,
    weight: Tensor,
    views: Sequence[str],
    components: int,
    allocate: Allocator,
    precision: Precision,
    base: Size,
    key: Sequence[object],
) -> WeightGradient:
    """The gradient of a weight before a pass, of at most `components`, and no more than the budget pays for.

    A weight that is too large to be summed is sketched, in the view that costs least.
    """
    limit, most = allocate.limit(base), {}
    for view in views:
        columns = weight.shape[1] if view == "mean" else weight[0].numel()
        price = prices(allocate, precision, weight.shape, columns, weight.element_size()).component
        most[view] = components if limit is None else min(components, max(1, limit // price))
    if weight.numel() <= SUMMED:
        return Summed(weight, most)
    return Sketched(weight, views[0], most[views[0]], seeding.generator(*key, "sketch", name, views[0]))


def options_of(components: Components, weight: Tensor, allocate: Allocator, precision: Precision) -> LayerOptions:
    """Scores and prices of the components of a weight in a precision; they need no scales."""
    columns, share = components.v.shape[0], 1 - LOST.get(precision, 0.0)
    price = prices(allocate, precision, weight.shape, columns, weight.element_size())
    dense, scores, rest = columns == weight[0].numel(), share * components.scores, share * components.rest
    return LayerOptions(scores, price.component, 0, price.weight, rest, may_be_dense=dense)


def factors_along(v: Tensor, weight: Tensor) -> Factors:
    """Components with p = 0 and q along v (C, rank), of the norm C^¼."""
    neutral, q = identity_factors(weight), (v.shape[0] ** 0.25 * v).mT.contiguous().to(weight.dtype)
    return Factors(neutral.r, neutral.s, weight.new_zeros(weight.shape[0], v.shape[1]), q)


def recovered_of(options: LayerOptions, importance: Tensor, rank: int | None) -> Recovered:
    """The predicted loss is the decrease that the best step along the whole gradient would bring."""
    total = float(options.scores.sum() + options.rest)
    recovered = total if rank is None else float(options.scores[:rank].sum())
    return Recovered(float(importance), total, min(1.0, recovered / total) if total > 0 else 1.0)
