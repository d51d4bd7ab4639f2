"""How long learning a delta on a given base takes, as a ratio to fine-tuning the whole network.

EfficientNet-Lite0 on 30 images a class of a superclass of CIFAR-100, and MiniLM-L6 on 60 texts a class, as in
`benchmarks.pretrained`: the same epochs, batches and examples. "learn" is all of it: the fitted head, gradients,
comparisons on validation data, checks and commit. Variants take turns in one process on one thread.

    python -m benchmarks.learn_time --data DIR [--rounds 5] [--networks efficientnet-lite0 minilm-l6] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.interleaved import Row, measure, parser, report
from benchmarks.pretrained.domain import Domain, Task
from benchmarks.pretrained.methods import Method, Setting, methods

SHOTS = {"efficientnet-lite0": 30, "minilm-l6": 60}
"""Training examples a class, by network."""
METHODS: dict[str, Setting | None] = {
    "finetune": {"lr": 1e-3},
    "lora-r4": {"lr": 3e-3},
    "halrp-60": None,
    "halrp-60-all": None,
}
"""What is timed, with its setting; None is the only one there is. Learning rates do not change the time."""


def domain_of(network: str, data: Path | None) -> Domain:
    """A network with its tasks."""
    if network == "efficientnet-lite0":
        from benchmarks.pretrained.vision import Vision

        return Vision(data, None)
    from benchmarks.pretrained.text import Text

    return Text(None)


def learn(method: Method, domain: Domain, task: Task, setting: Setting) -> None:
    """Learn a task up to its first file."""
    next(iter(method.fit(domain, task, setting)))


def variants(domain: Domain, shots: int) -> dict[str, Callable[[], object]]:
    """Every method on the first dev task."""
    task, known = domain.task(domain.dev[0], shots, 0), methods()
    made: dict[str, Callable[[], object]] = {}
    for name, setting in METHODS.items():
        method = known[name]
        if setting is None:
            (setting,) = method.grid(domain, shots)
        elif name.startswith("lora"):
            setting = {**setting, "targets": next(iter(domain.lora_targets))}
        made[name] = partial(learn, method, domain, task, setting)
    return made


def main() -> None:
    options = parser(__doc__, rounds=5, networks=list(SHOTS))
    options.add_argument("--data", type=Path, help="the folder of the data sets")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in chosen.networks:
        timed = measure(variants(domain_of(name, chosen.data), SHOTS[name]), "finetune", chosen.rounds)
        rows += [replace(row, name=f"{name}: {row.name}") for row in timed]
    report(rows, chosen.json)


if __name__ == "__main__":
    main()
