"""What a store costs as it grows: opening it, memory, a commit, and `halrp inspect`, at 10 to 10,000 tasks.

LeNet, one task learned once and committed under every name. Each figure is of a fresh process, and seconds are those of
the processor. A commit also waits for the disk; how long, by the clock, stands beside it. Memory is what the resident
set grows by: opening alone, and then with tasks in memory that were read, up to 1,000 of them, beside the bytes of
their files.

    python -m benchmarks.scale [--tasks 10 100 1000 10000] [--json results/benchmarks/scale.json]
    python -m benchmarks.scale table            # writes the table of docs/scaling.md
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.serve_store import store_of
from halrp.lab.report import documents
from halrp.store import atomic

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "results" / "benchmarks" / "scale.json", ROOT / "docs" / "scaling.md"
BUDGET = 150_000
MOST_RESIDENT = 1000

OPENING = """
import ctypes, gc, json, sys, time
import torch
torch.set_num_threads(1)
def settled():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory("VmRSS")
from benchmarks.many_tasks import memory
from benchmarks.serve_store import NETWORKS, X
from halrp import StorePredictor
folder, most = sys.argv[1], int(sys.argv[2])
model = NETWORKS["lenet"]()
before, start = memory("VmRSS"), time.process_time()
predictor = StorePredictor.open(folder, model, memory=1 << 40)
opening = time.process_time() - start
opened = memory("VmRSS")
names = list(predictor.tasks)
predictor.predict(X[:1], names[-1])
predictor.drop(names[-1])
before_tasks = settled()
start = time.process_time()
predictor.select(names[:most])
reading = time.process_time() - start
resident = settled() - before_tasks
facts = {"tasks": len(names), "open": opening, "open bytes": opened - before, "resident": len(names[:most])}
facts |= {"read": reading / len(names[:most]), "resident bytes": resident}
print(json.dumps(facts | {"file bytes": sum(predictor.tasks[name].bytes for name in names[:most])}))
"""

COMMIT = """
import json, os, statistics, sys, time
from dataclasses import replace
import torch
torch.set_num_threads(1)
from benchmarks.serve_store import NETWORKS
from halrp.store.store import Store
from halrp import StorePredictor
store = Store(sys.argv[1])
predictor = StorePredictor.open(sys.argv[1], NETWORKS["lenet"]())
task = predictor.delta(next(iter(predictor.tasks)))
waited, flush = [0.0], os.fsync
def fsync(handle):
    start = time.perf_counter()
    flush(handle)
    waited[0] += time.perf_counter() - start
os.fsync = fsync
seconds, disk = [], []
for number in range(9):
    new = replace(task, task=f"later {number}")
    waited[0], start = 0.0, time.process_time()
    store.commit(predictor.base, [new])
    seconds.append(time.process_time() - start)
    disk.append(waited[0])
print(json.dumps({"first commit": seconds[0], "commit": statistics.median(seconds[1:]), "disk": min(disk)}))
"""


def inspected(folder: str) -> dict[str, Any]:
    """How long `halrp inspect` takes, the start of Python included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "halrp", "inspect", folder], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"inspect": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def measured(script: str, *arguments: object) -> dict[str, Any]:
    """What a fresh process prints."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    facts: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return facts


def row(tasks: int) -> dict[str, Any]:
    """The figures of a store with a number of tasks."""
    with tempfile.TemporaryDirectory() as name:
        store_of("lenet", tasks, BUDGET, Path(name))
        facts = measured(OPENING, name, MOST_RESIDENT) | inspected(name)
        return facts | measured(COMMIT, name)


def table(record: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| tasks | open (s) | MB | in memory | MB of files | MB measured | read one (ms) | commit (ms) | disk (ms) "
        "| `inspect` (s) |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for facts in record["rows"]:
        cells = [
            f"{facts['tasks']:,}",
            f"{facts['open']:.2f}",
            f"{facts['open bytes'] / 2**20:.0f}",
            f"{facts['resident']:,}",
            f"{facts['file bytes'] / 2**20:.1f}",
            f"{facts['resident bytes'] / 2**20:.1f}",
            f"{1e3 * facts['read']:.1f}",
            f"{1e3 * facts['commit']:.0f}",
            f"{1e3 * facts['disk']:.0f}",
            f"{facts['inspect']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parts(record: dict[str, Any]) -> dict[str, Callable[[], str]]:
    """The table of docs/scaling.md, by its name there."""
    return {"scale": partial(table, record)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("measure", "table"), default="measure")
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.step == "table":
        PAGE.write_text(documents.filled(PAGE.read_text(), parts(json.loads(RECORD.read_text()))))
        return
    torch.set_num_threads(1)
    record: dict[str, Any] = {"torch": torch.__version__, "budget": BUDGET, "rows": []}
    for tasks in options.tasks:
        record["rows"].append(row(tasks))
        print(table({"rows": record["rows"][-1:]}), flush=True)
        if options.json:
            atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
