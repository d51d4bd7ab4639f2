"""A hard bound on what a task may add, turned into ranks.

A task has a fixed part (scales, biases, norm layers, head) and components that are chosen one by one. The bound covers
both. A weight whose components would cost as much as the weight itself is stored *densely*: that last step is cheap,
since the scales are no longer needed, and it recovers all of the loss that was still missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from halrp.errors import BudgetTooSmall, SettingError
from halrp.method import allocate
from halrp.method.protocols import Allocation, Allocator, LayerOptions, TaskCosts
from halrp.model.size import Size

FileBytes: TypeAlias = Callable[[Mapping[str, int], Allocator], int]
"""The exact size of a task's file: see `TaskCosts`."""
DEFAULT_SHARE = 0.02
"""Of the base's bytes, for a task's file when no bound is given."""
DEFAULT_TIMES = 2
"""How many times what a task needs without a component, if the share is less than that need."""
LEAST_SPECTRUM = 2**16
"""Bytes of components that are computed at least when no bound is given, to choose from: all that small bases have."""
HEADER = 256
"""Bytes by which a file may grow less than the price of what is added, which does not count what the header says."""


@dataclass(frozen=True)
class Budget:
    """Choose the components with the most predicted loss per byte (or number) stored, under a hard bound per task.

    Exactly one of the three bounds holds. With none given, a task's file has 2 % of the base's bytes, or, if the task
    needs more than that without a single component, twice what it needs: small bases and wide heads work too.
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

    def price(self, size: Size) -> int:
        """What something of that size costs, in the budget's unit."""
        return size.bytes if self.in_bytes else size.parameters

    @property
    def unit(self) -> str:
        """What is bounded, in words."""
        return "bytes" if self.in_bytes else "parameters"

    @property
    def is_given(self) -> bool:
        """Whether there is a bound; if not, a task gets what it needs."""
        return any(value is not None for value in self._bounds().values())

    def limit(self, base: Size) -> int:
        """The most that components of one task over a base of that size may cost, in the budget's unit."""
        return self._bound(base) if self.is_given else max(self._bound(base), LEAST_SPECTRUM)

    def _bound(self, base: Size, smallest: int = 0) -> int:
        """The bound of one task over a base, if the task costs `smallest` without a component."""
        if self.parameters is not None:
            return int(self.parameters)
        if self.growth is not None:
            return int(self.growth * base.parameters)
        if self.bytes is not None:
            return int(self.bytes)
        return default_bound(base, smallest)

    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size) -> Allocation:
        """Choose ranks so that fixed part, scales and components stay within the bound."""
        smallest = self._smallest(costs, {name: layer.scales for name, layer in options.items()}, base)
        limit = self._bound(base, smallest)
        room = limit - smallest
        if costs.file_bytes is None or not self.in_bytes:
            return _chosen(options, room)
        return self._exactly(options, room, limit, costs.file_bytes)

    def check_smallest(self, costs: TaskCosts, scales: Mapping[str, Size], base: Size) -> None:
        """Refuse a task that is larger than the bound without a component, before it is trained."""
        self._smallest(costs, {name: self.price(size) for name, size in scales.items()}, base)

    def _smallest(self, costs: TaskCosts, scales: Mapping[str, int], base: Size) -> int:
        """The price of a task without a component, or `BudgetTooSmall`."""
        parts = [(self.price(Size(part.parameters, part.bytes)), part.name) for part in costs.fixed]
        parts += [(price, f"scales of {name}") for name, price in scales.items()]
        exact = costs.file_bytes if self.in_bytes else None
        if exact is not None:
            empty = exact(dict.fromkeys(scales, 0), self)
            parts.append((empty - sum(size for size, _ in parts), "file header"))
        smallest = sum(size for size, _ in parts)
        limit = self._bound(base, smallest)
        if smallest > limit:
            enough = smallest if exact is None else smallest_bytes(exact, scales)
            raise self._too_small(enough, limit, parts, base)
        return smallest

    def _exactly(self, options: Mapping[str, LayerOptions], room: int, limit: int, exact: FileBytes) -> Allocation:
        """Spend the room so that the exact size of the file stays within the limit, and nothing more would fit.

        The header grows by a few digits with the numbers it counts, so the first choice may be a little too large.
        """
        allocation = _chosen(options, room)
        while (size := exact(allocation.ranks, self)) > limit:
            room -= size - limit
            # Without room, not even a dense copy that costs nothing: it may lengthen the header.
            allocation = _chosen(options, room) if room > 0 else Allocation(dict.fromkeys(options, 0))
        while True:
            # An exact size takes much longer than a price, and of most changes the price alone is more than is left.
            affordable = (larger for price, larger in _larger(options, allocation) if size + price <= limit + HEADER)
            best = next((larger for larger in affordable if exact(larger.ranks, self) <= limit), None)
            if best is None:
                return allocation
            allocation, size = best, exact(best.ranks, self)

    def check(self, task: Size, base: Size, late: Sequence[str]) -> None:
        """Refuse a task that is larger than foreseen, since fine-tuning was the first to change the buffers `late`."""
        size, limit = self.price(task), self._bound(base)
        if self.is_given and size > limit:
            raise BudgetTooSmall(
                f"the task needs {size:,} {self.unit}, more than the {limit:,} of its budget, because "
                f"{', '.join(late)} changed for the first time in fine-tuning; raise the budget by {size - limit:,}"
            )

    def _too_small(self, minimum: int, limit: int, parts: list[tuple[int, str]], base: Size) -> BudgetTooSmall:
        largest = ", ".join(f"{name} {size:,}" for size, name in sorted(parts, reverse=True)[:3])
        enough = f"{minimum:,}"
        if self.growth is not None:  # a share, rounded up so that it does suffice
            enough += f" (growth {math.ceil(1e4 * (minimum + 1) / base.parameters) / 1e4})"
        return BudgetTooSmall(
            f"a budget of {limit:,} {self.unit} per task is too small: the fixed part alone needs {minimum:,} "
            f"(largest: {largest}); raise it to at least {enough}, use a narrower head, or freeze parameters "
            "that tasks may share"
        )


def default_bound(base: Size, smallest: int) -> int:
    """The bytes that a task's file may have if no bound is given and it has `smallest` without a component."""
    share = int(DEFAULT_SHARE * base.bytes)
    return share if smallest <= share else DEFAULT_TIMES * smallest


def smallest_bytes(file_bytes: FileBytes, weights: Iterable[str]) -> int:
    """The smallest budget in bytes of a task: that of its file without a component. The file names its budget."""
    ranks = dict.fromkeys(weights, 0)
    smallest = file_bytes(ranks, Budget(bytes=1))
    while (size := file_bytes(ranks, Budget(bytes=smallest))) > smallest:
        smallest = size
    return smallest


class _Steps(NamedTuple):
    """The successive steps in a weight: components, and then perhaps the step to storing it densely."""

    scores: Tensor
    costs: Tensor
    components: int


def _steps(layer: LayerOptions) -> _Steps:
    most = layer.scores.shape[0]
    if not layer.may_be_dense:
        return _Steps(layer.scores, torch.full((most,), layer.component), most)
    room = max(0, layer.weight - layer.scales)
    last = min(most, room // layer.component)
    final = layer.scores[last:].sum() + layer.rest
    costs = [layer.component] * last + [room - last * layer.component]
    return _Steps(torch.cat([layer.scores[:last], final.reshape(1)]), torch.tensor(costs), last)


def _chosen(options: Mapping[str, LayerOptions], room: int) -> Allocation:
    """What recovers the most loss for a cost within the room, headers aside."""
    steps = {name: _steps(layer) for name, layer in options.items()}
    scores = {name: step.scores for name, step in steps.items()}
    taken = allocate.by_budget(scores, {name: step.costs for name, step in steps.items()}, room)
    dense = frozenset(name for name, count in taken.items() if count > steps[name].components)
    return Allocation({name: count for name, count in taken.items() if name not in dense}, dense)


def _larger(options: Mapping[str, LayerOptions], allocation: Allocation) -> list[tuple[int, Allocation]]:
    """The smallest changes of an allocation that recover more, with their prices, the most loss for its cost first.

    In each weight these are components up to the next that recovers anything, and a dense copy.
    """
    larger: list[tuple[float, int, Allocation]] = []

    def add(gain: Tensor, cost: int, ranks: Mapping[str, int], dense: frozenset[str]) -> None:
        larger.append((float(gain) / cost if cost > 0 else math.inf, cost, Allocation(ranks, dense)))

    for name, rank in allocation.ranks.items():
        layer = options[name]
        missing = layer.scores[rank:]
        useful = missing.nonzero().flatten()
        if len(useful):
            more = int(useful[0]) + 1
            ranks = {**allocation.ranks, name: rank + more}
            add(missing[:more].sum(), more * layer.component, ranks, allocation.dense)
        if layer.may_be_dense and (gain := missing.sum() + layer.rest) > 0:
            others = {n: r for n, r in allocation.ranks.items() if n != name}
            add(gain, layer.weight - layer.scales - rank * layer.component, others, allocation.dense | {name})
    return [(cost, choice) for _, cost, choice in sorted(larger, key=lambda change: change[0], reverse=True)]
