"""Make stores that later versions must still read: `python -m tests.store.corpus.make NAME`, once for each format.

A corpus is never made again: that old files can be read is what it proves. Beside the store lie a batch of inputs and
the logits of every task (`expected.safetensors`), and a checksum of the numbers that each task owns (`tensors.json`),
which does not depend on the machine.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from halrp import Budget, Delta, Flat, Halrp, Learner, Prune, Recipe, seeding

HERE = Path(__file__).parent
NAMES = ("wren", "rook", "Elster")
PRUNE = Prune(kind="relative", growth=0.2, bound=False)


def small_model(classes: int = 3) -> nn.Module:
    """A small image classifier: adapted convolutions and linear layer, an owned weight, norm buffers, a head."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


def with_small_head(classes: int = 3) -> nn.Module:
    """The same with a head of two layers, module 9."""
    model = cast(nn.Sequential, small_model(classes))
    model[9] = nn.Sequential(nn.Linear(32, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, classes))
    return model


class ConvNet(nn.Module):
    """A convolutional net with batch norms, a depthwise layer, a tied weight, a layer norm and an unused buffer."""

    scale: Tensor

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5]))
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False)
        self.pointwise = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.conv = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.hidden = nn.Linear(64, 32)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(32)
        self.fc = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.pointwise(self.depthwise(self.stem(x)))).relu().flatten(1)
        x = self.hidden(x).relu()
        x = x + self.scale * self.second(self.first(x).relu())
        return cast(Tensor, self.fc(self.norm(x)))


@dataclass(frozen=True)
class Corpus:
    """A model, and the method and number of classes of each task; the first task makes the base."""

    model: Callable[..., nn.Module]
    tasks: dict[str, tuple[Halrp, int]]
    limit: int
    """Bytes that all files together may have."""
    replaced: tuple[str, ...] = ()
    """Tasks that get a second version."""
    base: Literal["first", "given"] = "first"
    head: str | None = None


SMALL: dict[str, tuple[Halrp, int]] = {
    "base": (Halrp(allocate=Flat(2)), 3),
    "float32, full kernels": (Halrp(allocate=Flat(2), view="full"), 3),
    "bfloat16, pruned": (Halrp(allocate=Flat(8), precision="bfloat16", compress=PRUNE), 3),
    "int8, Vögel/鳥": (Halrp(allocate=Flat(4), precision="int8"), 3),
}
RICH: dict[str, tuple[Halrp, int]] = {
    "base": (Halrp(allocate=Flat(2)), 3),
    "float32, kernel means": (Halrp(allocate=Flat(3)), 5),
    "float32, full kernels, pruned": (Halrp(allocate=Flat(16), view="full", compress=PRUNE), 3),
    "bfloat16, pruned": (Halrp(allocate=Flat(12), precision="bfloat16", compress=PRUNE), 2),
    "bfloat16, dense": (Halrp(allocate=Budget(parameters=4_000), view="full", precision="bfloat16"), 3),
    "int8, dense": (Halrp(allocate=Budget(parameters=3_000), view="full", precision="int8"), 4),
    "int8, pruned": (Halrp(allocate=Flat(16), precision="int8", compress=PRUNE), 3),
    "int8, rank 0, Vögel/鳥": (Halrp(allocate=Flat(0), precision="int8"), 3),
    "float32, all dense": (Halrp(allocate=Budget(parameters=60_000), view="full"), 3),
}
CORPORA = {
    "v1": Corpus(small_model, SMALL, 60_000),
    "v1-rich": Corpus(ConvNet, RICH, 300_000),
    "v2": Corpus(ConvNet, {**RICH, "int8, bytes": (Halrp.budget(8_000, view="full"), 3)}, 200_000),
    "v3": Corpus(small_model, SMALL, 80_000, ("float32, full kernels",)),
    "v4": Corpus(small_model, SMALL, 80_000, ("float32, full kernels",), "given"),
    "v4-head": Corpus(with_small_head, SMALL, 80_000, (), "given", "9"),
}


def task(number: int, examples: int = 24, classes: int = 3) -> tuple[Tensor, Tensor]:
    """A pattern for each class, in noise."""
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(examples) % classes
    patterns = torch.randn(classes, 1, 8, 8, generator=generator)
    return patterns[y] + 0.3 * torch.randn(examples, 1, 8, 8, generator=generator), y


def checksum(delta: Delta) -> str:
    """A checksum of every number that a task owns, as predictions use it."""
    factors = {
        f"{part} of {n}": t for n, f in delta.factors.items() for part, t in zip("rspq", f.tensors(), strict=True)
    }
    return seeding.fingerprint({**factors, **delta.owned})


def main(name: str) -> None:
    """Learn the tasks of a corpus and write it."""
    folder, corpus = HERE / name, CORPORA[name]
    if folder.exists():
        raise SystemExit(f"{folder} is there; a corpus is never made again")
    torch.manual_seed(0)
    recipe = Recipe(epochs=3, batch=8)
    learner = Learner(corpus.model(), head=corpus.head, base=corpus.base, recipe=recipe, store=folder / "store")
    for number, (task_name, (method, classes)) in enumerate(corpus.tasks.items()):
        learner.method = method
        names = NAMES if classes == 3 else None
        learner.learn(task_name, task(number, classes=classes), classes=classes, class_names=names)
    for number, task_name in enumerate(corpus.replaced, 20):
        learner.method = corpus.tasks[task_name][0]
        learner.learn(task_name, task(number), class_names=NAMES, replace=True)
    (folder / "store" / "lock").unlink()
    shutil.rmtree(folder / "store" / "work", ignore_errors=True)
    x = task(9, examples=6)[0]
    logits = {task_name: learner.predict(x, task_name) for task_name in corpus.tasks}
    (folder / "expected.safetensors").write_bytes(safetensors.torch.save({"x": x, **logits}))
    checksums = {task_name: checksum(delta) for task_name, delta in learner.tasks.items()}
    (folder / "tensors.json").write_text(f"{json.dumps(checksums, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
