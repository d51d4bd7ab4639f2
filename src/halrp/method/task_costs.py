"""What a task costs before its first component, and the exact size of its file for any choice of the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from halrp.method.protocols import Allocator, FixedCost, TaskCosts
from halrp.model import codec
from halrp.model.codec import Precision
from halrp.model.costs import weight_costs
from halrp.model.description import PARTS_FORMAT, Description
from halrp.model.file_size import PROOF, TensorEntry, planned_bytes, planned_part_bytes
from halrp.model.layout import Layout, Slot
from halrp.model.size import Size


@dataclass(frozen=True)
class Costs:
    """The costs of a task on a base: stored whole, with all that tasks own, or part by part."""

    layout: Layout
    """Of the base."""
    precision: Precision
    """Of components and dense weights."""
    described: Callable[[str, Allocator], Description]
    """The task's description in a view of convolutions, for an allocation: a budget is part of its provenance."""
    rest: Precision = "float32"
    """Of scales, and of all that a task owns in any case, where it is stored whole."""
    redrawn: frozenset[str] = frozenset()
    """The buffers of a new head that are not the base's (`redrawn_buffers`)."""
    statistics: Mapping[str, TensorEntry] = field(default_factory=dict)
    """The tensors of prototypes, if the task has them."""

    def __call__(self, owned: Mapping[str, Tensor], view: str) -> TaskCosts:
        """The costs of a task that owns some tensors, and both scales of every factored weight, in any case."""
        return self._whole({name: tuple(tensor.shape) for name, tensor in owned.items()}, view)

    def foreseen(self, buffers: Collection[str], classes: int, view: str) -> TaskCosts:
        """The same before it is trained, if it will own these `buffers` and a head of that many classes."""
        slots = (slot for slot in self.layout.slots if slot.kind == "owned" or slot.name in buffers)
        return self._whole({slot.name: slot.shape_in(classes) for slot in slots}, view)

    def parts(
        self,
        view: str,
        classes: int,
        head: Precision,
        small: Mapping[str, Precision] | None = None,
        weights: Collection[str] = (),
        matrices: Mapping[str, Precision] | None = None,
    ) -> TaskCosts:
        """The costs of a task that owns a head, in that precision, and of the rest what is chosen.

        That are the parts `small`, whose rank is 1 if they are chosen, and components of `weights`, of which `matrices`
        gives the precision if it is not that of all.
        """
        small = small or {}
        slots = [self.layout.by_name[name] for name in sorted(self.layout.head | self.redrawn)]
        precisions = {slot.name: part_precision(slot, head) for slot in slots}
        mandatory = {f"plain/{name}": precision for name, precision in precisions.items()}

        def file_bytes(ranks: Mapping[str, int], allocation: Allocator) -> int:
            description = replace(self.described(view, allocation), format=PARTS_FORMAT, precision="float32")
            dense = {name for name in weights if name not in ranks}
            chosen = stored_parts((key for key in small if ranks.get(key)), dense)
            return planned_part_bytes(
                description,
                self.layout,
                ranks={name: ranks[name] for name in weights if ranks.get(name)},
                dense=dense,
                parts=mandatory | {key: small[key] for key in chosen},
                precision=self.precision,
                matrices=matrices,
                extra=PROOF | dict(self.statistics),
            )

        return TaskCosts([_part_cost(s, s.shape_in(classes), precisions[s.name]) for s in slots], file_bytes)

    def scales(self, slot: Slot) -> Size:
        """What both scales of a weight cost."""
        sides = slot.shape[:2]
        return Size(sum(sides), sum(part_bytes((side,), self.rest, slot.itemsize) for side in sides))

    def owned_precision(self, name: str) -> Precision:
        """The precision of a tensor that a task owns in any case."""
        return part_precision(self.layout.by_name[name], self.rest)

    def _whole(self, owned: Mapping[str, tuple[int, ...]], view: str) -> TaskCosts:
        if self.rest != "float32":
            return self._all_parts(owned, view)

        def file_bytes(ranks: Mapping[str, int], allocation: Allocator) -> int:
            description = self.described(view, allocation)
            return planned_bytes(description, self.layout, ranks, owned.keys(), self.statistics)

        fixed = [_fixed_cost(self.layout.by_name[n], shape, self.precision) for n, shape in owned.items()]
        return TaskCosts(fixed, file_bytes)

    def _all_parts(self, owned: Mapping[str, tuple[int, ...]], view: str) -> TaskCosts:
        """The costs of a task that stores all that it owns, and both scales of every factored weight, as parts."""
        plain = {f"plain/{name}": self.owned_precision(name) for name in owned}

        def file_bytes(ranks: Mapping[str, int], allocation: Allocator) -> int:
            adapted = [slot.name for slot in self.layout.adapted]
            return planned_part_bytes(
                replace(self.described(view, allocation), format=PARTS_FORMAT, precision="float32"),
                self.layout,
                ranks={name: rank for name, rank in ranks.items() if rank},
                dense=[name for name in adapted if name not in ranks],
                parts=plain | {f"{side}/{name}": self.rest for name in ranks for side in "rs"},
                precision=self.precision,
                extra=PROOF | dict(self.statistics),
            )

        slots = self.layout.by_name
        return TaskCosts(
            [_part_cost(slots[n], shape, self.owned_precision(n)) for n, shape in owned.items()], file_bytes
        )


def part_precision(slot: Slot, rest: Precision) -> Precision:
    """The precision of a tensor that a task owns among those of the precision `rest`."""
    return buffer_precision(slot.torch_dtype, rest) if slot.kind == "buffer" else rest


def buffer_precision(dtype: torch.dtype, rest: Precision) -> Precision:
    """The precision of a buffer among tensors of the precision `rest`: a variance must stay one, a number a number."""
    if rest == "float32":
        return rest
    return "bfloat16" if dtype.is_floating_point and dtype.itemsize > 2 else "float32"


def stored_parts(chosen: Iterable[str], dense: Collection[str]) -> list[str]:
    """The chosen parts that are stored: a dense weight needs no scales."""
    return [key for key in chosen if key[:2] not in ("r/", "s/") or key[2:] not in dense]


def part_bytes(shape: tuple[int, ...], precision: Precision, element: int) -> int:
    """Bytes of a tensor that is stored as a part: rows of its first dimension, or one row if it has no other."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows * codec.row_bytes(math.prod(shape) // max(1, rows), precision, element)


def _part_cost(slot: Slot, shape: tuple[int, ...], precision: Precision) -> FixedCost:
    return FixedCost(slot.name, math.prod(shape), part_bytes(shape, precision, slot.itemsize))


def _fixed_cost(slot: Slot, shape: tuple[int, ...], precision: Precision) -> FixedCost:
    """What an owned tensor costs; small weights are written in the task's precision."""
    entries = math.prod(shape)
    encoded = weight_costs(shape, 0, precision, slot.itemsize).dense.bytes if slot.encoded else entries * slot.itemsize
    return FixedCost(slot.name, entries, encoded)
