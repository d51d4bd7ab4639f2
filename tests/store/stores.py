"""Learners with stores for the tests of the store, and what the tests compare of them."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from halrp import Delta, Halrp, Learner, Store
from halrp.model.base import Base
from halrp.store import task_file
from halrp.store.manifest import FORMAT, Entry, Manifest, entry_of
from tests.helpers import FAST, net, tiny_task

X = tiny_task("mlp", 7)[0]
OFFICIAL = Halrp.official(growth=0.05, cap=8)
"""Its small bound on growth prunes from the first delta on, committed tasks included."""


def roomy(precision: Literal["float32", "bfloat16", "int8"] = "float32") -> Halrp:
    return Halrp.budget(growth_per_task=0.9, precision=precision)


def learned(
    kind: str = "mlp",
    tasks: int = 3,
    method: Halrp | None = None,
    base: Literal["first", "given"] = "first",
    store: Path | Store | None = None,
) -> Learner:
    """A learner of a few tiny tasks t0, t1, …"""
    learner = Learner(net(kind), recipe=FAST, method=method or roomy(), base=base, store=store)
    for number in range(tasks):
        if f"t{number}" not in learner.tasks:
            learner.learn(f"t{number}", tiny_task(kind, number, classes=3 + number % 2))
    return learner


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def committed(folder: Path) -> set[str]:
    """The files that a store should hold."""
    manifest = Store(folder).manifest()
    return {"manifest.json", "lock"} | {entry.file for entry in manifest.entries}


def same_predictions(learner: Learner, other: Learner, x: Tensor) -> bool:
    assert list(learner.tasks) == list(other.tasks)
    return all(torch.equal(learner.predict(x, name), other.predict(x, name)) for name in (None, *learner.tasks))


def reopened(folder: Path) -> Learner:
    return Learner.load(folder, net("mlp"))


def consistent(learner: Learner) -> bool:
    """Whether the store, if there is one, holds exactly what the learner has."""
    store = learner._committed.store
    return store is None or same_predictions(learner, reopened(store.folder), X)


@dataclasses.dataclass(frozen=True)
class Material:
    """A base and contents of tasks on it, which any name may have."""

    base: Base
    contents: tuple[Delta, ...]

    def delta(self, name: str, content: int = 0) -> Delta:
        return dataclasses.replace(self.contents[content], task=name)

    def file(self, name: str, content: int = 0) -> Entry:
        return entry_of(f"tasks/{name}", task_file.write(self.delta(name, content)))


def manifest_of(tasks: int, version: int = FORMAT) -> Manifest:
    """The manifest of a store with some tasks, of which no file is there."""
    digests = [sha256(str(number).encode()).hexdigest() for number in range(tasks + 2)]
    entries = [Entry(f"tasks/t{n}-{digest[:16]}.safetensors", digest, 1000 + n) for n, digest in enumerate(digests[2:])]
    base, layout = digests[:2]
    manifest = Manifest(
        head="fc",
        channels_last=False,
        fingerprint=base,
        base=Entry(f"base-{base[:16]}.safetensors", base, 100),
        counts_head=True,
        tasks={f"task {number}": entry for number, entry in enumerate(entries)},
        layouts={layout[:16]: Entry(f"layout-{layout[:16]}.json", layout, 100)},
        format=version,
    )
    return manifest.following(None) if version > 2 else manifest
