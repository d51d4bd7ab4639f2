"""All that one task owns, and its size.

A `Delta` is immutable: fine-tuning works on copies, pruning makes a new one. Sizes follow one rule: what a file needs
so that the task comes back exactly. The paper's own count (non-zeros, without biases and statistics) stands beside
it because its tables use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import Tensor

from halrp.layers import Factors
from halrp.plan import Role


@dataclass(frozen=True)
class Bought:
    """What the allocation knew about one layer, and what it paid for."""

    importance: float
    """What a unit of squared error in this layer costs the loss."""
    predicted: float
    """Predicted loss of dropping the whole residual of this layer."""
    explained: float
    """Share of that loss which the kept components buy back, 0 … 1."""


@dataclass(frozen=True, eq=False)
class Delta:
    """What one task adds to the base. Empty factors and no owned body mean the base itself with a head."""

    task: str
    classes: int
    base: str
    """Fingerprint of the base this delta belongs to."""
    factors: Mapping[str, Factors]
    """Low-rank deltas by the name of the adapted weight."""
    owned: Mapping[str, Tensor]
    """Full private tensors by name: head, biases, norm parameters, changed buffers, weights owned outright."""
    roles: Mapping[str, Role]
    """The role of each owned tensor."""
    bought: Mapping[str, Bought]
    """For each adapted weight, what its components bought."""
    view: str = ""
    """The convolution view that was used: "mean" or "full"."""

    def __post_init__(self) -> None:
        """Make the mappings read-only."""
        for name in ("factors", "owned", "roles", "bought"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each adapted weight. A weight owned outright is absent."""
        return {name: factors.rank for name, factors in self.factors.items()}

    @property
    def importance(self) -> dict[str, float]:
        """What a unit of squared error in each layer costs the loss."""
        return {name: bought.importance for name, bought in self.bought.items()}

    @property
    def parameters(self) -> int:
        """Numbers to store: scales, factors (the non-zeros if pruned), and every owned tensor."""
        scales = sum(f.r.numel() + f.s.numel() for f in self.factors.values())
        components = sum(int(t.count_nonzero()) for f in self.factors.values() for t in (f.p, f.q))
        return scales + components + sum(tensor.numel() for tensor in self.owned.values())

    @property
    def bytes(self) -> int:
        """Bytes of those numbers, with four more for the index of each entry of a tensor that is stored sparse."""
        total = sum(tensor.numel() * tensor.element_size() for tensor in self.owned.values())
        for factors in self.factors.values():
            total += (factors.r.numel() + factors.s.numel()) * factors.r.element_size()
            for tensor in (factors.p, factors.q):
                size = tensor.element_size()
                total += min(tensor.numel() * size, int(tensor.count_nonzero()) * (size + 4))
        return total

    def paper_count(self, dense: bool = False) -> int:
        """The paper's count: scales, entries of p and q above 1e-8 (all if `dense`), norm affine parameters, head."""
        scales = sum(f.r.numel() + f.s.numel() for f in self.factors.values())
        components = sum(t.numel() if dense else _above(t) for f in self.factors.values() for t in (f.p, f.q))
        rest = sum(t.numel() for name, t in self.owned.items() if self.roles[name] in ("norm", "head", "weight"))
        return scales + components + rest

    def with_factors(self, factors: Mapping[str, Factors]) -> Delta:
        """The same delta with other factors."""
        return replace(self, factors=factors)

    def __repr__(self) -> str:
        """Say what matters: task, ranks and size."""
        ranks = ", ".join(f"{name}: {rank}" for name, rank in self.ranks.items())
        return f"Delta({self.task!r}, classes={self.classes}, ranks={{{ranks}}}, bytes={self.bytes:,})"


def _above(tensor: Tensor) -> int:
    """Entries above the paper's threshold for a stored number."""
    return int((tensor.abs() > 1e-8).sum())
