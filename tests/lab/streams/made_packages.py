"""Made texts and series in the formats of the packages that hold the real ones: the readers that parse them are real.

Texts of a class differ in their last word, so that no two are alike; their classes are those that the streams name.
"""

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from halrp.lab.streams import corpora, debian, sensors, tenants

LEARNED, TESTED, ALL = 20, 6, 30
"""Examples of a class: of a part that trains, of one that tests, and where there is one part for both."""
SECTIONS = ("business", "sport", "tech")
RATINGS = {"negative": -1.5, "neutral": 0.0, "positive": 1.5}
SERIES = {"gun-point": (1, 150), "motions": (6, 100), "vowels": (12, 29)}
"""Channels and steps of some sets; the others have one channel of 24 steps."""


def read_made_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams read made packages, and tokenise without a vocabulary."""
    monkeypatch.setattr(corpora, "zipped", lambda package, member, *_: table(member))
    monkeypatch.setattr(corpora, "all_zipped", lambda *_: articles())
    monkeypatch.setattr(corpora, "nested", lambda package, member, sha256, inner, data: rated(inner))
    monkeypatch.setattr(sensors, "zipped", lambda package, member, *_: series(member))
    monkeypatch.setattr(debian, "descriptions", descriptions)
    monkeypatch.setattr(tenants, "token_ids", token_ids)
    for module, name in ((corpora, "table"), (corpora, "bbc"), (corpora, "sentiment"), (sensors, "_set")):
        monkeypatch.setattr(module, name, cached(getattr(module, name).__wrapped__))


@functools.cache
def cached(reader: Callable[..., object]) -> Callable[..., object]:
    """A reader with a cache of made data, apart from that of real data."""
    return functools.cache(reader)


def texts(label: str, count: int, kind: str = "all") -> list[str]:
    return [f"{kind} of {label} number {i}" for i in range(count)]


def descriptions() -> dict[str, list[str]]:
    return {name: texts(name, ALL) for names in debian.SECTIONS.values() for name in names}


def table(member: str) -> bytes:
    """A table of 20 Newsgroups or Reuters, class by class, with the three lines of its head."""
    kind = "train" if "train" in member else "test"
    known = tenants.NEWSGROUPS if "newsgroups" in member else tenants.REUTERS
    count = LEARNED if kind == "train" else TESTED
    rows = [f"{label}\t{text}" for names in known.values() for label in names for text in texts(label, count, kind)]
    return "\n".join(["category\ttext", "discrete\tstring", "class\tmeta", *rows]).encode()


def articles() -> dict[str, bytes]:
    """Files of BBC News by name."""
    return {
        f"corpus/bbcnews/data/{section}/{i:03d}.txt": text.encode()
        for section in SECTIONS
        for i, text in enumerate(texts(section, ALL))
    }


def rated(names: Iterable[str]) -> dict[str, bytes]:
    """Tables of rated sentences by name."""
    rows = [
        f"{i}\t{rating}\t{text}" for label, rating in RATINGS.items() for i, text in enumerate(texts(label, ALL), 1)
    ]
    return dict.fromkeys(names, "\n".join(rows).encode())


def series(member: str) -> bytes:
    """A set of random series in the format ts, class by class."""
    name = next(name for name, files in sensors.SETS.items() if files.stem in member)
    channels, steps = SERIES.get(name, (1, 24))
    random = np.random.default_rng(zlib.crc32(member.encode()))
    count = LEARNED if "TRAIN" in member else TESTED
    lines = []
    for label in np.repeat(["1", "2", "3"], count):
        values = random.normal(size=(channels, steps)).round(4).astype(str)
        lines.append(":".join([*map(",".join, values), label]))
    return "\n".join(["@problemName made", "@data", *lines]).encode()


def token_ids(rows: Sequence[str], length: int) -> Tensor:
    """A number of each word, int64 (texts, length), filled up with zeros."""
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    for row, text in zip(ids, rows, strict=True):
        words = [zlib.crc32(word.encode()) % 30_000 + 1 for word in text.split()[:length]]
        row[: len(words)] = torch.tensor(words)
    return ids
