"""What all tasks make of one layer, stacked over the tasks.

A row n of task t sees the weight r_t ∘ W ∘ s_t + p_t q_t. The scales act on activations and W is the same for all
rows, so one product or convolution with W serves the whole batch. What differs between tasks is small, and each row
looks it up in stacks over the tasks, in which ranks are padded with zeros. A dense weight of a task is applied to that
task's rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from halrp.model.factors import Factors, identity_factors
from halrp.model.rows import NotRowWise, Rows


@dataclass(frozen=True, eq=False)
class LayerTasks:
    """One layer of a model, and what each task changes in it."""

    path: str
    layer: nn.Module
    changed: frozenset[str]
    """Names, inside the layer, of the tensors that some task changes."""
    factors: Sequence[Mapping[str, Factors]]
    """For each task, its factors by the full names of weights."""
    owned: Sequence[Mapping[str, Tensor]]
    """For each task, its private tensors by their full names."""
    layer_of: Callable[[int], nn.Module]
    """The layer as it is in the module of one task."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Full names of tensors under which tasks hold them, by their names inside the layer, where these differ: a tensor
    that several layers share has the name that it has in the first."""

    def require_only(self, *leaves: str) -> None:
        """Raise `NotRowWise` if tasks change any other tensor of the layer."""
        if not self.changed <= set(leaves):
            raise self.not_row_wise()

    def not_row_wise(self, detail: str = "") -> NotRowWise:
        """The reason why the layer cannot compute rows of different tasks in one pass."""
        name = f"{self.path or 'the model itself'} ({type(self.layer).__name__})"
        return NotRowWise(f"{name} is not known to treat rows independently{detail and ': '}{detail}")

    def name(self, leaf: str) -> str:
        """The full name of a tensor of the layer."""
        return self.names.get(leaf, f"{self.path}.{leaf}".lstrip("."))

    def weights(self, transposed: bool = False) -> WeightStack:
        """What the tasks make of the layer's weight, or of the transposed matrix."""
        weight = self.tensor("weight", self.layer.get_parameter("weight").detach())
        return weight.transposed if transposed else weight.stack

    def tensor(self, leaf: str, shared: Tensor) -> TaskTensor:
        """A tensor of the layer as each task has it; `shared` is the base's."""
        name = self.name(leaf)
        return TaskTensor(shared, [task.get(name) for task in self.factors], self.dense(leaf))

    def dense(self, leaf: str) -> dict[int, Tensor]:
        """The private copies of a tensor, by task."""
        name = self.name(leaf)
        return {task: owned[name] for task, owned in enumerate(self.owned) if name in owned}

    def stack(self, leaf: str) -> Tensor | None:
        """A tensor of the layer as each task has it, (T, ...); None if the layer has none."""
        shared: Tensor | None = getattr(self.layer, leaf, None)
        if shared is None:
            return None
        dense = self.dense(leaf)
        return torch.stack([dense.get(task, shared.detach()) for task in range(len(self.owned))])


@dataclass(frozen=True, eq=False)
class LowRankStack:
    """The low-rank parts of all tasks in one view of a weight: p (T, J, k) and q (T, k, columns)."""

    p: Tensor
    q: Tensor
    ranks: tuple[int, ...]

    @staticmethod
    def of(base: Tensor, parts: Sequence[Factors | None]) -> LowRankStack | None:
        """Stack factors, padded with zeros to the largest rank. A task without factors has rank 0."""
        given = [part for part in parts if part is not None and part.rank]
        if not given:
            return None
        rank, columns = max(part.rank for part in given), given[0].q.shape[1]
        p = base.new_zeros(len(parts), base.shape[0], rank)
        q = base.new_zeros(len(parts), rank, columns)
        for task, part in enumerate(parts):
            if part is not None and part.rank:
                p[task, :, : part.rank] = part.p
                q[task, : part.rank] = part.q
        return LowRankStack(p, q, tuple(0 if part is None else part.rank for part in parts))

    def among(self, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """The stacks p and q, cut to the largest rank of the tasks that are present; None if that is 0."""
        rank = max(self.ranks[task] for task, _ in rows.groups)
        return (self.p[:, :, :rank], self.q[:, :rank]) if rank else None


class WeightStack:
    """What the tasks make of one weight (J, I, *kernel): factors, or a dense weight."""

    def __init__(self, base: Tensor, factors: Sequence[Factors | None], dense: Mapping[int, Tensor]) -> None:
        """Stack the factors, one entry per task; a task that has neither uses the base weight as it is."""
        self.base = base
        self.dense = dense
        self.scaled = any(part is not None for part in factors)
        same = identity_factors(base)
        self.r = torch.stack([(part or same).r for part in factors])
        self.s = torch.stack([(part or same).s for part in factors])
        narrow = base.shape[1]
        mean = [part if part is not None and part.q.shape[1] == narrow else None for part in factors]
        full = [part if part is not None and part.q.shape[1] != narrow else None for part in factors]
        self.mean, self.full = LowRankStack.of(base, mean), LowRankStack.of(base, full)
        self.full_kernel = {task for task, part in enumerate(full) if part is not None}
        self._factors = factors

    def changes(self, task: int) -> bool:
        """Whether a task has another weight than the base."""
        return task in self.dense or self._factors[task] is not None

    def of(self, task: int) -> Tensor:
        """The whole weight of a task."""
        factors = self._factors[task]
        return self.dense.get(task, self.base) if factors is None else factors.merged(self.base)


class TaskTensor:
    """One tensor of a model, as each task has it."""

    def __init__(self, shared: Tensor, factors: Sequence[Factors | None], dense: Mapping[int, Tensor]) -> None:
        """Take the base's tensor, and what tasks have instead: factors, one entry per task, or tensors by task."""
        self.shared, self.factors, self.dense = shared, factors, dense

    def __call__(self, task: int) -> Tensor:
        """The tensor of a task."""
        factors = self.factors[task]
        return self.dense.get(task, self.shared) if factors is None else factors.merged(self.shared)

    def changes(self, task: int) -> bool:
        """Whether a task has another tensor than the base."""
        return task in self.dense or self.factors[task] is not None

    @cached_property
    def stack(self) -> WeightStack:
        """The tensor as a weight (J, I, *kernel)."""
        return WeightStack(self.shared, self.factors, self.dense)

    @cached_property
    def transposed(self) -> WeightStack:
        """The tensor as a matrix (I, J) whose rows meet the inputs."""
        factors = [part and part.transposed() for part in self.factors]
        return WeightStack(self.shared.mT, factors, {task: matrix.mT for task, matrix in self.dense.items()})


def scale_and_shift(x: Tensor, scale: Tensor | None, shift: Tensor | None, overwrite: bool = True) -> Tensor:
    """Return scale ∘ x + shift in the precision of x; `overwrite` says that nobody else reads x.

    In layers with large activations, memory that is already at hand halves the time.
    """
    out = x if overwrite else torch.empty_like(x)
    if scale is None:
        return x if shift is None else torch.add(x, shift, out=out)
    return torch.mul(x, scale, out=out) if shift is None else torch.addcmul(shift, x, scale, out=out)
