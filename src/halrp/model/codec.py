"""How a matrix is written to a file: in which precision, and with or without its zeros.

Rows are what shares a scale: components of a factor, filters of an owned weight. In `int8` a row is its largest
magnitude over 127, times whole numbers; in `bfloat16` eight bits of mantissa are kept. In `int4` (the module of that
name) 32 neighbours in a row share a scale, and two entries a byte. A matrix with many exact zeros (after pruning) is
written as a bit per entry and the other entries, when that is smaller, but not in `int4`.

A `Coded` matrix is the truth: what a task predicts is computed from `decode`, before it is saved as after it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from halrp.errors import DamagedError, SettingError
from halrp.model import int4

Precision = Literal["float32", "bfloat16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
"""Precisions that all matrices of a task can have."""
PART_PRECISIONS: tuple[Precision, ...] = (*PRECISIONS, "int4")
"""Precisions that one part of a task can have."""
MASKED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8})
"""Types of entries that may be written without zeros."""
_MASK_HEADER = 96
"""Bytes that the first mask of a file adds to its header at most."""


@dataclass(frozen=True, eq=False)
class Coded:
    """A matrix as it is written: `values`, and where they apply `scale` and `mask` (a bit per entry).

    A scale is that of a row (rows,), or of 32 entries (rows, groups) if two values share a byte.
    """

    rows: int
    columns: int
    parts: Mapping[str, Tensor]

    @property
    def bytes(self) -> int:
        """Bytes of the written tensors."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())


def row_bytes(columns: int, precision: Precision, element_size: int = 4) -> int:
    """Bytes of one dense row."""
    if precision == "int4":
        return int4.row_bytes(columns)
    size = {"float32": element_size, "bfloat16": 2, "int8": 1}[precision]
    return columns * size + (4 if precision == "int8" else 0)


def encode(matrix: Tensor, precision: Precision) -> Coded:
    """Write a matrix (rows, columns) in a precision, without its zeros when that is smaller.

    `float32` means the matrix's own floating type: nothing is lost.
    """
    if precision not in PART_PRECISIONS:
        raise SettingError(f"precision is {precision!r}; choose one of {', '.join(map(repr, PART_PRECISIONS))}")
    if precision == "int4":
        scale, packed = int4.encode(matrix)
        return Coded(matrix.shape[0], matrix.shape[1], {"scale": scale, "values": packed})
    return _with_zeros_left_out(matrix, precision)


def _with_zeros_left_out(matrix: Tensor, precision: Precision) -> Coded:
    parts: dict[str, Tensor] = {}
    if precision == "int8":
        scale = matrix.abs().amax(dim=1).float() / 127 if matrix.numel() else matrix.new_zeros(matrix.shape[0]).float()
        steps = matrix / torch.where(scale > 0, scale, 1).unsqueeze(1)
        values = steps.round().clamp(-127, 127).to(torch.int8)
        parts["scale"] = scale
    else:
        values = matrix.to(torch.bfloat16) if precision == "bfloat16" else matrix
    parts["values"] = values
    if values.dtype in MASKED:
        present = values != 0
        stored = int(present.sum())
        packed = (present.numel() + 7) // 8
        if packed + stored * values.element_size() + _MASK_HEADER < values.numel() * values.element_size():
            parts |= {"mask": pack(present), "values": values[present]}
    return Coded(matrix.shape[0], matrix.shape[1], parts)


def decode(coded: Coded, dtype: torch.dtype) -> Tensor:
    """Read a matrix back in a type. Parts that do not fit together raise `DamagedError`."""
    entries = coded.rows * coded.columns
    if "values" not in coded.parts:
        raise DamagedError(f"a matrix of {coded.rows} × {coded.columns} has no values")
    values = coded.parts["values"]
    if values.dtype == torch.uint8 and "scale" in coded.parts:
        return int4.decode(coded.parts["scale"], values, (coded.rows, coded.columns)).to(dtype)
    if "mask" in coded.parts:
        present = unpack(coded.parts["mask"], entries)
        if values.dim() != 1 or int(present.sum()) != values.numel():
            raise DamagedError(f"a sparse matrix marks {int(present.sum())} entries but holds {values.numel()}")
        dense = values.new_zeros(entries)
        dense[present] = values
        values = dense
    if values.numel() != entries:
        raise DamagedError(f"a matrix of {coded.rows} × {coded.columns} holds {values.numel()} entries")
    matrix = values.reshape(coded.rows, coded.columns).to(dtype)
    if "scale" in coded.parts:
        scale = coded.parts["scale"]
        if scale.shape != (coded.rows,):
            raise DamagedError(f"a matrix of {coded.rows} rows has scales of shape {tuple(scale.shape)}")
        matrix = matrix * scale.to(dtype).unsqueeze(1)
    return matrix


_BITS = (1, 2, 4, 8, 16, 32, 64, 128)


def pack(present: Tensor) -> Tensor:
    """Pack booleans into bytes, eight each, lowest bit first."""
    flat = present.reshape(-1).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).reshape(-1, 8)
    return (flat * torch.tensor(_BITS, dtype=torch.uint8, device=flat.device)).sum(1, dtype=torch.uint8)


def unpack(mask: Tensor, entries: int) -> Tensor:
    """Read `entries` booleans back from packed bytes."""
    if mask.dtype != torch.uint8 or mask.numel() != (entries + 7) // 8:
        raise DamagedError(f"a mask of {mask.numel()} bytes ({mask.dtype}) does not fit {entries} entries")
    bits = torch.tensor(_BITS, dtype=torch.uint8, device=mask.device)
    return (mask.reshape(-1, 1) & bits).reshape(-1)[:entries] != 0
