"""What checkpoints cost a training: a LeNet's base learned with and without a store.

512 images of 3×32×32, ten epochs, batches of 128, one thread. With a store, the state of the training is written after
epochs: each of them, as often as two hundredths of the time allow, or every 30 seconds, which is the default and here
means never. All variants with a store commit the base in the end. Time is the process's own.

    python -m benchmarks.checkpoints [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.interleaved import arguments, measure, report
from halrp import Learner, Recipe, Store
from halrp.lab import backbones

EPOCHS, BATCH, IMAGES, CLASSES = 10, 128, 512, 10


def variants(folder: Path) -> dict[str, Callable[[], object]]:
    """Ways to learn a first task."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(IMAGES, 3, 32, 32, generator=draw), torch.arange(IMAGES) % CLASSES
    model = backbones.build("lenet", classes=CLASSES)

    def learn(checkpoint_every: float | None) -> None:
        store = None if checkpoint_every is None else Store(folder / "store", checkpoint_every)
        Learner(model, recipe=Recipe(epochs=EPOCHS, batch=BATCH), store=store, progress=None).learn("noise", (x, y))
        shutil.rmtree(folder / "store", ignore_errors=True)

    return {
        "no store": lambda: learn(None),
        "store, no checkpoint in this time (default)": lambda: learn(30.0),
        "store, at most 2 % of the time": lambda: learn(1e-3),
        "store, after every epoch": lambda: learn(0.0),
    }


def main() -> None:
    options = arguments(__doc__, rounds=7)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(variants(Path(folder)), "no store", options.rounds), options.json)


if __name__ == "__main__":
    main()
