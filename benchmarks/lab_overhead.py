"""What the laboratory costs around training: a run of `stl` on a LeNet stream to a bare loop that does the same.

Three tasks of 512 images of 3×32×32, ten epochs each, one thread. The bare loop builds the same networks, trains them
with fused Adam on index lookups, and measures each new task once on as many validation and test images. The run reads
the stream, keeps its state after every task so that it could be killed, watches old tasks, and writes its record. Time
is the process's own.

    python -m benchmarks.lab_overhead [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.interleaved import arguments, measure, report
from halrp.lab import backbones, streams
from halrp.lab.registry import StreamEntry
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.streams import Stream, split_by_class

EPOCHS, BATCH, CLASSES, TASKS = 10, 128, 10, 3
NAME = "noise"


def load(order: str, seed: int, fraction: float, data: object = None) -> Stream:
    """Noise with labels: 512 images to train on, 128 to validate and 160 to test for each of three tasks."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(80 * CLASSES * TASKS, 3, 32, 32, generator=draw)
    y = torch.arange(len(x)) % (CLASSES * TASKS)
    return split_by_class((x, y), CLASSES, name=NAME, order=order, seed=seed, fraction=fraction)


def bare() -> None:
    """Learn the stream with nothing around."""
    for task in load("A", 0, 1.0):
        net = backbones.build("lenet", task.classes, seed=0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": 1e-4}, {"params": others}]
        optimiser = torch.optim.Adam(groups, lr=1e-3, fused=True)
        x = task.train.x.contiguous(memory_format=torch.channels_last)
        train(net, optimiser, x, task.train.y)
        for split in (task.val, task.test):
            right(net, split.x, split.y)


def train(net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """The loop that everything else is compared with."""
    net.train()
    rows = x.movedim(1, -1)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(y)).split(BATCH):
            loss = F.cross_entropy(net(rows.index_select(0, index).movedim(-1, 1)), y.index_select(0, index))
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()


@torch.no_grad()
def right(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of examples that a network tells right."""
    net.eval()
    return float((net(x).argmax(1) == y).float().mean())


def variants(folder: Path) -> dict[str, Callable[[], object]]:
    """The same stream, bare and as a run."""
    cell = Cell("stl", NAME, "lenet", recipe={"epochs": EPOCHS, "batch": BATCH})

    def run() -> None:
        runner.execute(cell, folder)
        (folder / f"{cell.name}.json").unlink()

    return {"bare loop": bare, "run of the laboratory": run}


def main() -> None:
    options = arguments(__doc__, rounds=7)
    streams.STREAMS[NAME] = StreamEntry(load, NAME)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(variants(Path(folder)), "bare loop", options.rounds), options.json)


if __name__ == "__main__":
    main()
