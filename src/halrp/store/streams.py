"""The tensors of a task's file as streams of numbers, each read from its beginning to its end.

Nothing is read that the file does not hold, so memory is bounded by the file's size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from halrp.model import codec, int4
from halrp.model.codec import Coded
from halrp.model.delta import Recovered
from halrp.model.file_size import RECOVERED, Piece, TensorEntry
from halrp.model.layout import DTYPES, Layout
from halrp.store.requirements import require

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_EXTRA = 64
"""Tensors of a probe and statistics that a file may have."""


def raw(tensors: list[Tensor]) -> bytes:
    """The bytes of numbers, one tensor after the other."""
    return b"".join(
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors
        if tensor.numel()
    )


class Streams:
    """The tensors of a file, each read from its beginning to its end."""

    def __init__(self, entries: Mapping[str, tuple[TensorEntry, int]], data: bytes) -> None:
        self._tensors = {name: _tensor(entry, data, start) for name, (entry, start) in entries.items()}
        self._position = dict.fromkeys(DTYPES, 0)

    def whole(self, name: str) -> Tensor:
        """A tensor with a name of its own."""
        require(name in self._tensors, f"it has no tensor {name!r}")
        return self._tensors.pop(name)

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with a prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        require(len(names) <= _MOST_EXTRA, f"it has {len(names)} tensors {prefix}…")
        tensors = {name.removeprefix(prefix): self._tensors.pop(name) for name in sorted(names)}
        require(all(_NAME.fullmatch(name) for name in tensors), f"it has a tensor {prefix}… with a strange name")
        finite = all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
        require(finite, f"a tensor {prefix}… holds NaN or infinity")
        return tensors

    def recovered(self, layout: Layout) -> dict[str, Recovered]:
        """What the allocation predicted, if the file has it."""
        if RECOVERED not in self._tensors:
            return {}
        numbers = self.whole(RECOVERED)
        require(numbers.dtype == torch.float32, "what it recovered is not float32")
        require(numbers.numel() == 3 * len(layout.adapted), "what it recovered is not three numbers for each weight")
        require(bool(numbers.isfinite().all()), "what it recovered is not finite")
        rows = numbers.reshape(-1, 3).tolist()
        return {slot.name: Recovered(*row) for slot, row in zip(layout.adapted, rows, strict=True)}

    def tensor(self, dtype: str, shape: tuple[int, ...], key: str) -> Tensor:
        """The next tensor among the numbers of a type."""
        start, count = self._position[dtype], math.prod(shape)
        stream = self._tensors.get(dtype)
        held = 0 if stream is None else stream.numel() - start
        require(count <= held, f"{key} needs {count} more numbers of type {dtype}, the file has {held}")
        self._position[dtype] = start + count
        return torch.empty(shape, dtype=DTYPES[dtype]) if stream is None else stream[start : start + count].view(shape)

    def matrix(self, piece: Piece, masked: bool) -> Coded:
        """The next matrix: its mask, the scales of its rows and its entries, whichever it has."""
        if piece.precision == "int4":
            return self._int4(piece)
        rows, columns = piece.shape
        parts: dict[str, Tensor] = {}
        shape: tuple[int, ...] = piece.shape
        if masked:
            parts["mask"] = self.tensor("U8", ((rows * columns + 7) // 8,), f"mask of {piece.key}")
            present = codec.unpack(parts["mask"], rows * columns)
            require(bool((codec.pack(present) == parts["mask"]).all()), f"{piece.key} has a mask with stray bits")
            shape = (int(present.sum()),)
        if piece.precision == "int8":
            parts["scale"] = self.tensor("F32", (rows,), f"scale of {piece.key}")
        parts["values"] = self.tensor(piece.dtype, shape, piece.key)
        return Coded(rows, columns, parts)

    def _int4(self, piece: Piece) -> Coded:
        rows, columns = piece.shape
        scale = self.tensor("BF16", (rows, int4.groups(columns)), f"scale of {piece.key}")
        values = self.tensor("U8", (rows, int4.packed_columns(columns)), piece.key)
        problem = int4.problem(values, columns)
        require(not problem, f"{piece.key} has {problem}")
        return Coded(rows, columns, {"scale": scale, "values": values})

    def finish(self) -> None:
        """Refuse a file with numbers that nothing has read."""
        for name, tensor in self._tensors.items():
            require(name in DTYPES, f"it holds an unknown tensor {name!r}")
            left = tensor.numel() - self._position[name]
            require(left == 0, f"it holds {left} numbers of type {name} too many")


def _tensor(entry: TensorEntry, data: bytes, start: int) -> Tensor:
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    raw = bytearray(data[start : start + entry.bytes])  # its own memory: aligned, and not the caller's
    tensor = torch.frombuffer(raw, dtype=torch.uint8)
    require(entry.dtype != "BOOL" or int(tensor.max()) <= 1, "a truth value is neither 0 nor 1")
    return tensor.view(DTYPES[entry.dtype]).reshape(entry.shape)
