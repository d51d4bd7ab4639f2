"""How much memory learning a delta needs on a given base, as a ratio to full fine-tuning with Adam.

Each measurement is a process of its own on one thread. It learns a tiny task, so that everything is imported, builds
the network and the data, then learns, and reports by how much its peak resident memory exceeds the resident memory
before. "full" trains every weight of the network in place with torch's Adam. "delta" is a whole `learn` with the
default method: start at the probe, fine-tuning, checks and commit. Both have the same batches: 64 images of 3×32×32
for ResNet18, 32 sequences of 64 tokens for the architecture of MiniLM-L6. The allocator gives freed blocks back at once
(`MALLOC_MMAP_THRESHOLD_`), so that the peak is what is needed, and not what is left between blocks.

    python -m benchmarks.memory [--rounds 3] [--networks resnet18 minilm] [--json FILE]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import networks
from benchmarks.interleaved import arguments
from halrp import Learner, Recipe

CLASSES, LENGTH, BATCHES, EPOCHS = 4, 64, 2, 2
ROWS = {"resnet18": 64, "minilm": 32}
"""Rows of a batch, by network."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}

Learn = Callable[[nn.Module, Tensor, Tensor, int], None]


def full(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """Train every weight with Adam."""
    optimiser = torch.optim.Adam(model.train().parameters())
    for _ in range(EPOCHS):
        for rows, labels in zip(x.split(batch), y.split(batch), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimiser.step()


def delta(model: nn.Module, x: Tensor, y: Tensor, batch: int, **settings: Any) -> None:
    """Learn one task with the default method; the learner's copy of the model replaces it."""
    recipe = Recipe(epochs=EPOCHS, batch=batch, **settings)
    learner = Learner(model, head="head", recipe=recipe, base="given", progress=None)
    del model
    learner.learn("a", (x, y))


def cheap(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """The same, computing activations that are cheap again."""
    held = [model]
    del model
    delta(held.pop(), x, y, batch, checkpoint_activations="cheap")


def in_parts(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """The same steps, each the sum over four quarters of its rows."""
    held = [model]
    del model
    delta(held.pop(), x, y, batch // 4, accumulate=4)


VARIANTS: dict[str, Learn] = {
    "full": full,
    "delta": delta,
    'delta, checkpoint_activations="cheap"': cheap,
    "delta, accumulate=4": in_parts,
}


class Tiny(nn.Module):
    """A network that takes no memory, of blocks so that its activations can be computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of x (N, 8)."""
        logits: Tensor = self.head(self.blocks(x))
        return logits


def resident(field: str) -> int:
    """Resident memory of this process in bytes: now ("VmRSS"), or at its peak ("VmHWM")."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def measure_here(name: str, variant: str) -> int:
    """The bytes that a variant needs in this process."""
    torch.set_num_threads(1)
    learn, rows = VARIANTS[variant], ROWS[name]
    for tiny in VARIANTS.values():
        tiny(Tiny(), torch.randn(8, 8), torch.arange(8) % CLASSES, 4)
    models = [networks.build(name, CLASSES)]
    x = networks.inputs(name, rows * BATCHES, LENGTH)
    y = torch.arange(len(x)) % CLASSES
    Path("/proc/self/clear_refs").write_text("5", "utf-8")  # the peak begins here
    before = resident("VmRSS")
    learn(models.pop(), x, y, rows)
    return resident("VmHWM") - before


def measure_apart(name: str, variant: str) -> int:
    """The same in a new process."""
    command = (
        sys.executable,
        "-c",
        f"from benchmarks import memory; print(memory.measure_here({name!r}, {variant!r}))",
    )
    environment = os.environ | ALLOCATOR | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    options = arguments(__doc__, rounds=3, networks=list(ROWS))
    rows = []
    for name in options.networks:
        peaks = [{variant: measure_apart(name, variant) for variant in VARIANTS} for _ in range(options.rounds)]
        for variant in VARIANTS:
            ratios = [peak[variant] / peak["full"] for peak in peaks]
            lower, ratio, upper = statistics.quantiles(ratios, n=4, method="inclusive")
            megabytes = statistics.median(peak[variant] for peak in peaks) / 1e6
            rows.append(
                {"name": f"{name}: {variant}", "megabytes": megabytes, "ratio": ratio, "lower": lower, "upper": upper}
            )
            print(f"{rows[-1]['name']:<52}{megabytes:9.1f} MB{ratio:8.3f}  {lower:.3f} – {upper:.3f}", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
