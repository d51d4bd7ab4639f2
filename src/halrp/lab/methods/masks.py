"""Binary masks of many tasks over the same weights, as symbols of seven tasks; their size is that of a compressed form.

Bit j of a weight's symbol says whether task j of a group of seven uses it. Masks of tasks that learn from one another
overlap, so that few of the 128 symbols are common, and a code for symbols needs fewer bits than the masks have. A mask
alone cannot be coded bit by bit in less than a bit, therefore neighbouring weights share a symbol while a group has few
tasks: ⌊8 / tasks⌋ of them, which fill a byte.

Each layer of a group is written in the shortest of three ways: the bits as they are, symbols in Huffman's code
(zlib's, without its search for repetitions), or symbols through LZMA, whose range coder spends fractions of a bit.
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
"""Tasks that share a symbol."""


def symbols_of(bits: Bits) -> Symbols:
    """Symbols of masks (tasks, weights), at most 8 tasks: ⌊8 / tasks⌋ neighbours by task, the first in the low bits."""
    tasks, weights = bits.shape
    near = 8 // tasks
    padded = np.zeros((tasks, math.ceil(weights / near) * near), np.uint8)
    padded[:, :weights] = bits
    shifts = (np.arange(near) * tasks + np.arange(tasks)[:, None]).astype(np.uint8)  # (tasks, near)
    shifted = padded.reshape(tasks, -1, near) << shifts[:, None, :]
    result: Symbols = np.bitwise_or.reduce(shifted, axis=(0, 2)).astype(np.uint8)
    return result


def bits_of(symbols: Symbols, tasks: int, weights: int) -> Bits:
    """The masks (tasks, weights) that symbols were made of."""
    near = 8 // tasks
    shifts = (np.arange(near) * tasks + np.arange(tasks)[:, None]).astype(np.uint8)
    result = (symbols[None, :, None] >> shifts[:, None, :]) & 1
    return result.reshape(tasks, -1)[:, :weights].astype(bool)


def _huffman(content: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(content) + coder.flush()


def _from_huffman(content: bytes, size: int) -> bytes:
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    return decoder.decompress(content, size + 1)  # no more than one byte too many, whatever the content says


_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 0, "lp": 0, "pb": 0}]


def _ranged(content: bytes) -> bytes:
    return lzma.compress(content, lzma.FORMAT_RAW, filters=_LZMA)


def _from_ranged(content: bytes, size: int) -> bytes:
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_LZMA).decompress(content, size + 1)


CODERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    "huffman": (_huffman, _from_huffman),
    "lzma": (_ranged, _from_ranged),
}
"""Of symbols; the masks' bits as they are come before them. A coded mask begins with the number of its coder."""


def encode(bits: Bits) -> bytes:
    """Masks (tasks, weights) in the shortest way; `decode` gives them back, bit by bit."""
    content = symbols_of(bits).tobytes()
    ways = [np.packbits(bits).tobytes(), *(code(content) for code, _ in CODERS.values())]
    best = min(range(len(ways)), key=lambda i: len(ways[i]))
    return bytes([best]) + ways[best]


def decode(content: bytes, tasks: int, weights: int) -> Bits:
    """The masks (tasks, weights) that were encoded."""
    way, content = content[0] if content else -1, content[1:]
    near = 8 // tasks
    size = math.ceil(tasks * weights / 8) if way == 0 else math.ceil(weights / near)
    try:
        if way == 0:
            result = content
        else:
            _, from_code = list(CODERS.values())[way - 1 if way > 0 else len(CODERS)]
            result = from_code(content, size)
    except (IndexError, zlib.error, lzma.LZMAError) as error:
        raise DamagedError(f"coded masks of {tasks} tasks and {weights} weights cannot be read: {error!r}") from error
    if len(result) != size:
        raise DamagedError(f"coded masks of {tasks} tasks and {weights} weights hold {len(result)} bytes, not {size}")
    values = np.frombuffer(result, np.uint8)
    if way == 0:
        return np.unpackbits(values, count=tasks * weights).reshape(tasks, weights).astype(bool)
    return bits_of(values, tasks, weights)


class Masks:
    """The masks of all tasks learned so far, by the name of the weight."""

    def __init__(self) -> None:
        """Start without tasks."""
        self.tasks = 0
        self.groups: list[dict[str, Tensor]] = []
        """For every seven tasks a symbol, uint8, for each weight."""
        self._bytes: dict[int, int] = {}

    def add(self, masks: Mapping[str, Tensor]) -> None:
        """Keep the masks, boolean, of the next task."""
        bit = self.tasks % TASKS
        if bit == 0:
            self.groups.append({n: torch.zeros_like(mask, dtype=torch.uint8) for n, mask in masks.items()})
        for name, mask in masks.items():
            self.groups[-1][name] |= mask.to(torch.uint8) << bit
        self._bytes.pop(len(self.groups) - 1, None)
        self.tasks += 1

    def of(self, task: int) -> dict[str, Tensor]:
        """The masks, boolean, of a task."""
        group, bit = divmod(task, TASKS)
        return {n: (symbols >> bit) & 1 != 0 for n, symbols in self.groups[group].items()}

    def used(self) -> dict[str, Tensor]:
        """Which weights some task uses, boolean; nothing before the first task."""
        result: dict[str, Tensor] = {}
        for group in self.groups:
            for name, symbols in group.items():
                result[name] = result[name] | (symbols != 0) if name in result else symbols != 0
        return result

    def coded(self, group: int) -> dict[str, bytes]:
        """The masks of a group of tasks as they are written, by layer."""
        tasks = min(TASKS, self.tasks - group * TASKS)
        return {name: encode(_bits(symbols, tasks)) for name, symbols in self.groups[group].items()}

    def bytes(self) -> int:
        """Bytes of all coded masks; a group that is full is coded once."""
        for group in range(len(self.groups)):
            if group not in self._bytes:
                self._bytes[group] = sum(len(content) for content in self.coded(group).values())
        return sum(self._bytes.values())

    def tensors(self) -> dict[str, Tensor]:
        """Every symbol, by group and weight, to be restored from."""
        return {f"{i}/{name}": symbols for i, group in enumerate(self.groups) for name, symbols in group.items()}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], tasks: int, like: Mapping[str, Tensor]) -> Masks:
        """Masks of a number of tasks from `tensors()`, in the memory format of the weights."""
        result = cls()
        result.tasks = tasks
        for i in range(math.ceil(tasks / TASKS)):
            shifted = {n: torch.empty_like(w, dtype=torch.uint8).copy_(tensors[f"{i}/{n}"]) for n, w in like.items()}
            result.groups.append(shifted)
        return result


def _bits(symbols: Tensor, tasks: int) -> Bits:
    flat = symbols.cpu().contiguous().numpy().reshape(-1)
    result: Bits = (flat >> np.arange(tasks, dtype=np.uint8)[:, None]) & 1 != 0
    return result
