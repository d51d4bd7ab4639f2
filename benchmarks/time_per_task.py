"""How long a task takes as tasks accumulate, for every method: one stream, one run, one thread.

The methods learn the stream side by side: all of them the first task, then all of them the second, so that a machine
which is busy for a while slows them all. Time is the process's own, in units of the first task of `stl`; `beside` holds
each task against the one that `stl` learned in the same round, whose own time does not grow. Learning all tasks at once
(`mtl`) has no time per task and is left out. Evaluation is not timed.

    python -m benchmarks.time_per_task --data DIR [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from halrp.lab.backbones import build
from halrp.lab.methods import Context, Method
from halrp.lab.run import sweep
from halrp.lab.run.cell import Cell
from halrp.lab.streams import load
from halrp.store import atomic

PRESET = "cifar100-superclass-5"
OVER = {"order": "A", "recipe.epochs": 10}


def cells() -> list[Cell]:
    """One cell for each method that learns task by task, with the settings of the preset."""
    by_method = {cell.method: cell for cell in sweep.expand(sweep.read(PRESET)[1], OVER, PRESET)}
    short = sweep.expand(sweep.read(PRESET)[1], OVER | {"settings.mode": "paper"}, PRESET, only_methods=["prd"])
    by_method |= {"prd": short[0]}  # its official mode has a hundred epochs of its own
    return [cell for name, cell in by_method.items() if name != "mtl"]


def method_of(cell: Cell, tasks: int, shape: Any) -> Method:
    """The method of a cell, ready for its first task."""

    def network(classes: int, seed: int) -> torch.nn.Module:
        return build(cell.backbone, classes, seed=seed, shape=shape, **cell.network)

    return cell.make_method(Context(network, cell.make_recipe(), cell.seed, tasks, cell.order))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="the folder of the data sets")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = cells()
    stream = load(chosen[0].stream, "A", 0, chosen[0].fraction, options.data)[: options.tasks]
    known = {cell.method: method_of(cell, len(stream), stream.shape) for cell in chosen}
    seconds: dict[str, list[float]] = {name: [] for name in known}
    for position in range(len(stream)):
        task = stream[position]
        for name, method in known.items():
            began = time.process_time()
            method.learn(task)
            seconds[name].append(time.process_time() - began)
        shown = "  ".join(f"{name} {spent[-1] / seconds['stl'][-1]:.2f}" for name, spent in seconds.items())
        print(f"task {position + 1} of {len(stream)}, to stl beside it: {shown}", flush=True)
    rows = [
        {
            "name": name,
            "ratios": [round(second / seconds["stl"][0], 3) for second in spent],
            "beside": [round(second / other, 3) for second, other in zip(spent, seconds["stl"], strict=True)],
        }
        for name, spent in seconds.items()
    ]
    if options.json:
        settings = {
            "stream": stream.name,
            "fraction": chosen[0].fraction,
            **OVER,
            "stl_first": round(seconds["stl"][0], 3),
        }
        atomic.write(options.json, (json.dumps({"what": settings, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
