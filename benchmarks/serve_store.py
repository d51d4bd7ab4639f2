"""What one process needs to predict for every task of a large store.

A store of tiny tasks on LeNet (at most 20 KB each) is opened by `StorePredictor` and, for comparison, by
`Learner.load`, in a fresh process each. Then mixed batches of 64 rows, of random tasks, are computed in the way that
the predictor chooses, in one pass, and task by task, in turns: on LeNet, on a network with depthwise convolutions, and
on EfficientNet-Lite0 (`halrp.lab.backbones.efficientnet` says how to install it). Time is the process's own, so that
a busy neighbour costs little.

    python -m benchmarks.serve_store [--tasks 1000] [--rounds 150] [--json FILE]
    python -m benchmarks.serve_store table     # of the committed record, into docs/serving.md
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe, Store, StorePredictor
from halrp.lab import backbones
from halrp.lab.backbones import efficientnet
from halrp.lab.report import documents
from halrp.serve.computing import Mixed

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "benchmarks" / "serve_store.json"
ROWS, CLASSES = 64, 4
X = torch.randn(ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def separable(channels: int, wider: int, stride: int = 1) -> list[nn.Module]:
    """A depthwise and a pointwise convolution, each with its norm."""
    return [
        nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
        nn.Conv2d(channels, wider, 1, bias=False),
        nn.BatchNorm2d(wider),
        nn.ReLU6(),
    ]


def depthwise() -> nn.Module:
    """Six separable convolutions on images of 32 × 32."""
    blocks = [separable(32, 64), separable(64, 128, 2), separable(128, 128), separable(128, 256, 2)]
    blocks += [separable(256, 256), separable(256, 512, 2)]
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU6(), *(layer for block in blocks for layer in block)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: backbones.build("lenet"),
    "depthwise": depthwise,
    "efficientnet-lite0": lambda: efficientnet.load(None, 32),
}
HEADS = {"efficientnet-lite0": nn.Linear(1280, CLASSES)}
"""Of networks that give features."""


def store_of(network: str, tasks: int, budget: int, folder: Path) -> None:
    """A store with many tasks: one is learned in a few steps, and committed under every name."""
    torch.manual_seed(0)
    method = Halrp.budget(bytes_per_task=budget)
    recipe = Recipe(epochs=1, batch=32)
    head = HEADS.get(network)
    learner = Learner(NETWORKS[network](), head=head, base="given", method=method, recipe=recipe, progress=None)
    delta = learner.learn("task", (X, torch.arange(ROWS) % CLASSES))
    deltas = [replace(delta, task=f"task {number}") for number in range(tasks)]
    Store(folder).commit(learner._committed.ready, deltas)


OPENING = """
import json, sys, time
import torch
torch.set_num_threads(1)
from benchmarks.many_tasks import memory
from benchmarks.serve_store import NETWORKS, X
from halrp import Learner, StorePredictor
way, folder = sys.argv[1:]
model = NETWORKS["lenet"]()
opening = StorePredictor.open if way == "StorePredictor.open" else Learner.load
before = memory("VmRSS")
start = time.process_time()
opened = opening(folder, model)
seconds = time.process_time() - start
grown = memory("VmRSS") - before
start = time.process_time()
opened.predict(X[:1], "task 0")
first = time.process_time() - start
print(json.dumps({"way": way, "seconds": seconds, "first prediction": first, "megabytes": grown / 2**20}))
"""


def opening(way: str, folder: Path, times: int = 3) -> dict[str, Any]:
    """Open a store in fresh processes; the medians of what it took."""
    command = [sys.executable, "-c", OPENING, way, str(folder)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(times)
    ]
    return {key: way if key == "way" else statistics.median(run[key] for run in runs) for key in runs[0]}


def mixed(network: str, folder: Path, tasks: int, present: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of mixed batches of random tasks, in each way, and the ratio of the chosen way to the better one.

    `present` of the tasks are in each batch. The first batches, in which ways are timed, do not count.
    """
    ways: tuple[Mixed, ...] = ("fastest", "one pass", "task by task")
    predictors = {way: StorePredictor.open(folder, NETWORKS[network](), mixed=way) for way in ways}
    draw = random.Random(0)
    seconds: dict[Mixed, list[float]] = {way: [] for way in ways}
    for number in range(-6, rounds):
        chosen = draw.sample(range(tasks), present)
        names = [f"task {draw.choice(chosen)}" for _ in range(ROWS)]
        for way in sorted(ways, key=lambda _: draw.random()):
            start = time.process_time()
            predictors[way].predict(X, names)
            if number >= 0:
                seconds[way].append(time.process_time() - start)
    medians: dict[str, float] = {way: 1e3 * statistics.median(values) for way, values in seconds.items()}
    means = {way: statistics.fmean(values) for way, values in seconds.items()}
    best = min(means["one pass"], means["task by task"])
    return {"network": network, "tasks": tasks, "present": present, **medians, "mean to best": means["fastest"] / best}


def resident(folder: Path, tasks: int) -> dict[str, Any]:
    """What tasks take in memory once each has been asked for alone, and the bytes of their files."""
    predictor = StorePredictor.open(folder, NETWORKS["lenet"](), memory=1 << 40)
    count = min(tasks, 100)
    deltas = sum(task.delta_bytes for task in predictor.select(f"task {n}" for n in range(count)).values())
    outputs: list[Tensor] = [predictor.predict(X[:1], f"task {number}") for number in range(count)]
    files = sum(predictor.tasks[f"task {number}"].bytes for number in range(len(outputs)))
    merged = sum(predictor.resident.values())
    return {"tasks": count, "files": files, "deltas": deltas, "merged": merged}


def parts(record: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """The tables of docs/serving.md, by their names there."""
    return {name: partial(str, text) for name, text in tables(record).items()}


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables as Markdown."""
    columns = ("fastest", "one pass", "task by task")
    mixed_rows = []
    for row in record["mixed"]:
        times = " | ".join(f"{row[way]:.0f}" for way in columns)
        mixed_rows.append(
            f"| {row['network']} | {row['present']} of {row['tasks']} | {times} | {row['mean to best']:.2f} |"
        )
    opening_rows = [
        f"| `{row['way']}` | {row['seconds']:.2f} | {row['first prediction']:.3f} | {row['megabytes']:.0f} |"
        for row in record["opening"]
    ]
    held = record["resident"]
    sizes = (f"{held[name] / 2**20:.1f}" for name in ("files", "deltas", "merged"))
    return {
        "serve-mixed": "\n".join(
            [
                "| network | tasks in a batch | chosen | one pass | task by task | mean, chosen to better |",
                "| --- | ---: | ---: | ---: | ---: | ---: |",
                *mixed_rows,
            ]
        ),
        "serve-opening": "\n".join(
            [
                "| opened by | seconds | first prediction | MB |",
                "| --- | ---: | ---: | ---: |",
                *opening_rows,
            ]
        ),
        "serve-resident": "\n".join(
            [
                f"| {held['tasks']} tasks in memory | files (MB) | deltas | with merged weights |",
                "| --- | ---: | ---: | ---: |",
                f"| LeNet | {' | '.join(sizes)} |",
            ]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("measure", "table"), default="measure")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.step == "table":
        page, record = ROOT / "docs" / "serving.md", json.loads(RECORD.read_text())
        page.write_text(documents.filled(page.read_text(), parts(record)))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        many = Path(name) / "many"
        store_of("lenet", options.tasks, 20_000, many)
        store_of("depthwise", 32, 60_000, Path(name) / "depthwise")
        store_of("efficientnet-lite0", 8, 100_000, Path(name) / "efficientnet")
        openings = [opening(way, many) for way in ("StorePredictor.open", "Learner.load")]
        batches = [
            mixed("lenet", many, 32, 16, options.rounds),
            mixed("depthwise", Path(name) / "depthwise", 32, 16, options.rounds),
            mixed("efficientnet-lite0", Path(name) / "efficientnet", 8, 4, options.rounds),
        ]
        memory = resident(many, options.tasks)
    record = {"torch": torch.__version__, "tasks": options.tasks, "opening": openings}
    record |= {"mixed": batches, "resident": memory}
    print("\n\n".join(tables(record).values()))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
