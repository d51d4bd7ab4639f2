"""Mutation testing of the store, the codec, the allocation and the seeding.

    python -m tests.mutation --label before --json results/reliability/mutation.json

Each module is changed in one small way at a time, and the tests near it are run on the changed module. A mutant that
every test accepts is alive: the tests do not hold what it changed, or the change has no effect. The record is extended:
other labels and modules in it stay.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  (what follows is loaded once, for all children)
import safetensors.torch  # noqa: F401
import torch

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant
from tests.mutation.run import Measured, measured, outcome, path_of, sample
from tests.mutation.targets import TARGETS


def main() -> None:
    """Run the mutants of some modules and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each module at most, drawn from the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="after")
    parser.add_argument(
        "--again", metavar="LABEL", help="run only what was alive there, where the mutants are the same"
    )
    parser.add_argument("--json", type=Path, help="the record to extend")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tests = measured({module: TARGETS[module] for module in arguments.modules or TARGETS})
    for module, near in tests.items():
        earlier = recorded(arguments.json).get(arguments.again, {}).get(module)
        result = run(module, near, arguments.sample, arguments.seed, earlier)
        print(f"{module}: {result['killed']} of {result['mutants']} killed, {result['seconds']} s", flush=True)
        for line in result["alive"]:
            print(f"  {line['line']}: {line['change']}", flush=True)
        if arguments.json is not None:
            extend(arguments.json, arguments.label, module, result)


def run(module: str, near: Measured, count: int, seed: int, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """The counts of a module's mutants, and those that are alive.

    With an earlier result for the same mutants, those that were killed then are not run again.
    """
    began, equivalent = time.perf_counter(), EQUIVALENT.get(module, {})
    source = Path(path_of(module)).read_text("utf-8")
    every, chosen = sample(source, None, seed), sample(source, count, seed)
    same = outcome(module, Mutant(0, "none", source), near)
    if same.result != "alive":
        raise SystemExit(f"{module} without a change was {same.result}: its tests do not pass by themselves")
    again = chosen if earlier is None else _alive_then(chosen, earlier, len(every))
    outcomes = [outcome(module, mutant, near) for mutant in again]
    alive = [o for o in outcomes if o.result == "alive"]
    return {
        "of": len(every),
        "mutants": len(chosen),
        "run": len(outcomes),
        "killed": len(chosen) - len(alive),
        "timeouts": sum(o.result == "timeout" for o in outcomes),
        "seed": seed,
        "seconds": round(time.perf_counter() - began),
        "alive": [
            {"line": o.mutant.line, "change": o.mutant.change, "tests": o.tests}
            | ({"equivalent": equivalent[o.mutant.change]} if o.mutant.change in equivalent else {})
            for o in alive
        ],
    }


def _alive_then(chosen: list[Mutant], earlier: dict[str, Any], total: int) -> list[Mutant]:
    """The mutants that an earlier run left alive; all if the source has changed since."""
    alive = {(each["line"], each["change"]) for each in earlier["alive"]}
    same = earlier["of"] == total and alive <= {(mutant.line, mutant.change) for mutant in chosen}
    return [mutant for mutant in chosen if (mutant.line, mutant.change) in alive] if same else chosen


def recorded(path: Path | None) -> dict[str, Any]:
    """The record so far."""
    record: dict[str, Any] = json.loads(path.read_text("utf-8")) if path is not None and path.exists() else {}
    return {"command": "python -m tests.mutation --json results/reliability/mutation.json"} | record


def extend(path: Path, label: str, module: str, result: dict[str, Any]) -> None:
    """Put a module's result into a record."""
    record = recorded(path)
    record.setdefault(label, {})[module] = result
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(record, indent=1, ensure_ascii=False)}\n", "utf-8")


if __name__ == "__main__":
    main()
