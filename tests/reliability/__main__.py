"""Run every fault on every operation and write the counts; anything that is lost or wrongly accepted ends the run.

python -m tests.reliability --json results/reliability/faults.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from halrp import __version__
from tests.reliability import campaign
from tests.reliability.operations import OPERATIONS

MUTANTS = 1_050_000
AGAIN = 30
"""Runs of each operation that are killed several times in a row."""


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the counts")
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--again", type=int, default=AGAIN)
    parser.add_argument("--scratch", type=Path, help="a folder for stores that are broken, better in memory")
    arguments = parser.parse_args()
    record: dict[str, Any] = {
        "command": "python -m tests.reliability --json results/reliability/faults.json",
        "halrp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        scratch = Path(name)
        faults: dict[str, Callable[..., dict[str, int]]] = {
            "full disk": campaign.full_disk,
            "power loss": campaign.power_loss,
            "kills": lambda each, folder: campaign.kills(each, folder, again=arguments.again),
        }
        for fault, run in faults.items():
            record[fault] = {}
            for operation in OPERATIONS:
                began = time.perf_counter()
                record[fault][operation.name] = counts = run(operation, scratch)
                print(f"{fault}: {operation.name}: {counts}, {time.perf_counter() - began:.0f} s", flush=True)
        record["changed files"] = {}
        for kind, count in campaign.mutants_of(scratch / "files", arguments.mutants):
            began = time.perf_counter()
            record["changed files"][kind.name] = counts = dict(campaign.changed_files(kind, count))
            print(f"changed files: {kind.name}: {counts}, {time.perf_counter() - began:.0f} s", flush=True)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(f"{json.dumps(record, indent=1)}\n", "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
