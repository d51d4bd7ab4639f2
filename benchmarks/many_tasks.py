"""Whether learning a task costs the same after many tasks, in seconds and in peak memory.

One learner has learned many tasks, another one only its base; both commit to stores. They take turns in learning the
same further tasks, and each turn gives one ratio. Peak memory is the process's high-water mark while it
learns the task (Linux only).

    python -m benchmarks.many_tasks [--tasks 50] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from halrp import Halrp, Learner, Recipe

EXAMPLES, CLASSES = 2048, 4


def task(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise around class means that differ from task to task."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, 1, 8, 8, generator=generator)
    y = torch.arange(EXAMPLES) % CLASSES
    return means[y] + torch.randn(EXAMPLES, 1, 8, 8, generator=generator), y


def network() -> nn.Module:
    """A small conv net with batch norm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


def memory(key: str) -> int:
    """A figure of the process's memory in bytes; `VmHWM` is the most it held since `reset_peak`."""
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None, "this benchmark reads /proc and needs Linux"
    return 1024 * int(match[1])


def reset_peak() -> None:
    """Reset the peak of memory that `memory` reads."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    learned: dict[str, list[tuple[float, int]]] = {"many": [], "few": []}
    with tempfile.TemporaryDirectory() as folder:

        def learner(name: str) -> Learner:
            method, recipe = Halrp.budget(growth_per_task=0.2), Recipe(epochs=4, batch=64)
            return Learner(model, method=method, recipe=recipe, store=f"{folder}/{name}", progress=None)

        def learn(who: Learner, number: int) -> tuple[float, int]:
            data = task(number)
            reset_peak()
            began = time.process_time()
            who.learn(f"task {number}", data, val=(data[0][:256], data[1][:256]))
            return time.process_time() - began, memory("VmHWM")

        many = learner("many")
        for number in range(options.tasks - 1):
            learn(many, number)
        for turn in range(options.rounds):
            # A fresh learner each time, so that the second one is always at its second task.
            few = learner(f"few {turn}")
            learn(few, 0)
            for name, who in sorted({"many": many, "few": few}.items(), reverse=turn % 2 == 0):
                learned[name].append(learn(who, options.tasks + turn))
    rows = []
    for column, name in enumerate(
        (f"seconds of task {options.tasks} to task 2", f"peak memory of task {options.tasks} to task 2")
    ):
        pairs = zip(learned["many"], learned["few"], strict=True)
        lower, ratio, upper = statistics.quantiles([m[column] / f[column] for m, f in pairs], n=4, method="inclusive")
        rows.append({"name": name, "ratio": ratio, "lower": lower, "upper": upper})
        print(f"{name}: {ratio:.3f} ({lower:.3f} – {upper:.3f})")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"tasks": options.tasks, "measured": learned, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
