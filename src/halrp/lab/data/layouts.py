"""Layouts of a data set in the data directory: the files of each part, and their decoder."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from halrp.lab.data.decoders import Decoder


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a data set is recognised."""

    name: str
    parts: Mapping[str, tuple[str, ...]]
    """For each part the patterns of its files, from the data directory on. Each must match; in a pattern,
    `{first,second}` stands for the first of these that does."""
    decode: Decoder
    shown: str
    """The files, for messages to the user."""
    directory: str | None = None
    """A directory of its own that is searched instead of the data directory."""

    def find(self, root: Path) -> dict[str, tuple[Path, ...]] | None:
        """Return the files of each part under `root`, or None if there are not all."""
        by_part = {}
        for part, patterns in self.parts.items():
            files = [_matching(root, pattern) for pattern in patterns]
            if not all(files):
                return None
            by_part[part] = tuple(path for some in files for path in some)
        return by_part


def expanded(pattern: str) -> Iterator[str]:
    """Return the patterns that `{first,second}` stands for, in order."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from expanded(pattern[: braces.start()] + choice + pattern[braces.end() :])


def _matching(root: Path, pattern: str) -> list[Path]:
    """Return the files that the first fitting form of `pattern` names, sorted."""
    for candidate in expanded(pattern):
        if files := sorted(path for path in root.glob(candidate) if path.is_file()):
            return files
    return []
