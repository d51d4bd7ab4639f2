"""Make a store that later versions must still read: `python -m tests.store.corpus.make`, once for each format.

A corpus is never made again for the same format: that old files can be read is what it proves. Beside the store lie a
batch of inputs and the logits of every task, `expected.safetensors`.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from halrp import Flat, Halrp, Learner, Prune, Recipe
from halrp.store.store import FORMAT

HERE = Path(__file__).parent
TASKS: dict[str, Halrp] = {
    "base": Halrp(allocate=Flat(2)),
    "float32, full kernels": Halrp(allocate=Flat(2), view="full"),
    "bfloat16, pruned": Halrp(
        allocate=Flat(8), precision="bfloat16", compress=Prune(kind="relative", growth=0.2, bound=False)
    ),
    "int8, Vögel/鳥": Halrp(allocate=Flat(4), precision="int8"),
}


def model(classes: int = 3) -> nn.Module:
    """A small picture classifier: adapted convolutions and linear layer, an owned weight, norm buffers, a head."""
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


def task(number: int, examples: int = 24, classes: int = 3) -> tuple[Tensor, Tensor]:
    """A pattern for each class, in noise."""
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(examples) % classes
    patterns = torch.randn(classes, 1, 8, 8, generator=generator)
    return patterns[y] + 0.3 * torch.randn(examples, 1, 8, 8, generator=generator), y


def main() -> None:
    """Learn the tasks and write the corpus of this format."""
    folder = HERE / f"v{FORMAT}"
    if folder.exists():
        raise SystemExit(f"{folder} is there; a corpus is never made again for the same format")
    torch.manual_seed(0)
    learner = Learner(model(), recipe=Recipe(epochs=3, batch=8), store=folder / "store")
    for number, (name, method) in enumerate(TASKS.items()):
        learner.method = method
        learner.learn(name, task(number), class_names=["wren", "rook", "Elster"])
    (folder / "store" / "lock").unlink()
    (folder / "store" / "work").rmdir()
    x = task(9, examples=6)[0]
    logits = {name: learner.predict(x, name) for name in TASKS}
    (folder / "expected.safetensors").write_bytes(safetensors.torch.save({"x": x, **logits}))


if __name__ == "__main__":
    main()
