"""Where everything stands in a task's file, and the exact size of that file before anything is serialised.

A file is a safetensors file: 8 bytes that give the length of a JSON header, the header, and tensors. All numbers of one
type stand in one flat tensor, in the order of the base's layout (`docs/format.md`). `store/task_file.py` writes and
reads them; here they are only counted, so that budgets can use the exact size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from halrp.model import int4, task_parts
from halrp.model.codec import Precision
from halrp.model.description import PARTS_FORMAT, Description, described
from halrp.model.layout import DTYPES, Layout, Slot

METADATA = "halrp"
"""The one key of a file's metadata; its value is JSON."""
INDEX, RECOVERED, CODES = "index", "recovered", "codes"
"""Names of the tensors that hold ranks and flags, what the allocation predicted, and the precisions of parts."""


class Piece(NamedTuple):
    """A stretch of numbers in a file: a plain tensor, or a matrix that may be written without its zeros."""

    part: str
    """r, s, p, q or dense of a weight, or plain."""
    slot: Slot
    shape: tuple[int, ...]
    dtype: str
    """Of the numbers as they are written."""
    matrix: bool = False
    precision: Precision = "float32"
    """Of a matrix."""

    @property
    def key(self) -> str:
        """A name for the piece."""
        return f"{self.part}/{self.slot.name}"


class TensorEntry(NamedTuple):
    """A tensor in a file's header."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


PROOF_INPUTS, PROOF_NUMBERS = 128, 16
"""Letters of the text that describes a task's inputs, and numbers that sum up what it gave for some (`proof`)."""
PROOF = {"probe/inputs": TensorEntry("U8", (PROOF_INPUTS,)), "probe/outputs": TensorEntry("F32", (PROOF_NUMBERS,))}
"""The tensors of a proof."""


def pieces(
    layout: Layout, description: Description, ranks: Mapping[str, int], buffers: Collection[str]
) -> Iterator[Piece]:
    """What a file holds, in order. An adapted weight without a rank is dense; the task owns these `buffers`."""
    for slot in layout.slots:
        if slot.kind == "adapted" and slot.name in ranks:
            yield from _factors(slot, description, ranks[slot.name])
        elif slot.encoded:
            rows = (slot.shape[0], math.prod(slot.shape[1:]))
            dtype = stored_dtype(slot, description.precision)
            yield Piece("dense", slot, rows, dtype, matrix=True, precision=description.precision)
        elif slot.kind == "owned" or slot.name in buffers:
            yield Piece("plain", slot, slot.shape_in(description.classes), slot.dtype)


def _factors(slot: Slot, description: Description, rank: int) -> Iterator[Piece]:
    dtype = stored_dtype(slot, description.precision)
    yield Piece("r", slot, slot.shape[:1], slot.dtype)
    yield Piece("s", slot, slot.shape[1:2], slot.dtype)
    for part, columns in (("p", slot.shape[0]), ("q", slot.columns(description.view))):
        yield Piece(part, slot, (rank, columns), dtype, matrix=True, precision=description.precision)


def part_pieces(
    layout: Layout, description: Description, ranks: Mapping[str, int], precisions: Mapping[str, Precision]
) -> Iterator[Piece]:
    """What a file holds in which every part has its precision, in order; every part is written as a matrix."""
    for key in task_parts.ordered(precisions, layout):
        part, slot, precision = task_parts.kind_of(key), layout.by_name[task_parts.name_of(key)], precisions[key]
        shape = task_parts.shape_of(part, slot, ranks.get(slot.name, 0), description.view, description.classes)
        rows = task_parts.matrix_shape(part, shape)
        yield Piece(part, slot, rows, stored_dtype(slot, precision), matrix=True, precision=precision)


def stored_dtype(slot: Slot, precision: Precision) -> str:
    """The type in which the entries of a matrix are written."""
    return {"float32": slot.dtype, "bfloat16": "BF16", "int8": "I8", "int4": "U8"}[precision]


def flag_count(layout: Layout) -> int:
    """The number of flags: two for an adapted weight, one for another matrix, one for a buffer."""
    return sum(2 if s.kind == "adapted" else 1 for s in layout.slots if s.encoded or s.kind == "buffer")


def index_length(layout: Layout) -> int:
    """Entries of the index: a rank for each adapted weight, and the flags, 32 in each."""
    return len(layout.adapted) + (flag_count(layout) + 31) // 32


def code_count(layout: Layout) -> int:
    """The number of codes: three for an adapted weight (r, s, matrix), one for each other tensor."""
    return sum(3 if slot.kind == "adapted" else 1 for slot in layout.slots)


def entries(
    layout: Layout,
    counts: Mapping[str, int],
    recovered: bool,
    extra: Mapping[str, TensorEntry] | None = None,
    parts: bool = False,
) -> dict[str, TensorEntry]:
    """The tensors of a file in their order: those with the widest numbers first, so that each begins aligned.

    `counts` are the numbers of each type; `extra` are the tensors that have a name and a shape of their own. With
    `parts` there are codes in place of flags.
    """
    named = {dtype: TensorEntry(dtype, (count,)) for dtype, count in counts.items() if count}
    if layout.slots:
        named[INDEX] = TensorEntry("I32", (len(layout.adapted) if parts else index_length(layout),))
    if layout.slots and parts:
        named[CODES] = TensorEntry("U8", (code_count(layout),))
    if recovered and layout.adapted:
        named[RECOVERED] = TensorEntry("F32", (3 * len(layout.adapted),))
    named |= extra or {}
    return ordered(named)


def ordered(tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Tensors in the order of a file."""
    return dict(sorted(tensors.items(), key=lambda item: (-DTYPES[item[1].dtype].itemsize, item[0])))


def header(text: str, tensors: Mapping[str, TensorEntry]) -> bytes:
    """The beginning of a file: the header's length, and the header, padded with spaces to whole words of 8 bytes."""
    parts: dict[str, object] = {"__metadata__": {METADATA: text}}
    start = 0
    for name, entry in tensors.items():
        end = start + entry.bytes
        parts[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
        start = end
    encoded = json.dumps(parts, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded


def file_bytes(description: Description, layout: Layout, tensors: Mapping[str, TensorEntry]) -> int:
    """The size of a file."""
    text = description.text(layout.fingerprint, layout.digest)
    return len(header(text, tensors)) + sum(entry.bytes for entry in tensors.values())


def planned_bytes(
    description: Description,
    layout: Layout,
    ranks: Mapping[str, int],
    buffers: Collection[str],
    extra: Mapping[str, TensorEntry] | None = None,
) -> int:
    """The exact size of the file of a task with these ranks, before it is learned; other adapted weights are dense.

    `extra` are the tensors of statistics. Matrices count with all their entries: zeros can only make the file smaller.
    """
    counts = _counts(pieces(layout, description, ranks, buffers))
    return file_bytes(description, layout, entries(layout, counts, recovered=True, extra=extra))


def planned_part_bytes(
    description: Description,
    layout: Layout,
    ranks: Mapping[str, int],
    dense: Collection[str],
    parts: Mapping[str, Precision],
    precision: Precision = "float32",
    *,
    matrices: Mapping[str, Precision] | None = None,
    extra: Mapping[str, TensorEntry] | None = None,
    recovered: bool = True,
) -> int:
    """The exact size of the file of a task that stores these parts, before it is learned (`Delta.of_parts`).

    `parts` gives the precisions of `r/NAME`, `s/NAME` and `plain/NAME`. Weights with a rank have components, those in
    `dense` are stored in full, both in the `precision`, or in that which `matrices` gives for a weight. `extra` are
    tensors of a probe or statistics. Matrices count with all their entries: zeros can only make the file smaller.
    """
    precisions = dict(parts)
    for name, rank in ranks.items():
        if rank:
            precisions |= dict.fromkeys((f"p/{name}", f"q/{name}"), (matrices or {}).get(name, precision))
    precisions |= {f"dense/{name}": (matrices or {}).get(name, precision) for name in dense}
    task_parts.refuse_choice(layout, precisions)
    written = Description(**described(description) | {"format": PARTS_FORMAT, "precision": "float32"})
    counts = _counts(part_pieces(layout, written, ranks, precisions))
    return file_bytes(written, layout, entries(layout, counts, recovered, extra, parts=True))


def _counts(written: Iterable[Piece]) -> dict[str, int]:
    """The numbers of each type that pieces have, with all their zeros."""
    counts: dict[str, int] = {}

    def add(dtype: str, count: int) -> None:
        counts[dtype] = counts.get(dtype, 0) + count

    for piece in written:
        if piece.matrix and piece.precision == "int4":
            rows, columns = piece.shape
            add("BF16", rows * int4.groups(columns))
            add("U8", rows * int4.packed_columns(columns))
        else:
            add(piece.dtype, math.prod(piece.shape))
            if piece.matrix and piece.precision == "int8":
                add("F32", piece.shape[0])
    return counts
