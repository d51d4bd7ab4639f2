"""The choices of `Halrp` as protocols: what a value of each field must be able to do.

Any value with these calls will do, from this package or from yours; nothing asks for its class. (That of `start`, which
takes a whole method, stands beside `Halrp`.) A dataclass is recorded
in the task's file with its fields, anything else by its name. Derive from a protocol to inherit its defaults.

    scales(free, base)                       → r, s
    decompose(matrix, curvature, rank)       → u, sigma, v
    importance(module, weights, data, batch) → a number for each weight
    allocate.allocate(options, costs, base)  → ranks, dense weights
    compress.compress(tasks, newest, size)   → tasks
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from halrp.errors import SettingError

if TYPE_CHECKING:  # the mathematics imports this module, and knows tensors only
    from halrp.model.delta import Delta
    from halrp.model.size import Size
    from halrp.training.batches import Data


class Scales(Protocol):
    """Fits the scales of a delta."""

    @abstractmethod
    def __call__(self, free: Tensor, base: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return r (J,) and s (I,) for a warm-up weight and its base weight, both (J, I, *kernel)."""


class Decomposition(Protocol):
    """Decomposes a residual into components, the most useful first."""

    @property
    def needs_curvature(self) -> bool:
        """Whether layers' Kronecker factors are to be collected for it."""
        return False

    @abstractmethod
    def __call__(
        self, matrix: Tensor, curvature: tuple[Tensor, Tensor] | None, rank: int | None, /
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return u (J, m), sigma (m,) descending and v (I, m) of a matrix (J, I), at most `rank` components.

        `curvature` is (A, G), or None for layers that have none and if it is not needed. Without it a component is
        scored by importance · sigma²; with it, sigma² itself must be the predicted loss of dropping the component.
        """

    def dropped_loss(self, matrix: Tensor, curvature: tuple[Tensor, Tensor], /) -> Tensor:
        """Predicted loss of dropping a whole matrix, (,): the sum of sigma² over all its components."""
        raise NotImplementedError


class Importance(Protocol):
    """Measures what a unit of squared error in a weight costs the loss."""

    @property
    def counts_kernel(self) -> bool:
        """Whether a kernel-mean component, repeated at K positions, is charged K times."""
        return True

    @abstractmethod
    def __call__(
        self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int, /
    ) -> Mapping[str, Tensor]:
        """Return a scalar tensor for each weight; the module is in evaluation mode."""


@dataclass(frozen=True, eq=False)
class LayerOptions:
    """What an allocation may choose for one adapted weight. Prices are in the unit of the allocation."""

    scores: Tensor
    """(m,) predicted loss that each component recovers, descending."""
    component: int
    """Price of a component: a column of p and a row of q."""
    scales: int
    """Price of r and s."""
    weight: int
    """Price of the weight if it is stored densely."""
    rest: Tensor
    """(,) predicted loss that no number of components recovers: what the view leaves out of the residual."""
    may_be_dense: bool
    """Whether the weight may be stored densely in this view."""


@dataclass(frozen=True)
class FixedCost:
    """A part of a task that cannot be shrunk: its name and its size."""

    name: str
    parameters: int
    bytes: int


@dataclass(frozen=True)
class TaskCosts:
    """What a task costs besides scales and components."""

    fixed: Sequence[FixedCost]
    """Parts that cannot be shrunk, without the file's header."""
    file_bytes: Callable[[Mapping[str, int], Allocator], int] | None = None
    """The exact size of the task's file for the ranks of adapted weights (the others are dense) and the allocation that
    its provenance names; None if there is no file."""


@dataclass(frozen=True)
class Allocation:
    """What a task stores: a rank for each adapted weight, or the weight itself."""

    ranks: Mapping[str, int]
    dense: frozenset[str] = frozenset()
    """The weights that are stored densely; they have no rank."""


class Allocator(Protocol):
    """Turns predicted losses and prices into what a task stores."""

    def price(self, size: Size, /) -> int:
        """What something of that size costs, in the unit of this allocation: parameters, unless overridden."""
        return size.parameters

    def limit(self, base: Size, /) -> int | None:
        """The most that one task on such a base may cost, so that no more components are computed; None: no limit."""
        return None

    @abstractmethod
    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size, /) -> Allocation:
        """Choose a rank for every weight, or to store it densely."""

    def check(self, task: Size, base: Size, late: Sequence[str], /) -> None:
        """Raise if a learned task is too large; `late` are buffers that fine-tuning was the first to change."""
        return


@runtime_checkable
class EarlyCheck(Protocol):
    """An allocator that can tell before a task is trained that it will be too large. An allocator need not."""

    def check_smallest(self, costs: TaskCosts, scales: Mapping[str, Size], base: Size, /) -> None:
        """Raise if a task is too large without a component; `scales` are the sizes of r and s of each weight."""


class Compression(Protocol):
    """Changes the factors of tasks after fine-tuning."""

    @property
    def independent(self) -> bool:
        """Whether a task comes out the same whatever other tasks there are, so that they can be learned in parallel."""
        return True

    @property
    def changes_committed(self) -> bool:
        """Whether tasks that are committed already may change, which gives up zero forgetting."""
        return False

    @abstractmethod
    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int, /) -> Mapping[str, Delta]:
        """Return the same tasks, in the same order; a task that does not change is returned as the same object."""


def check_choice(field: str, value: Any, protocol: type) -> None:
    """Refuse a value for a field of `Halrp` that lacks a call of its protocol."""
    if isinstance(value, type):
        raise SettingError(f"Halrp({field}={value.__name__}) is a class; give an instance, such as {value.__name__}()")
    members = [name for name in vars(protocol) if name == "__call__" or not name.startswith("_")]
    missing = [name for name in members if not hasattr(value, name)]
    if missing:
        raise SettingError(
            f"Halrp({field}={value!r}) lacks {', '.join(missing)}; give a value with the calls of "
            f"{protocol.__module__}.{protocol.__name__}, or derive its class from that"
        )
