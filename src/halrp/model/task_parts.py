"""The parts of a task in which each has a precision of its own: what they are, how one is written and what it means.

A part is named by what it is and by the tensor that it belongs to: `r/NAME`, `s/NAME`, `p/NAME`, `q/NAME` and
`dense/NAME` of an adapted weight, `plain/NAME` of any other tensor that a task may own. What a task does not store is
the base's, but for the head, which every task has.

`float32` means the tensor's own type, and the value is stored. Every other precision loses something, so what is
stored is small: the difference to the base, to ones for r and s. p and q, the head, whose shape is the task's, and
buffers, whose numbers may have to stay positive, are stored as values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from halrp.errors import ModelError, SettingError
from halrp.model import codec
from halrp.model.codec import PART_PRECISIONS, Coded, Precision
from halrp.model.factors import Factors
from halrp.model.layout import Layout, Slot

KINDS = ("r", "s", "p", "q", "dense", "plain")
"""What parts are, in the order in which those of one tensor are written."""
_LOSSY = ("F64", "F32", "F16", "BF16")
"""Types of tensors that may be stored in another precision."""


class PartSize(NamedTuple):
    """What one part takes in a task's file."""

    precision: Precision
    entries: int
    """Numbers to store: those of p and q that are not zero, and all of another part."""
    bytes: int


def kind_of(key: str) -> str:
    """What a part is: r, s, p, q, dense or plain."""
    return key.partition("/")[0]


def name_of(key: str) -> str:
    """The tensor that a part belongs to."""
    return key.partition("/")[2]


def ordered(keys: Iterable[str], layout: Layout) -> list[str]:
    """Keys of parts in the order in which a file holds them."""
    position = {slot.name: number for number, slot in enumerate(layout.slots)}
    return sorted(keys, key=lambda key: (position[name_of(key)], KINDS.index(kind_of(key))))


def shape_of(kind: str, slot: Slot, rank: int, view: str, classes: int) -> tuple[int, ...]:
    """The shape of a part's value."""
    rows = slot.shape[:1]
    shapes = {"r": rows, "s": slot.shape[1:2], "p": (*rows, rank), "q": (rank, slot.columns(view))}
    return shapes.get(kind) or slot.shape_in(classes)


def matrix_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a part as it is written: components, filters, or all of a vector in one row."""
    if kind == "p":
        return shape[1], shape[0]
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def is_difference(kind: str, slot: Slot, precision: Precision) -> bool:
    """Whether a part is stored as a difference: of r and s to ones, of others to the base's tensor."""
    return precision != "float32" and kind not in ("p", "q") and slot.kind != "buffer" and not slot.is_head


def precision_problem(slot: Slot, precision: object) -> str:
    """Why parts of a tensor cannot have a precision, or nothing."""
    if precision not in PART_PRECISIONS:
        return f"precision is {precision!r}; choose one of {', '.join(map(repr, PART_PRECISIONS))}"
    if precision != "float32" and slot.dtype not in _LOSSY:
        return f"a tensor of type {slot.torch_dtype} has no precision but 'float32', which keeps its type"
    if slot.kind == "buffer" and precision not in ("float32", "bfloat16"):
        return f"a buffer in {precision!r} could have a variance of 0 or below; choose 'float32' or 'bfloat16'"
    return ""


# ---- one part ---------------------------------------------------------------------------------------------------


def encode(kind: str, slot: Slot, value: Tensor, precision: Precision, base: Tensor | None) -> Coded:
    """A part as it is written; `base` is the base's tensor."""
    value = value.detach()
    if is_difference(kind, slot, precision):
        value = value - (1 if base is None else base.to(value.device))
    else:
        value = value.clone()  # whoever trained it may go on
    matrix = value.mT if kind == "p" else value
    return codec.encode(matrix.reshape(matrix_shape(kind, tuple(value.shape))).contiguous(), precision)


def decode(kind: str, slot: Slot, coded: Coded, classes: int) -> Tensor:
    """What is stored of a part, a value or a difference, in the shape and type of the value."""
    matrix = codec.decode(coded, slot.torch_dtype)
    if kind in ("p", "q"):
        return matrix.mT if kind == "p" else matrix
    return matrix.reshape(shape_of(kind, slot, 0, "", classes))


# ---- all parts of a task ------------------------------------------------------------------------------------------


def ranks(coded: Mapping[str, Coded]) -> dict[str, int]:
    """The rank of each weight with scales or components, in the order of the parts."""
    names = dict.fromkeys(name_of(key) for key in coded if kind_of(key) in ("r", "s", "p", "q"))
    return {name: coded[f"q/{name}"].rows if f"q/{name}" in coded else 0 for name in names}


def factors(
    layout: Layout, view: str, coded: Mapping[str, Coded], precisions: Mapping[str, Precision]
) -> dict[str, Factors]:
    """The factors of weights with scales or components: ones for scales that are not stored."""
    made = {}
    for name in ranks(coded):
        slot = layout.by_name[name]
        stored = {kind: coded[f"{kind}/{name}"] for kind in "rspq" if f"{kind}/{name}" in coded}
        values = {kind: decode(kind, slot, part, 0) for kind, part in stored.items()}
        for kind in "rs":
            if kind in values and is_difference(kind, slot, precisions[f"{kind}/{name}"]):
                values[kind] = values[kind] + 1
        like = next(iter(values.values()))
        for kind in "rspq":
            if kind not in values:
                shape = shape_of(kind, slot, 0, view, 0)
                values[kind] = like.new_ones(shape) if kind in "rs" else like.new_zeros(shape)
        made[name] = Factors(*(values[kind] for kind in "rspq"))
    return made


def owned(
    layout: Layout,
    classes: int,
    coded: Mapping[str, Coded],
    precisions: Mapping[str, Precision],
    origin: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The full tensors of a task: dense weights, and all that is not adapted; `origin` are the base's."""
    tensors = {}
    for key, part in coded.items():
        kind, name = kind_of(key), name_of(key)
        if kind not in ("dense", "plain"):
            continue
        slot = layout.by_name[name]
        tensors[name] = decode(kind, slot, part, classes)
        if is_difference(kind, slot, precisions[key]):
            if name not in origin:
                raise ModelError(
                    f"{name} is stored as the difference to the base's, and this delta does not know its base: take "
                    "the task from a learner or load it with its base, or bind it by delta.on(base.tensors)"
                )
            base = origin[name]
            tensors[name] = base + tensors[name].to(base.device)
    return tensors


def sizes(layout: Layout, coded: Mapping[str, Coded], precisions: Mapping[str, Precision]) -> dict[str, PartSize]:
    """What each part takes."""
    counted = {}
    for key, part in coded.items():
        entries = part.rows * part.columns
        if kind_of(key) in ("p", "q"):
            dtype = layout.by_name[name_of(key)].torch_dtype
            entries = int(codec.decode(part, dtype).count_nonzero())
        counted[key] = PartSize(precisions[key], entries, part.bytes)
    return counted


# ---- what a task may store ----------------------------------------------------------------------------------------


def refuse_misfits(
    layout: Layout,
    view: str,
    classes: int,
    origin: Mapping[str, Tensor],
    parts: Mapping[str, tuple[Tensor, Precision]],
) -> None:
    """Refuse what no file could hold: unknown parts, other shapes or types, half a pair, no head."""
    refuse_choice(layout, {key: precision for key, (_, precision) in parts.items()})
    for key, (value, precision) in parts.items():
        kind, name = kind_of(key), name_of(key)
        slot = layout.by_name[name]
        rank = parts[f"q/{name}"][0].shape[0] if kind in ("p", "q") else 0
        shape = shape_of(kind, slot, rank, view, classes)
        if tuple(value.shape) != shape or value.dtype != slot.torch_dtype:
            raise ModelError(
                f"{key} has shape {tuple(value.shape)} and type {value.dtype}, expected {shape} and "
                f"{slot.torch_dtype}; a task's tensors keep the shapes and types of the base"
            )
        if rank and rank > min(slot.shape[0], slot.columns(view)):
            raise ModelError(f"{key} has rank {rank}, above {min(slot.shape[0], slot.columns(view))}")
        needs_base = kind in ("dense", "plain") and is_difference(kind, slot, precision)
        if needs_base and (name not in origin or tuple(origin[name].shape) != slot.shape):
            raise ModelError(f"{key} in {precision!r} is a difference to the base's tensor; give it in `origin`")


def refuse_choice(layout: Layout, precisions: Mapping[str, Precision]) -> None:
    """Refuse parts that a task of a base cannot have, or cannot have together, and a task without its head."""
    for key, precision in precisions.items():
        kind, name = kind_of(key), name_of(key)
        slot = layout.by_name.get(name)
        if slot is None or kind not in KINDS or (kind == "plain") == (slot.kind == "adapted"):
            raise ModelError(f"{key} is no part that a task can own: it is shared with the base, or not part of it")
        problem = precision_problem(slot, precision)
        if problem:
            raise SettingError(f"{key}: {problem}")
        others = {other: precisions.get(f"{other}/{name}") for other in KINDS}
        if kind == "dense" and any(others[other] for other in ("r", "s", "p", "q")):
            raise ModelError(f"{name} is stored in full, and has scales or components besides; store one or the other")
        if kind in ("p", "q") and others["p"] != others["q"]:
            raise ModelError(
                f"{name} has p in {others['p']!r} and q in {others['q']!r}; store both in one precision, or neither"
            )
    missing = [name for name in sorted(layout.head) if f"plain/{name}" not in precisions]
    if precisions and missing:
        raise ModelError(f"a task has a head of its own: store plain/{missing[0]} too")
