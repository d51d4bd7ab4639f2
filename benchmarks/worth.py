"""Whether what a part of a delta promises is what it brings: predicted and measured decrease of the training loss.

On a given base the parts of a delta are compared by a predicted decrease of the loss (`halrp.method.offers`). Here
one part at a time is trained for two epochs over the probe, and the decrease of the training loss is measured,
compared with training the head alone. The table has the rank correlation of both over all parts, also per byte, as
an allocation compares them, and over the parts of each kind.

    python -m benchmarks.worth [--data DIR] [--parts 40] [--json FILE]

Without `--data` only a network for scikit-learn's digits is measured; with it EfficientNet-Lite0 as well
(`benchmarks.pretrained`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from halrp import FromProbe, Halrp, Learner, Recipe, seeding
from halrp.lab import backbones
from halrp.lab.streams import load
from halrp.method.protocols import Allocation, Allocator, LayerOptions, TaskCosts
from halrp.model.size import Size
from halrp.store import atomic

EPOCHS = 2
KINDS = {"r": "row scales", "s": "column scales", "plain": "norms and biases"}


class Case(NamedTuple):
    """A network with its head's module, and a task's training data."""

    model: nn.Module
    head: str | nn.Module | None
    data: tuple[Tensor, Tensor]
    batch: int


@dataclass
class Only(Allocator):
    """Store one part, and remember what all of them promised."""

    part: str = ""
    options: dict[str, LayerOptions] = field(default_factory=dict)

    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size) -> Allocation:
        """Choose the part."""
        self.options = dict(options)
        return Allocation({name: int(name == self.part) for name in options})


def learned(case: Case, part: str, epochs: int) -> tuple[float, dict[str, LayerOptions]]:
    """The training loss after training one part, and what all parts promised; no part and no epoch is the probe."""
    only = Only(part)
    method = replace(Halrp.budget(), allocate=only, start=FromProbe(held_out=0), precision="float32")
    recipe = Recipe.auto(epochs=epochs, batch=case.batch)
    learner = Learner(case.model, head=case.head, base="given", method=method, recipe=recipe, progress=None)
    learner.learn("task", case.data)
    x, y = case.data
    outputs = torch.cat([learner.predict(rows, "task") for rows in x.split(100)])
    return float(nn.functional.cross_entropy(outputs, y)), only.options


def cases(data: Path | None) -> Mapping[str, Case]:
    """The networks that are measured."""
    stream = load("digits", "A", 0, 1.0, None)
    learner = Learner(
        backbones.build("digits-net", stream[0].classes, seed=0, shape=stream.shape), recipe=Recipe(), progress=None
    )
    learner.learn("first", stream[0].train, val=stream[0].val)
    networks = {"digits-net": Case(learner.export("first").requires_grad_(True), None, stream[1].train[:2], 32)}
    if data is not None:
        from benchmarks.pretrained.vision import Vision

        vision = Vision(data)
        task = vision.task(vision.dev[0], 30, 0)
        networks["efficientnet-lite0"] = Case(
            vision.base(), nn.Linear(vision.width, task.classes), tuple(task.train), 15
        )
    return networks


def measure(case: Case, parts: int) -> list[dict[str, Any]]:
    """A row for each of a sample of parts."""
    none, options = learned(case, "", EPOCHS)  # the head alone, trained as long
    names = sorted(name for name, option in options.items() if len(option.scores))
    order = torch.randperm(len(names), generator=seeding.generator("worth")).tolist()
    rows = []
    for name in (names[i] for i in order[:parts]):
        loss, _ = learned(case, name, EPOCHS)
        kind = KINDS.get(name.partition("/")[0], "a component") if "/" in name else "a component"
        row = {"part": name, "kind": kind, "predicted": float(options[name].scores[0]), "measured": none - loss}
        rows.append(row | {"price": options[name].component})
        print(f"{name:<50}{row['predicted']:10.4f}{row['measured']:10.4f}", flush=True)
    return rows


def correlation(first: list[float], second: list[float]) -> float:
    """Spearman's rank correlation."""
    ranks = torch.stack([torch.tensor(values).argsort().argsort().double() for values in (first, second)])
    return float(torch.corrcoef(ranks)[0, 1])


def summary(network: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Correlations over all parts and over those of a kind, where there are at least five."""
    lines = []
    for kind in ("all", "all, per byte", *sorted({row["kind"] for row in rows})):
        chosen = [row for row in rows if kind.startswith("all") or row["kind"] == kind]
        price = [row["price"] if kind.endswith("per byte") else 1 for row in chosen]
        pairs = [
            [row[name] / cost for row, cost in zip(chosen, price, strict=True)] for name in ("predicted", "measured")
        ]
        if len(chosen) >= 5:
            lines.append({"network": network, "parts": kind, "count": len(chosen), "correlation": correlation(*pairs)})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--parts", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, lines = {}, []
    for network, case in cases(options.data).items():
        rows[network] = measure(case, options.parts)
        lines += summary(network, rows[network])
    for line in lines:
        print(f"{line['network']:<22}{line['parts']:<20}{line['count']:4}{line['correlation']:8.2f}")
    if options.json:
        record = {"torch": torch.__version__, "epochs": EPOCHS, "rows": lines, "parts": rows}
        atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
