"""Make the store of tasks of parts that later versions must still read: `python -m tests.store.corpus.make_parts`.

As the other corpora (`make`) it is never made again, and has the same files beside the store.
"""

from __future__ import annotations

import json
from dataclasses import replace

import safetensors.torch
import torch

from halrp import Delta, Halrp, Learner, Recipe
from halrp.model.base import Base
from halrp.model.description import Description
from halrp.provenance import describe
from tests.parts import Parts, drawn_parts, recovered
from tests.store.corpus.make import HERE, NAMES, checksum, small_model, task

FOLDER = HERE / "parts"
TASKS = {"few, mean": (1, 3, "mean", 0.3), "some, full": (2, 4, "full", 0.6), "all, Vögel/鳥": (3, 3, "full", 1.0)}
"""Seed, classes, view and share of the parts that are stored, by task; the last has zeros that are left out."""


def made(base: Base, name: str) -> Delta:
    """A task of the corpus."""
    seed, classes, view, share = TASKS[name]
    parts: Parts = drawn_parts(base, seed, classes, view, share)
    if share == 1.0:
        sparse = base.tensors["7.weight"].clone()
        sparse[0] += 1
        parts = {key: part for key, part in parts.items() if not key.endswith("/7.weight")}
        parts["dense/7.weight"] = sparse, "int8"
    provenance = {"method": describe(Halrp.budget()), "recipe": describe(Recipe()), "seed": seed}
    names = NAMES if classes == 3 else None
    description = Description(task=name, classes=classes, class_names=names, view=view, provenance=provenance)
    delta = Delta.of_parts(description, base.layout, base.tensors, parts, recovered(base) if share > 0.5 else None)
    return replace(delta, statistics={"mean": torch.linspace(-1, 1, 4)})


def main() -> None:
    """Write the corpus."""
    if FOLDER.exists():
        raise SystemExit(f"{FOLDER} is there; a corpus is never made again")
    torch.manual_seed(0)
    learner = Learner(small_model(), base="given", store=FOLDER / "store")
    committed = learner._committed
    for name in TASKS:
        delta = made(committed.ready, name)
        committed.commit(committed.ready, {**committed.tasks, name: delta}, name)
    (FOLDER / "store" / "lock").unlink()
    x = task(9, examples=6)[0]
    logits = {name: learner.predict(x, name) for name in TASKS}
    (FOLDER / "expected.safetensors").write_bytes(safetensors.torch.save({"x": x, **logits}))
    checksums = {name: checksum(delta) for name, delta in learner.tasks.items()}
    (FOLDER / "tensors.json").write_text(f"{json.dumps(checksums, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
