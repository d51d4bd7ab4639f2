"""From a fine-tuned network to the delta that is committed."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from halrp.method.fine_tune import FineTuned
from halrp.method.method import Halrp
from halrp.model.base import Base
from halrp.model.codec import Precision
from halrp.model.delta import Delta
from halrp.model.description import PARTS_FORMAT, Description


def packed(description: Description, base: Base, method: Halrp, tuned: FineTuned) -> Delta:
    """A task's delta: all that was trained, or where parts were chosen, those in their precisions.

    A task that is best at its start has nothing besides its head.
    """
    start = tuned.start
    if start.parts is None:
        return Delta.pack(description, base.layout, tuned.factors, tuned.owned, start.recovered)
    parts: dict[str, tuple[Tensor, Precision]] = {}
    is_start = tuned.best_epoch == 0
    for name, factors in tuned.factors.items() if not is_start else ():
        for part, tensor in (("r", factors.r), ("s", factors.s)):
            if f"{part}/{name}" in start.parts:
                parts[f"{part}/{name}"] = tensor, start.parts[f"{part}/{name}"]
        if factors.rank:
            parts |= {f"p/{name}": (factors.p, method.precision), f"q/{name}": (factors.q, method.precision)}
    for name, tensor in tuned.owned.items():
        if name in start.dense:
            parts |= {} if is_start else {f"dense/{name}": (tensor, method.precision)}
        elif not is_start or base.plan.role(name) == "head":
            parts[f"plain/{name}"] = tensor, start.parts.get(f"plain/{name}", "float32")
    description = replace(description, format=PARTS_FORMAT, precision="float32")
    return Delta.of_parts(description, base.layout, base.tensors, parts, start.recovered)
