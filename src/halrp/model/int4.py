"""A matrix in four bits an entry: whole numbers −7 … 7, two in a byte, with a scale for every 32 of them in a row.

The scale is the largest magnitude of its group over 7, as a bfloat16 number that is not below it, so that no entry is
clipped and none is off by more than half a scale. Groups and bytes begin again in each row; the first of two entries
has the lower four bits, and after an odd number of entries the upper four are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halrp.errors import DamagedError

GROUP = 32
"""Entries that share a scale."""
MOST = 7
"""The largest magnitude of a whole number."""


def groups(columns: int) -> int:
    """Scales of a row."""
    return -(-columns // GROUP)


def packed_columns(columns: int) -> int:
    """Bytes that hold the entries of a row."""
    return -(-columns // 2)


def row_bytes(columns: int) -> int:
    """Bytes of a row with its scales."""
    return packed_columns(columns) + 2 * groups(columns)


def encode(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Scales (rows, groups) in bfloat16 and packed entries (rows, bytes) of a matrix (rows, columns)."""
    rows, columns = matrix.shape
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    grouped = torch.nn.functional.pad(wide, (0, -columns % GROUP)).reshape(rows, groups(columns), GROUP)
    scale = _scales(grouped.abs().amax(dim=-1))
    steps = grouped / torch.where(scale > 0, scale.to(wide.dtype), 1).unsqueeze(-1)
    whole = steps.round().clamp(-MOST, MOST).to(torch.int8).reshape(rows, GROUP * groups(columns))
    return scale, _packed(whole[:, :columns])


def decode(scale: Tensor, packed: Tensor, shape: tuple[int, int]) -> Tensor:
    """The matrix (rows, columns) in float32, which is exact, or `DamagedError` if the parts do not fit."""
    rows, columns = shape
    if scale.shape != (rows, groups(columns)) or packed.shape != (rows, packed_columns(columns)):
        raise DamagedError(
            f"a matrix of {rows} × {columns} has scales of shape {tuple(scale.shape)} and bytes of shape "
            f"{tuple(packed.shape)}"
        )
    return numbers(packed, columns).float() * scale.float().repeat_interleave(GROUP, dim=1)[:, :columns]


def numbers(packed: Tensor, columns: int) -> Tensor:
    """The whole numbers (rows, columns) of packed entries, between −8 and 7."""
    both = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], 2 * packed.shape[1])
    return (both[:, :columns].to(torch.int8) ^ 8) - 8


def problem(packed: Tensor, columns: int) -> str:
    """Why bytes are not as `encode` writes them, or nothing."""
    if columns % 2 and bool((packed[:, -1] >> 4).any()):
        return "bits after the last entry of a row"
    return "an entry of −8" if bool((numbers(packed, columns) < -MOST).any()) else ""


def _packed(whole: Tensor) -> Tensor:
    nibbles = torch.nn.functional.pad(whole, (0, whole.shape[1] % 2)).to(torch.uint8) & 15
    return nibbles[:, ::2] | (nibbles[:, 1::2] << 4)


def _scales(largest: Tensor) -> Tensor:
    """The smallest bfloat16 numbers of which 7 are not below the largest magnitude of each group.

    Rounding may have gone down: then it is the number with the next bit pattern. The product with 7 is exact.
    """
    rounded = (largest / MOST).to(torch.bfloat16)
    following = (rounded.view(torch.int16) + 1).view(torch.bfloat16)
    return torch.where(rounded.to(largest.dtype) * MOST < largest, following, rounded)
