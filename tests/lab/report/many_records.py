"""Many records, made by a formula: what a large study leaves behind."""

from __future__ import annotations

import itertools
from typing import Any

ORDERS = {
    "A": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "B": (1, 7, 4, 5, 2, 0, 8, 6, 9, 3),
    "C": (7, 0, 5, 1, 8, 4, 3, 6, 2, 9),
    "D": (5, 8, 2, 9, 0, 4, 3, 7, 6, 1),
    "E": (2, 9, 5, 4, 8, 0, 6, 1, 3, 7),
}
METHODS = ("halrp-budget", "halrp-paper", "halrp-official", "lrp", "stl", "finetune", "ewc", "l2", "be", "gpm")
LAYERS = ("conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight")


def many(fractions: tuple[float, ...] = (0.05, 0.25, 0.5, 1.0), seeds: int = 5) -> list[dict[str, Any]]:
    """Records of ten tasks: ten methods under five orders for each fraction and seed, 1,000 by default."""
    records = []
    for fraction, (rank, method), order, seed in itertools.product(fractions, enumerate(METHODS), ORDERS, range(seeds)):
        rows = []
        for position, identity in enumerate(ORDERS[order]):
            learned = [
                0.4 + 0.3 * fraction + 0.01 * ((3 * i + 7 * rank + seed) % 11) for i in ORDERS[order][: position + 1]
            ]
            lost = 0.01 if method in ("finetune", "ewc", "l2") else 0.0
            test = [round(value - lost * (position - i), 4) for i, value in enumerate(learned)]
            size = 12_000_000 + 100_000 * (rank + 1) * position
            row: dict[str, Any] = {
                "position": position,
                "identity": identity,
                "task": f"classes-{identity}0",
                "classes": 10,
            }
            row |= {
                "examples": 200,
                "val": test,
                "test": test,
                "parameters": size // 4,
                "bytes": size,
                "counted": size // 5,
            }
            row |= {"seconds": 5.0 + rank + 0.1 * seed, "stages": {"base": 5.0}, "peak_bytes": 700_000_000 + position}
            if method.startswith("halrp"):
                ranks = {layer: 3 + (identity + number) % 20 for number, layer in enumerate(LAYERS)}
                row |= {"ranks": ranks if position else {}, "view": "mean" if position else ""}
                row |= {"importance": {layer: 0.1 + number for number, layer in enumerate(LAYERS)} if position else {}}
                scores = {layer: [round(1 / (1 + i), 5) for i in range(40)] for layer in LAYERS}
                row |= {"scores": scores if position else {}}
            rows.append(row)
        cell = {"method": method, "stream": "cifar100-split", "backbone": "lenet", "order": order, "seed": seed}
        cell |= {"fraction": fraction, "settings": {}, "recipe": {"epochs": 20}}
        environment = {"halrp": "0.1.0", "commit": "558233dee820", "torch": "2.13.0", "machine": "x86_64", "threads": 1}
        records.append({"cell": cell, "resolved": cell, "environment": environment, "rows": rows})
    return records
