"""Where the processes of one server put their figures for each other: `Board`."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping
from typing import Any

SLOT = 1 << 16
"""Bytes that each process has."""
HEAD = 8
"""Length and checksum: a process may die, or be read, while it writes."""


class Board:
    """A piece of memory that forked processes share, with a slot of JSON for each."""

    def __init__(self, count: int) -> None:
        """Make it, before the processes are forked."""
        self.count = count
        self._memory = mmap.mmap(-1, count * SLOT)

    def write(self, number: int, facts: Mapping[str, Any]) -> None:
        """Put facts into a slot; what has no room is not written."""
        text = json.dumps(facts).encode()
        if len(text) <= SLOT - HEAD:
            head = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
            self._memory[number * SLOT : number * SLOT + HEAD + len(text)] = head + text

    def read(self, number: int) -> dict[str, Any] | None:
        """The facts of a slot; None if there are none, or only a part of them."""
        for _ in range(5):
            content = self._memory[number * SLOT : (number + 1) * SLOT]
            length, check = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
            text = content[HEAD : HEAD + length]
            if length and zlib.crc32(text) == check:
                facts: dict[str, Any] = json.loads(text)
                return facts
        return None
