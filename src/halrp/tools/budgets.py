"""What budgets pay for on a given base: how many bytes which parts of a delta need, with the exact size of the file.

A task on a given base stores its head in any case, and of all else what its data say is worth the most. Without data
nobody knows that, so here parts are taken in one order, a group of them where all of it fits: norm parameters and
biases, column scales, and then one rank after the other in every weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halrp.method.budget import Budget, default_bound, smallest_bytes
from halrp.method.protocols import TaskCosts
from halrp.method.task_costs import part_bytes
from halrp.text_table import lines_of
from halrp.tools.foreseen import START, Foreseen

BUDGETS = (25_000, 50_000, 100_000, 200_000, None)
"""The budgets that are shown; None is the default bound."""
VIEW = "mean"
"""Components of convolutions are counted with their kernels averaged, which is the smaller of two forms."""


@dataclass(frozen=True)
class Paid:
    """What one budget has room for."""

    budget: int
    """Bytes of a task's file at most."""
    is_default: bool
    """Whether this is the bound of a method that is given none."""
    groups: Mapping[str, int | None]
    """Bytes by group of parts, the head first; None for a group that does not fit in full."""
    rank: int
    """Of every adapted weight that has components, or the weight's own if that is less."""
    bytes: int
    """The exact size of the file; 0 if the budget is too small for the head."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "budget": self.budget,
            "default": self.is_default,
            "groups": dict(self.groups),
            "rank": self.rank,
            "bytes": self.bytes,
        }


def head_costs(task: Foreseen) -> TaskCosts:
    """The costs of a task of which only the head is stored."""
    return task.costs.parts(VIEW, task.classes, START.precision)


def smallest(task: Foreseen) -> int:
    """The smallest budget of a task: its head and its header."""
    exact = head_costs(task).file_bytes
    assert exact is not None
    return smallest_bytes(exact, ())


def paid_by(task: Foreseen, budgets: Sequence[int | None] = BUDGETS) -> tuple[Paid, ...]:
    """What each budget pays for."""
    return tuple(_paid(task, budget) for budget in budgets)


def _paid(task: Foreseen, budget: int | None) -> Paid:
    allocation = Budget(bytes=budget)
    groups, weights = _groups(task), task.with_components
    keys = [key for group in groups.values() for key in group]
    costs = task.costs.parts(VIEW, task.classes, START.precision, dict.fromkeys(keys, START.precision), weights)
    exact = costs.file_bytes
    assert exact is not None
    slots = task.layout.by_name
    most = {name: min(slots[name].shape[0], slots[name].columns(VIEW), START.components) for name in weights}

    def size(stored: Iterable[str], rank: int) -> int:
        return exact({**dict.fromkeys(stored, 1), **{n: min(rank, m) for n, m in most.items()}}, allocation)

    limit = default_bound(task.size, size((), 0)) if budget is None else budget
    bytes_: dict[str, int | None] = {"head": sum(part.bytes for part in costs.fixed)} if task.layout.head else {}
    if size((), 0) > limit:
        return Paid(limit, budget is None, dict.fromkeys((*bytes_, *groups)), 0, 0)
    stored: list[str] = []
    for name, group in groups.items():
        fits = size([*stored, *group], 0) <= limit
        stored += group if fits else ()
        bytes_[name] = sum(_bytes(task, key) for key in group) if fits else None
    low, high = 0, max(most.values(), default=0)
    while low < high:  # the largest rank that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(stored, middle) <= limit else (low, middle - 1)
    return Paid(limit, budget is None, bytes_, low, size(stored, low))


def _groups(task: Foreseen) -> dict[str, list[str]]:
    """The parts of each group, in the order in which groups are taken; a group that a model does not have is absent."""
    owned = {name: p.role for name, p in task.plan.named("owned").items()}
    groups = {
        "norms and biases": [f"plain/{name}" for name, role in owned.items() if role in ("norm", "bias")],
        "column scales": [f"s/{name}" for name in task.plan.named("adapted")],
    }
    return {name: keys for name, keys in groups.items() if keys}


def _bytes(task: Foreseen, key: str) -> int:
    kind, _, name = key.partition("/")
    slot = task.layout.by_name[name]
    return part_bytes(slot.shape[1:2] if kind == "s" else slot.shape, START.precision, slot.itemsize)


def as_lines(paid: Sequence[Paid], width: int | None = None) -> list[str]:
    """The table for people, and what it leaves out."""
    groups = list(dict.fromkeys(name for each in paid for name in each.groups))
    titles = ("budget", *groups, "rank everywhere", "file")
    cells = []
    for each in paid:
        parts = [each.groups[name] for name in groups]
        fits = each.bytes > 0
        cells.append(
            (
                f"{each.budget:,}{' (default)' if each.is_default else ''}",
                *("–" if part is None else f"{part:,}" for part in parts),
                str(each.rank) if fits else "–",
                f"{each.bytes:,}" if fits else "too small",
            )
        )
    return [
        "What a budget pays for, from left to right, a group where all of it fits (–: it does not), in bytes:",
        "",
        *lines_of(titles, cells, range(1, len(titles)), width),
        "",
        f"Ranks are those of averaged kernels, and at most {START.components} are considered. A task takes what its",
        "data say is worth most for its bytes, also parts of a group. Row scales are left out here, since they are",
        "offered only where no norm follows, which data show, and so are other small parameters.",
    ]
