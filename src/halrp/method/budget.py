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

from halrp.errors import BudgetTooSmall, SettingError
from halrp.method import allocate
from halrp.model.size import Size

DEFAULT_SHARE = 0.02
"""Of the base's bytes, for a task's file when no bound is given."""


@dataclass(frozen=True, eq=False)
class LayerOptions:
    """What can be bought in one adapted weight. Costs are in the unit of the budget, bytes or numbers."""

    scores: Tensor
    """(m,) predicted loss that each component buys, descending."""
    component: int
    """Cost of a component: a column of p and a row of q."""
    scales: int
    """Cost of r and s."""
    weight: int
    """Cost of the weight if it is owned outright."""
    rest: Tensor
    """(,) predicted loss that no number of components buys: what the view leaves out of the residual."""
    may_own: bool
    """Whether owning the weight outright is allowed in this view."""


@dataclass(frozen=True)
class FixedCost:
    """A part of a task that cannot be shrunk: its name and its size in numbers and bytes."""

    name: str
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Allocation:
    """The outcome: a rank per adapted weight, and the weights that the task owns outright."""

    ranks: Mapping[str, int]
    owned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Budget:
    """Buy the components with the most predicted loss per number stored, under a hard bound per task.

    Exactly one of the three bounds holds; with none given, a task's file has 2 % of the base's bytes.
    """

    bytes: int | None = None
    """Bytes of one task's file, header included."""
    parameters: int | None = None
    """Numbers of one task: scales, factors, biases, norm parameters and buffers, head."""
    growth: float | None = None
    """Numbers of one task as a share of the base's parameters."""

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

    @property
    def in_bytes(self) -> bool:
        """Whether bytes are bounded, rather than numbers."""
        return self.parameters is None and self.growth is None

    def limit(self, base: Size) -> int:
        """The bound of one task over a base of that size, in the budget's unit."""
        if self.parameters is not None:
            return int(self.parameters)
        if self.growth is not None:
            return int(self.growth * base.parameters)
        return int(self.bytes if self.bytes is not None else DEFAULT_SHARE * base.bytes)

    def allocate(self, offers: Mapping[str, LayerOptions], fixed: Sequence[FixedCost], base: Size) -> Allocation:
        """Choose ranks so that fixed part, scales and components stay within the bound."""
        limit = self.limit(base)
        parts = [(part.bytes if self.in_bytes else part.parameters, part.name) for part in fixed]
        parts += [(offer.scales, f"scales of {name}") for name, offer in offers.items()]
        minimum = sum(size for size, _ in parts)
        if minimum > limit:
            raise self._too_small(minimum, limit, parts, base)
        steps = {name: _steps(offer) for name, offer in offers.items()}
        taken = allocate.by_budget(
            {name: step.scores for name, step in steps.items()},
            {name: step.costs for name, step in steps.items()},
            limit - minimum,
        )
        owned = frozenset(name for name, rank in taken.items() if rank > steps[name].components)
        return Allocation({name: rank for name, rank in taken.items() if name not in owned}, owned)

    def check(self, task: Size, base: Size, late: Sequence[str]) -> None:
        """Refuse a task that came out larger than it could be foreseen: buffers that training wrote to `late`."""
        size, limit = task.bytes if self.in_bytes else task.parameters, self.limit(base)
        if size > limit:
            what = "bytes" if self.in_bytes else "parameters"
            raise BudgetTooSmall(
                f"the task needs {size:,} {what}, more than the {limit:,} of its budget, because {', '.join(late)} "
                f"changed for the first time in fine-tuning; raise the budget by {size - limit:,}"
            )

    def _too_small(self, minimum: int, limit: int, parts: list[tuple[int, str]], base: Size) -> BudgetTooSmall:
        what = "bytes" if self.in_bytes else "parameters"
        largest = ", ".join(f"{name} {size:,}" for size, name in sorted(parts, reverse=True)[:3])
        enough = f"{minimum:,}"
        if self.growth is not None:  # a share, rounded up so that it does suffice
            enough += f" (growth {math.ceil(1e4 * (minimum + 1) / base.parameters) / 1e4})"
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


def _steps(offer: LayerOptions) -> _Steps:
    most = offer.scores.shape[0]
    if not offer.may_own:
        return _Steps(offer.scores, torch.full((most,), offer.component), most)
    room = max(0, offer.weight - offer.scales)
    last = min(most, room // offer.component)
    final = offer.scores[last:].sum() + offer.rest
    costs = [offer.component] * last + [room - last * offer.component]
    return _Steps(torch.cat([offer.scores[:last], final.reshape(1)]), torch.tensor(costs), last)
