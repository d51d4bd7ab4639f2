"""Binary masks of many tasks over the same weights, as a symbol per weight and seven tasks, and their compressed size.

Bit j of a weight's symbol is set if task j of a group of seven uses the weight. Masks of tasks that share weights
overlap, so few of the 128 symbols are frequent, and an entropy code of symbols needs fewer bits than the masks have. A
Huffman code needs at least one bit per symbol, so while a group has few tasks, ⌊8 / tasks⌋ neighbouring weights share a
symbol, which fills a byte.

Each layer of a group is encoded in the shortest of three ways: the bits themselves, symbols in a Huffman code (zlib
without string matching), or symbols with LZMA, whose range coder needs less than a bit for a frequent symbol.
"""

from __future__ import annotations

import lzma
import math
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halrp.errors import DamagedError

Bits = NDArray[np.bool_]
Symbols = NDArray[np.uint8]

TASKS = 7
"""The number of tasks in a group, which share a symbol."""


def symbols_of(bits: Bits) -> Symbols:
    """Symbols of masks (tasks, weights) of at most 8 tasks: ⌊8 / tasks⌋ weights each, the first in the low bits."""
    tasks, weights = bits.shape
    per_symbol = 8 // tasks
    padded = np.zeros((tasks, math.ceil(weights / per_symbol) * per_symbol), np.uint8)
    padded[:, :weights] = bits
    shifted = padded.reshape(tasks, -1, per_symbol) << _shifts(tasks)
    symbols: Symbols = np.bitwise_or.reduce(shifted, axis=(0, 2)).astype(np.uint8)
    return symbols


def bits_of(symbols: Symbols, tasks: int, weights: int) -> Bits:
    """The masks (tasks, weights) of symbols."""
    bits = (symbols[None, :, None] >> _shifts(tasks)) & 1
    return bits.reshape(tasks, -1)[:, :weights].astype(bool)


def _shifts(tasks: int) -> Symbols:
    """The position of each task's bits in a symbol, (tasks, 1, weights per symbol)."""
    return (np.arange(8 // tasks) * tasks + np.arange(tasks)[:, None, None]).astype(np.uint8)


def _huffman(content: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(content) + coder.flush()


def _from_huffman(content: bytes, size: int) -> bytes:
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    return decoder.decompress(content, size + 1)  # bounded: damaged content may ask for more


_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 0, "lp": 0, "pb": 0}]


def _lzma(content: bytes) -> bytes:
    return lzma.compress(content, lzma.FORMAT_RAW, filters=_LZMA)


def _from_lzma(content: bytes, size: int) -> bytes:
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_LZMA).decompress(content, size + 1)


CODERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    "huffman": (_huffman, _from_huffman),
    "lzma": (_lzma, _from_lzma),
}
"""Coders of symbols. An encoded mask starts with a byte: 0 for plain bits, else the number of its coder, from 1."""


def encode(bits: Bits) -> bytes:
    """Encode masks (tasks, weights) in the shortest of the three ways; `decode` is the inverse."""
    content = symbols_of(bits).tobytes()
    encoded = [np.packbits(bits).tobytes(), *(compress(content) for compress, _ in CODERS.values())]
    shortest = min(range(len(encoded)), key=lambda i: len(encoded[i]))
    return bytes([shortest]) + encoded[shortest]


def decode(content: bytes, tasks: int, weights: int) -> Bits:
    """Decode masks (tasks, weights)."""
    coder, content = content[0] if content else -1, content[1:]
    size = math.ceil(tasks * weights / 8) if coder == 0 else math.ceil(weights / (8 // tasks))
    try:
        if coder != 0:
            _, decompress = list(CODERS.values())[coder - 1 if coder > 0 else len(CODERS)]
            content = decompress(content, size)
    except (IndexError, zlib.error, lzma.LZMAError) as error:
        raise DamagedError(f"coded masks of {tasks} tasks and {weights} weights cannot be read: {error!r}") from error
    if len(content) != size:
        raise DamagedError(f"coded masks of {tasks} tasks and {weights} weights have {len(content)} bytes, not {size}")
    values = np.frombuffer(content, np.uint8)
    if coder == 0:
        return np.unpackbits(values, count=tasks * weights).reshape(tasks, weights).astype(bool)
    return bits_of(values, tasks, weights)


class Masks:
    """The masks of all tasks learned so far, by the name of the weight."""

    def __init__(self) -> None:
        """Start without tasks."""
        self.tasks = 0
        self.groups: list[dict[str, Tensor]] = []
        """For each group of seven tasks, symbols (uint8) of the shape of each weight."""
        self._bytes: dict[int, int] = {}

    def add(self, masks: Mapping[str, Tensor]) -> None:
        """Add the boolean masks of the next task."""
        bit = self.tasks % TASKS
        if bit == 0:
            self.groups.append({n: torch.zeros_like(mask, dtype=torch.uint8) for n, mask in masks.items()})
        for name, mask in masks.items():
            self.groups[-1][name] |= mask.to(torch.uint8) << bit
        self._bytes.pop(len(self.groups) - 1, None)
        self.tasks += 1

    def of(self, task: int) -> dict[str, Tensor]:
        """The boolean masks of a task."""
        group, bit = divmod(task, TASKS)
        return {n: (symbols >> bit) & 1 != 0 for n, symbols in self.groups[group].items()}

    def used(self) -> dict[str, Tensor]:
        """Boolean masks of the weights that some task uses; empty before the first task."""
        union: dict[str, Tensor] = {}
        for group in self.groups:
            for name, symbols in group.items():
                union[name] = union[name] | (symbols != 0) if name in union else symbols != 0
        return union

    def coded(self, group: int) -> dict[str, bytes]:
        """The encoded masks of a group of tasks, by layer."""
        tasks = min(TASKS, self.tasks - group * TASKS)
        return {name: encode(_bits(symbols, tasks)) for name, symbols in self.groups[group].items()}

    def bytes(self) -> int:
        """Bytes of all encoded masks; a full group is encoded once."""
        for group in range(len(self.groups)):
            if group not in self._bytes:
                self._bytes[group] = sum(len(content) for content in self.coded(group).values())
        return sum(self._bytes.values())

    def tensors(self) -> dict[str, Tensor]:
        """All symbols, by group and weight, for `restored`."""
        return {f"{i}/{name}": symbols for i, group in enumerate(self.groups) for name, symbols in group.items()}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], tasks: int, like: Mapping[str, Tensor]) -> Masks:
        """Masks from `tensors()`, with the device and memory format of the weights."""
        masks = cls()
        masks.tasks = tasks
        for i in range(math.ceil(tasks / TASKS)):
            symbols = {n: torch.empty_like(w, dtype=torch.uint8).copy_(tensors[f"{i}/{n}"]) for n, w in like.items()}
            masks.groups.append(symbols)
        return masks


def _bits(symbols: Tensor, tasks: int) -> Bits:
    flat = symbols.cpu().contiguous().numpy().reshape(-1)
    bits: Bits = (flat >> np.arange(tasks, dtype=np.uint8)[:, None]) & 1 != 0
    return bits
