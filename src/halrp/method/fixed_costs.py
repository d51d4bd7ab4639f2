"""What a task costs before its first component: the tensors that it owns in any case, and its file's header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from halrp.method.protocols import FixedCost
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.factors import identity_factors


def fixed_costs(base: Base, owned: Mapping[str, Tensor], settings: Mapping[str, Any]) -> list[FixedCost]:
    """The fixed costs of a task that owns some tensors; `settings` are what `Delta.pack` takes besides tensors."""
    tensors = [FixedCost(n, t.numel(), t.numel() * t.element_size()) for n, t in owned.items()]
    factors = {n: identity_factors(w) for n, w in base.adapted_weights().items()}
    roles = {n: base.plan.role(n) for n in owned}
    empty = Delta.pack(base=base.fingerprint, factors=factors, owned=owned, roles=roles, view="mean", **settings)
    return [*tensors, FixedCost("file header", 0, empty.header_bound())]
