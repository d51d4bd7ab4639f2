"""Streams of texts: each task is another tenant of one sentence encoder.

`tenants` has eight tasks of four to eight sections of Debian's packages, whose one-line descriptions are the texts (see
`halrp.lab.streams.debian`). `corpora` has twelve tasks from packages of the registry: five of 20 Newsgroups, two of
Reuters-21578 (the eight classes of R8, and twelve others of R52), BBC News, and four domains of sentences that are
negative or positive.

Of each class up to 200 texts are in use with a fraction of 1, a fifth of which validates, and up to 100 test: those of
the published part for tests, or else a third of the class, the same for every seed. A text is its first 24 tokens, or
64 in `corpora`, of BERT's uncased vocabulary, filled up with zeros. Of texts with the same tokens one is in use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from halrp.lab.streams import corpora, debian
from halrp.lab.streams.corpora import Parts
from halrp.lab.streams.few import distinct, few
from halrp.lab.streams.protocol import drawn_orders, identities_of
from halrp.lab.streams.stream import Split, Stream, Task
from halrp.lab.streams.tokens import token_ids

MOST, TESTED = 200, 100
NEWSGROUPS = {
    "computers": (
        "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware",
        "comp.windows.x",
    ),
    "recreation": ("rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey"),
    "science": ("sci.crypt", "sci.electronics", "sci.med", "sci.space"),
    "politics": ("talk.politics.guns", "talk.politics.mideast", "talk.politics.misc"),
    "religion": ("alt.atheism", "soc.religion.christian", "talk.religion.misc"),
}  # fmt: skip
REUTERS = {
    "reuters-r8": ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"),
    "reuters-commodities": (
        "alum", "cocoa", "coffee", "copper", "cpi", "gnp", "gold", "jobs", "money-supply", "nat-gas", "reserves",
        "sugar",
    ),
}  # fmt: skip

Source = Callable[[], tuple[Sequence[str], Parts]]
"""The classes of a task, and its corpus."""


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `tenants`; `data` is not needed."""

    def source(sections: Sequence[str]) -> Source:
        return lambda: (sections, Parts(debian.descriptions(), None))

    sources = {name: source(sections) for name, sections in debian.SECTIONS.items()}
    return _stream("tenants", sources, 24, order, seed, fraction)


def load_corpora(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `corpora`."""
    folder = None if data is None else os.fspath(data)

    def rows(table: str, classes: Sequence[str]) -> Source:
        return lambda: (classes, corpora.split_table(table, folder))

    def rated(domain: str) -> Source:
        return lambda: (("negative", "positive"), corpora.sentiment(folder)[domain])

    sources = {f"newsgroups-{name}": rows("20newsgroups", classes) for name, classes in NEWSGROUPS.items()}
    sources |= {name: rows("reuters-r52", classes) for name, classes in REUTERS.items()}
    sources["bbc"] = lambda: (sorted(corpora.bbc(folder).train), corpora.bbc(folder))
    sources |= {f"sentiment-{domain}": rated(domain) for domain in corpora.DOMAINS}
    return _stream("corpora", sources, 64, order, seed, fraction)


def _stream(name: str, sources: Mapping[str, Source], length: int, order: str, seed: int, fraction: float) -> Stream:
    names = list(sources)
    identities = identities_of(name, drawn_orders(len(names)), order)

    def make(identity: int) -> Task:
        classes, parts = sources[names[identity]]()
        source, apart = (_listed(classes, part) for part in (parts.train, parts.test or parts.train))
        labels = None if parts.test is None else apart[1]
        key = f"{name} {names[identity]}"
        drawn = few(key, source[1], range(len(classes)), seed, fraction, most=MOST, tested=TESTED, test=labels)
        pairs = zip((source, source, apart), drawn, strict=True)
        train, val, test = distinct(*(_split(*texts, chosen, length) for texts, chosen in pairs))
        return Task(names[identity], identity, len(classes), train, val, test, class_names=tuple(classes))

    return Stream(name, order, seed, fraction, identities, make, (length,))


def _listed(classes: Sequence[str], texts: Mapping[str, Sequence[str]]) -> tuple[list[str], Any]:
    labels = [label for label, name in enumerate(classes) for _ in texts[name]]
    return [text for name in classes for text in texts[name]], np.array(labels, dtype=np.int64)


def _split(texts: list[str], labels: Any, chosen: Any, length: int) -> Split:
    ids: Tensor = token_ids([texts[i] for i in chosen], length)
    return Split(ids, torch.from_numpy(labels[chosen]))
