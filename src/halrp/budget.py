"""A hard bound on what a task may add, turned into ranks.

A task has a fixed part (scales, biases, norm layers, head) and components that can be bought one by one. The bound
covers both. A weight whose components would cost as much as the weight itself is *owned outright*: that last step is
cheap, since the scales are no longer needed, and it buys everything that was still missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from halrp import allocate
from halrp.errors import BudgetTooSmall, SettingError


@dataclass(frozen=True, eq=False)
class Offer:
    """What can be bought in one adapted weight."""

    scores: Tensor
    """(m,) predicted loss that each component buys, descending."""
    component: int
    """Numbers to store per component: J plus the columns of the view."""
    scales: int
    """Numbers to store for r and s: J + I."""
    weight: int
    """Numbers to store if the weight is owned outright."""
    rest: Tensor
    """(,) predicted loss that no number of components buys: what the view leaves out of the residual."""
    may_own: bool
    """Whether owning the weight outright is allowed in this view."""
    element_size: int = 4
    """Bytes per number."""


@dataclass(frozen=True)
class Fixed:
    """A part of a task that cannot be shrunk: its name and its size in numbers and bytes."""

    name: str
    numbers: int
    bytes: int


@dataclass(frozen=True)
class Allocation:
    """The outcome: a rank per adapted weight, and the weights that the task owns outright."""

    ranks: Mapping[str, int]
    owned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Budget:
    """Buy the components with the most predicted loss per number stored, under a hard bound per task.

    Exactly one of the three bounds holds; with none given, `growth=0.02`.
    """

    bytes: int | None = None
    """Bytes of one task."""
    parameters: int | None = None
    """Numbers of one task: scales, factors, biases, norm parameters and buffers, head."""
    growth: float | None = None
    """Numbers of one task as a share of the base's."""

    def __post_init__(self) -> None:
        """Refuse two bounds at once and bounds that are not positive and finite."""
        given = {n: v for n, v in self._bounds().items() if v is not None}
        if len(given) > 1:
            raise SettingError(f"a budget has one bound, but {' and '.join(given)} were given; choose one")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise SettingError(f"Budget({name}={value!r}) must be positive and finite")

    def _bounds(self) -> dict[str, float | None]:
        return {"bytes": self.bytes, "parameters": self.parameters, "growth": self.growth}

    def limit(self, base_numbers: int) -> int:
        """The bound of one task, in bytes if the budget is, else in numbers."""
        if self.bytes is not None:
            return int(self.bytes)
        if self.parameters is not None:
            return int(self.parameters)
        return int((0.02 if self.growth is None else self.growth) * base_numbers)

    def unit(self, element_size: int) -> int:
        """What one number of so many bytes counts against the bound."""
        return 1 if self.bytes is None else element_size

    def allocate(self, offers: Mapping[str, Offer], fixed: Sequence[Fixed], base_numbers: int) -> Allocation:
        """Choose ranks so that fixed part, scales and components stay within the bound."""
        limit = self.limit(base_numbers)
        parts = [(part.numbers if self.bytes is None else part.bytes, part.name) for part in fixed]
        parts += [(self.unit(offer.element_size) * offer.scales, f"scales of {name}") for name, offer in offers.items()]
        minimum = sum(size for size, _ in parts)
        if minimum > limit:
            raise self._too_small(minimum, limit, parts, base_numbers)
        steps = {name: _steps(offer, self.unit(offer.element_size)) for name, offer in offers.items()}
        taken = allocate.by_budget(
            {name: step.scores for name, step in steps.items()},
            {name: step.costs for name, step in steps.items()},
            limit - minimum,
        )
        owned = frozenset(name for name, rank in taken.items() if rank > steps[name].components)
        return Allocation({name: rank for name, rank in taken.items() if name not in owned}, owned)

    def _too_small(self, minimum: int, limit: int, parts: list[tuple[int, str]], base_numbers: int) -> BudgetTooSmall:
        what = "parameters" if self.bytes is None else "bytes"
        largest = ", ".join(f"{name} {size:,}" for size, name in sorted(parts, reverse=True)[:3])
        enough = f"{minimum:,}"
        if self.bytes is None and self.parameters is None:  # a share, rounded up so that it does suffice
            enough += f" (growth {math.ceil(1e4 * (minimum + 1) / base_numbers) / 1e4})"
        return BudgetTooSmall(
            f"a budget of {limit:,} {what} per task is too small: the fixed part alone needs {minimum:,} "
            f"(largest: {largest}); raise it to at least {enough}, use a narrower head, or freeze parameters "
            "that tasks may share"
        )


class _Steps(NamedTuple):
    """The successive steps in a weight: components, and then perhaps the step to owning it outright."""

    scores: Tensor
    costs: Tensor
    components: int


def _steps(offer: Offer, unit: int) -> _Steps:
    most = offer.scores.shape[0]
    if not offer.may_own:
        return _Steps(offer.scores, torch.full((most,), unit * offer.component), most)
    room = max(0, offer.weight - offer.scales)
    last = min(most, room // offer.component)
    final = offer.scores[last:].sum() + offer.rest
    costs = [unit * offer.component] * last + [unit * (room - last * offer.component)]
    return _Steps(torch.cat([offer.scores[:last], final.reshape(1)]), torch.tensor(costs), last)
