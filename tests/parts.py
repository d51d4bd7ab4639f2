"""Tasks of which every part is drawn: whether it is stored, in which precision, and its numbers."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch
from torch import Tensor

from halrp import Halrp, Recipe
from halrp.model.base import Base
from halrp.model.codec import PART_PRECISIONS, Precision
from halrp.model.delta import Delta, Recovered
from halrp.model.description import Description, described
from halrp.model.file_size import TensorEntry, planned_part_bytes
from halrp.model.layout import Slot
from halrp.provenance import describe

Parts = dict[str, tuple[Tensor, Precision]]


def drawn_parts(base: Base, seed: int, classes: int = 3, view: str = "full", share: float = 0.6) -> Parts:
    """Parts of a task on a base: about a `share` of those that it may have, and always its head."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    parts: Parts = {}

    def near(tensor: Tensor, size: float = 0.1) -> Tensor:
        """Another tensor of the same kind, close to it; of a variance, one above 0."""
        if not tensor.is_floating_point():
            return tensor + 3
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
        return tensor * (1 + size * noise.tanh()) + size * noise.abs()

    for slot in base.layout.slots:
        tensor, precision = base.tensors[slot.name], _precision(slot, choose)
        if slot.is_head:
            parts[f"plain/{slot.name}"] = near(torch.zeros(slot.shape_in(classes), dtype=tensor.dtype), 1), precision
        elif choose.random() > share:
            continue
        elif slot.kind != "adapted":
            parts[f"plain/{slot.name}"] = near(tensor), precision
        elif choose.random() < 0.2:
            parts[f"dense/{slot.name}"] = near(tensor), precision
        else:
            ones = torch.ones(max(slot.shape), dtype=tensor.dtype)
            for kind, count in (("r", slot.shape[0]), ("s", slot.shape[1])):
                if choose.random() < 0.6:
                    parts[f"{kind}/{slot.name}"] = near(ones[:count]), _precision(slot, choose)
            columns = slot.columns(view)
            rank = choose.randint(0, min(4, slot.shape[0], columns))
            if rank:
                parts[f"p/{slot.name}"] = near(tensor.new_zeros(slot.shape[0], rank)), precision
                parts[f"q/{slot.name}"] = near(tensor.new_zeros(rank, columns)), precision
    return parts


def _precision(slot: Slot, choose: random.Random) -> Precision:
    if not slot.torch_dtype.is_floating_point:
        return "float32"
    return choose.choice(PART_PRECISIONS[:2] if slot.kind == "buffer" else PART_PRECISIONS)


def recovered(base: Base) -> dict[str, Recovered]:
    """Numbers of an allocation for every adapted weight."""
    return {slot.name: Recovered(0.1, 0.2, 0.3) for slot in base.layout.adapted}


def parts_task(
    base: Base,
    seed: int = 0,
    classes: int = 3,
    view: str = "full",
    name: str = "parts",
    share: float = 0.6,
    learned: bool = False,
) -> Delta:
    """A task of drawn parts; if it counts as learned, it names a method and a recipe."""
    provenance = {"method": describe(Halrp.budget()), "recipe": describe(Recipe()), "seed": 0} if learned else {}
    description = Description(task=name, classes=classes, view=view, provenance=provenance)
    return Delta.of_parts(
        description, base.layout, base.tensors, drawn_parts(base, seed, classes, view, share), recovered(base)
    )


def planned(delta: Delta, extra: Mapping[str, TensorEntry] | None = None, recovered: bool = True) -> int:
    """The planned size of a task's file, from nothing but what it stores in which precision."""
    kinds = {key: key.partition("/")[0] for key in delta.precisions}
    names = {key: key.partition("/")[2] for key in delta.precisions}
    return planned_part_bytes(
        Description(**described(delta)),
        delta.layout,
        delta.ranks,
        delta.dense,
        {key: p for key, p in delta.precisions.items() if kinds[key] in ("r", "s", "plain")},
        matrices={names[key]: p for key, p in delta.precisions.items() if kinds[key] in ("p", "dense")},
        extra=extra,
        recovered=recovered,
    )
