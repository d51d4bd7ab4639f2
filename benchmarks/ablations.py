"""What each choice of a start at the probe is worth: accuracy with one of them changed, at the same bound in bytes.

A network is trained on the first task of scikit-learn's digits and given as the base of the next ones, each learned by
itself. Every row changes one field of the method; all see the same base, data and seeds, so differences to the default
are paired. Their error is the standard error over seeds, each of which is another base, other images and the mean over
its tasks.

    python -m benchmarks.ablations [--seeds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.starts import RECIPE, TASKS, learned, pretrained
from halrp import FromProbe, Halrp, WarmUp
from halrp.lab.streams import load
from halrp.method.from_probe import OFFERS
from halrp.method.method import StartRule
from halrp.store import atomic

STREAM, BACKBONE = "digits", "digits-net"
BOUND = 6_000
"""Bytes of a task's file."""
DEFAULT = "default"


def without(*kinds: str) -> FromProbe:
    """A start that does not offer some kinds of parts."""
    return FromProbe(parts=tuple(part for part in OFFERS if part not in kinds))


CHOICES: dict[str, tuple[str, StartRule]] = {
    DEFAULT: ("", FromProbe()),
    "warm-up": ("start", WarmUp()),
    "random head": ("head", FromProbe(head="random")),
    "head trained along": ("folds", FromProbe(folds=0)),
    "own statistics": ("statistics", FromProbe(statistics="own")),
    "no components": ("parts", without("components")),
    "components alone": ("parts", without(*(part for part in OFFERS if part != "components"))),
    "no scales": ("parts", without("rows", "columns")),
    "no norms, no biases": ("parts", without("norms", "biases")),
    "offered before norms too": ("redundant", FromProbe(redundant=True)),
    "components in int4": ("bits", FromProbe(bits="int4")),
    "mixed bits": ("bits", FromProbe(bits="mixed")),
    "all else in int4": ("precision", FromProbe(precision="int4")),
    "all else in float32": ("precision", FromProbe(precision="float32")),
}
"""By name, the field that is changed and the start with it."""


def measure(seed: int) -> dict[str, dict[str, float]]:
    """By choice, the mean accuracy and the mean size of the tasks after the first."""
    stream = load(STREAM, "A", seed, 1.0, None)
    model = pretrained(BACKBONE, stream.shape, stream[0], seed)
    results: dict[str, dict[str, float]] = {}
    for name, (_, start) in CHOICES.items():
        results[name] = learned(model, stream, replace(Halrp.budget(BOUND), start=start), seed)
        print(f"seed {seed}, {name}: {results[name]['accuracy']:.2f} %, {results[name]['bytes']:.0f} bytes", flush=True)
    return results


def rows_of(seeds: Sequence[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """One row for each choice: accuracies by seed, their mean, the paired difference to the default, and its error."""
    rows = []
    for name, (field, _) in CHOICES.items():
        values = [seed[name]["accuracy"] for seed in seeds]
        gains = [seed[name]["accuracy"] - seed[DEFAULT]["accuracy"] for seed in seeds]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        row: dict[str, Any] = {"name": name, "field": field, "accuracies": [round(value, 3) for value in values]}
        row |= {"accuracy": round(statistics.fmean(values), 3), "gain": round(statistics.fmean(gains), 3)}
        rows.append(row | {"error": round(error, 3), "bytes": round(statistics.fmean(s[name]["bytes"] for s in seeds))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of([measure(seed) for seed in range(options.seeds)])
    for row in rows:
        print(f"{row['name']:<26}{row['accuracy']:7.2f} %  {row['gain']:+.2f} ± {row['error']:.2f}  {row['bytes']:,}")
    if options.json:
        setting = {"stream": STREAM, "epochs": RECIPE.epochs, "batch": RECIPE.batch, "tasks": TASKS, "bound": BOUND}
        record = {"torch": torch.__version__, "what": setting | {"seeds": options.seeds}, "rows": rows}
        atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
