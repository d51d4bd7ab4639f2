"""What all tasks make of one layer, stacked over the tasks.

A row n of task t sees the weight r_t ∘ W ∘ s_t + p_t q_t. The scales act on activations and W is the same for all
rows, so one product or convolution with W serves the whole batch. What differs between tasks is small, and each row
looks it up in stacks over the tasks, in which ranks are padded with zeros. A dense weight of a task is applied to that
task's rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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

    def require_only(self, *leaves: str) -> None:
        """Raise `NotRowWise` if tasks change any other tensor of the layer."""
        if not self.changed <= set(leaves):
            raise self.not_row_wise()

    def not_row_wise(self, detail: str = "") -> NotRowWise:
        """The reason why the layer cannot compute rows of different tasks in one pass."""
        name = f"{self.path or 'the model itself'} ({type(self.layer).__name__})"
        return NotRowWise(f"{name} is not known to treat rows independently{detail and ': '}{detail}")

    def weights(self, transposed: bool = False) -> WeightStack:
        """What the tasks make of the layer's weight, or of the transposed matrix."""
        factors = [task.get(f"{self.path}.weight") for task in self.factors]
        weight, dense = self.layer.get_parameter("weight").detach(), self.dense("weight")
        if transposed:
            factors = [part and part.transposed() for part in factors]
            weight, dense = weight.mT, {task: matrix.mT for task, matrix in dense.items()}
        return WeightStack(weight, factors, dense)

    def dense(self, leaf: str) -> dict[int, Tensor]:
        """The private copies of a tensor, by task."""
        name = f"{self.path}.{leaf}"
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
        self.full_kernel = {task: part for task, part in enumerate(full) if part is not None}

    def of(self, task: int) -> Tensor:
        """The whole weight of a task that has a dense one or full-kernel factors."""
        if task in self.dense:
            return self.dense[task]
        return self.full_kernel[task].merged(self.base)


def scale_and_shift(x: Tensor, scale: Tensor | None, shift: Tensor | None, overwrite: bool = True) -> Tensor:
    """Return scale ∘ x + shift in the precision of x; `overwrite` says that nobody else reads x.

    In layers with large activations, memory that is already at hand halves the time.
    """
    out = x if overwrite else torch.empty_like(x)
    if scale is None:
        return x if shift is None else torch.add(x, shift, out=out)
    return torch.mul(x, scale, out=out) if shift is None else torch.addcmul(shift, x, scale, out=out)
