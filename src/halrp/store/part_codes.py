"""Which parts a task's file of format 3 holds, and in which precision: a byte for each part that a task may have.

An adapted weight has three: r, s, and its matrix, which is p and q if its rank is above 0 and the dense weight if it is
−1. Any other tensor has one. The lowest three bits are the precision, 0 if the part is the base's; bit 6 says that the
part (p, of a pair) has a mask, bit 7 that q has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from halrp.errors import DamagedError, ModelError, SettingError
from halrp.model import codec, file_size, task_parts
from halrp.model.codec import PART_PRECISIONS, Precision
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.layout import DTYPES, Layout, Slot
from halrp.store.requirements import require

_PRECISION, _MASK, _SECOND_MASK = 0b111, 1 << 6, 1 << 7


def index(delta: Delta) -> Tensor:
    """For each adapted weight its rank, 0 if it has no components, −1 if it is dense."""
    ranks, dense = delta.ranks, set(delta.dense)
    rows = [-1 if slot.name in dense else ranks.get(slot.name, 0) for slot in delta.layout.adapted]
    return torch.tensor(rows, dtype=torch.int32)


def codes(delta: Delta) -> Tensor:
    """The bytes of all parts, in the order of the layout."""
    ranks = {name: rank for name, rank in delta.ranks.items() if rank}
    coded, precisions = held(delta.coded), held(delta.precisions)
    written = []
    for keys in _parts(delta.layout, ranks, delta.dense):
        byte = 0
        if keys and keys[0] in precisions:
            byte = 1 + PART_PRECISIONS.index(precisions[keys[0]])
            for key, bit in zip(keys, (_MASK, _SECOND_MASK), strict=False):
                byte |= bit if "mask" in coded[key].parts else 0
        written.append(byte)
    return torch.tensor(written, dtype=torch.uint8)


def parse(
    content: Tensor, layout: Layout, ranks: Mapping[str, int], dense: Collection[str]
) -> tuple[dict[str, Precision], set[str]]:
    """The precision of each part, in the order of the file, and the parts with a mask, or `DamagedError`."""
    good = content.dtype == torch.uint8 and content.shape == (file_size.code_count(layout),)
    require(good, "its codes are not a byte for each part")
    precisions: dict[str, Precision] = {}
    masked: set[str] = set()
    for keys, byte in zip(_parts(layout, ranks, dense), content.tolist(), strict=True):
        number = byte & _PRECISION
        known = number <= len(PART_PRECISIONS) and not byte & ~(_PRECISION | _MASK | _SECOND_MASK)
        require(known, f"it has a code {byte:#04x} for {_names(keys)}")
        if not number:
            require(byte == 0, f"it has a code {byte:#04x} for {_names(keys)}, which it does not hold")
            continue
        require(bool(keys), "it has a precision for the matrix of a weight without one")
        precisions |= dict.fromkeys(keys, PART_PRECISIONS[number - 1])
        require(len(keys) == 2 or not byte & _SECOND_MASK, f"{_names(keys)} has two masks")
        masked |= {key for key, bit in zip(keys, (_MASK, _SECOND_MASK), strict=False) if byte & bit}
    _refuse(layout, ranks, dense, precisions, masked)
    return precisions, masked


def _refuse(
    layout: Layout,
    ranks: Mapping[str, int],
    dense: Collection[str],
    precisions: Mapping[str, Precision],
    masked: Collection[str],
) -> None:
    """Raise for parts that no task has."""
    try:
        task_parts.refuse_choice(layout, precisions)
    except (ModelError, SettingError) as error:
        raise DamagedError(str(error)) from error
    for key in (*(f"p/{name}" for name in ranks), *(f"dense/{name}" for name in dense)):
        require(key in precisions, f"{key} has no precision")
    for key in masked:
        dtype = DTYPES[file_size.stored_dtype(layout.by_name[task_parts.name_of(key)], precisions[key])]
        require(precisions[key] != "int4" and dtype in codec.MASKED, f"{key} has a mask, which its type cannot have")


def _parts(layout: Layout, ranks: Mapping[str, int], dense: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The keys that each byte is for; none for the matrix of a weight that has none."""
    for slot in layout.slots:
        if slot.kind == "adapted":
            yield (f"r/{slot.name}",)
            yield (f"s/{slot.name}",)
            yield _matrix(slot, ranks, dense)
        else:
            yield (f"plain/{slot.name}",)


def _matrix(slot: Slot, ranks: Mapping[str, int], dense: Collection[str]) -> tuple[str, ...]:
    if slot.name in dense:
        return (f"dense/{slot.name}",)
    return (f"p/{slot.name}", f"q/{slot.name}") if slot.name in ranks else ()


def _names(keys: tuple[str, ...]) -> str:
    return " and ".join(keys) or "the matrix of a weight without one"
