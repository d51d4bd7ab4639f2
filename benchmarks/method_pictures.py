"""The pictures of docs/method.md, one for each equation, from a small network and scikit-learn's digits.

`python -m benchmarks.method_pictures` computes everything, writes the record results/benchmarks/method_pictures.json
and draws; `python -m benchmarks.method_pictures draw` draws from the record alone. A network with three hidden layers
of 32 units learns the digits 0 to 4 and is frozen; the task is the digits 5 to 9.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.drawing import COLOURS, INK, SOFT, Panel, legend, matrix, svg, text
from halrp import Halrp, Learner, Recipe, WarmUp, allocate, decompose, scales
from halrp.store import atomic

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "benchmarks" / "method_pictures.json"
FIGURES = ROOT / "docs" / "figures"
LAYERS = {"0": "first layer", "2": "second layer", "4": "third layer"}
SHOWN = "2"
BUDGETS = (2_500, 3_000, 4_000, 5_000, 6_000, 8_000, 12_000)
SEEDS = (0, 1, 2)


def weight_of(net: nn.Module, layer: str) -> Tensor:
    """The weight of a layer."""
    return net.get_parameter(f"{layer}.weight")


def network(seed: int) -> nn.Sequential:
    """64 inputs, three hidden layers of 32, five classes."""
    torch.manual_seed(seed)
    hidden = (nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(32, 5))


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The first task, then training and test data of the second."""
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x = x.float() / 16
    low, high = y < 5, y >= 5
    x2, y2 = x[high], y[high] - 5
    return (x[low], y[low]), (x2[:150], y2[:150]), (x2[150:], y2[150:])


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Adam on random batches of 32."""
    source = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,), generator=source)
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return nn.functional.cross_entropy(net(x), y)


def importance(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """The mean over single examples of the mean squared gradient of each weight, at the warm-up."""
    total = dict.fromkeys(LAYERS, 0.0)
    for row, label in zip(x.split(1), y.split(1), strict=True):
        net.zero_grad()
        loss(net, row, label).backward()
        for name in LAYERS:
            gradient = weight_of(net, name).grad
            assert isinstance(gradient, Tensor)
            total[name] += float(gradient.square().mean())
    return {name: value / len(x) for name, value in total.items()}


def rounded(values: Tensor) -> Any:
    """As lists, with the digits that a picture shows."""
    return [rounded(row) for row in values] if values.dim() > 1 else [float(f"{float(v):.4g}") for v in values]


def compute() -> dict[str, Any]:
    """Everything that the pictures show."""
    first, second, test = digits()
    base = network(0)
    train(base, *first, steps=400)
    free = copy.deepcopy(base)
    nn.init.zeros_(weight_of(free, "6"))
    train(free, *second, steps=120)
    base.requires_grad_(False)
    record: dict[str, Any] = {"fits": {}, "spectra": {}, "cuts": {}}
    residuals = {}
    for name in LAYERS:
        old, new = weight_of(base, name).detach(), weight_of(free, name).detach()
        r, s = scales.fit(new, old)
        rows_only = (new * old).sum(1) / old.square().sum(1)
        residuals[name] = new - scales.scaled(old, r, s)
        distance = (new - old).norm()
        record["fits"][name] = [
            1.0,
            float((new - rows_only[:, None] * old).norm() / distance),
            float(residuals[name].norm() / distance),
        ]
        u, sigma, v = decompose.plain(residuals[name])
        record["spectra"][name] = rounded(sigma)
        if name == SHOWN:
            p, q = decompose.factors(u, sigma, v, 4)
            shown = {"W": old, "r": r[:, None], "s": s[None], "scaled": scales.scaled(old, r, s), "low": p @ q}
            shown["sum"] = shown["scaled"] + shown["low"]
            record["shown"] = {key: rounded(value) for key, value in shown.items()}
    weight = importance(free, *second)
    record["importance"] = weight
    at_warm_up = float(loss(free, *test))
    for name in LAYERS:
        u, sigma, v = decompose.plain(residuals[name])
        cuts = []
        for rank in range(0, 32, 2):
            cut = copy.deepcopy(free)
            p, q = decompose.factors(u, sigma, v, rank)
            with torch.no_grad():
                weight_of(cut, name).sub_(residuals[name] - p @ q)
            measured = abs(float(loss(cut, *test)) - at_warm_up)
            cuts.append([rank, weight[name] * float(sigma[rank:].square().sum()), measured])
        record["cuts"][name] = cuts
    scores = {name: weight[name] * torch.tensor(record["spectra"][name]).square() for name in LAYERS}
    prices = {name: sum(weight_of(base, name).shape) for name in LAYERS}
    record["prices"], record["numbers"] = prices, 900
    record["ranks"] = allocate.by_budget(scores, prices, record["numbers"])
    record["budgets"] = [[bound, *_learned(bound, first, second, test)] for bound in BUDGETS]
    record["threads"], record["torch"] = torch.get_num_threads(), torch.__version__
    return record


def _learned(bound: int, *data: tuple[Tensor, Tensor]) -> tuple[float, float, list[float]]:
    """Mean bytes of the file, mean accuracy, and accuracies of the seeds, of the task under a bound."""
    first, second, (x, y) = data
    sizes, shares = [], []
    for seed in SEEDS:
        learner = Learner(network(seed), method=_method(bound), recipe=Recipe(epochs=30, batch=32, lr=2e-3), seed=seed)
        learner.learn("low", first)
        sizes.append(learner.learn("high", second).bytes)
        shares.append(100 * float((learner.predict(x, "high").argmax(1) == y).float().mean()))
    return sum(sizes) / len(sizes), sum(shares) / len(shares), shares


def _method(bound: int) -> Halrp:
    from dataclasses import replace

    return replace(Halrp.budget(bound), start=WarmUp())


# ---- drawing ------------------------------------------------------------------------------------------------------


def pictures(record: Mapping[str, Any]) -> dict[str, str]:
    """The drawings by the names of their files."""
    return {
        "method-delta.svg": delta(record),
        "method-scales.svg": fits(record),
        "method-components.svg": spectra(record),
        "method-importance.svg": cuts(record),
        "method-ranks.svg": ranks(record),
        "method-budget.svg": budget(record),
    }


def delta(record: Mapping[str, Any]) -> str:
    """The adapted weight, as a sum of pictures."""
    shown, cell, top = record["shown"], 3.6, 44
    side = 32 * cell
    limit = max(abs(v) for row in shown["sum"] for v in row)
    scale = max(abs(v - 1) for row in (*shown["r"], *shown["s"]) for v in row)
    strip = lambda values: [[v - 1 for v in row] for row in values]  # noqa: E731
    parts = [matrix(10, top, strip(shown["r"]), cell, scale), text(10, top - 8, "r")]
    parts += [text(22, top + side / 2, "∘"), matrix(36, top, shown["W"], cell, limit), text(36, top - 8, "W, frozen")]
    parts += [text(40 + side, top + side / 2, "∘"), text(56 + side, top + side / 2 - 8, "s")]
    parts += [matrix(56 + side, top + side / 2, strip(shown["s"]), cell, scale)]
    left = 66 + 2 * side
    parts += [text(left, top + side / 2, "+"), matrix(left + 16, top, shown["low"], cell, limit)]
    parts += [text(left + 16, top - 8, "P Q, four components")]
    left += 26 + side
    parts += [text(left, top + side / 2, "="), matrix(left + 16, top, shown["sum"], cell, limit)]
    parts += [text(left + 16, top - 8, "the task's weight")]
    foot = "Blue is negative, orange positive; r and s are shown as differences to 1. Second layer, 32 × 32."
    return svg(int(left + 36 + side), 190, [*parts, text(10, top + side + 22, foot, colour=SOFT)], "r ∘ W ∘ s + P Q")


def fits(record: Mapping[str, Any]) -> str:
    """What is left of the way from the base to the warm-up, without scales, with r, and with r and s."""
    panel = Panel(50, 30, 330, 130, (-0.5, 2.5), (0, 1.0))
    panel.axes("", "what is left of ‖free − W‖", lambda v: list(LAYERS.values())[round(v)], (0, 1, 2))
    for number, name in enumerate(LAYERS):
        for step, value in enumerate(record["fits"][name]):
            panel.bar(number + 0.24 * (step - 1), value, 22, COLOURS[step])
    names = ("nothing fitted", "r fitted", "r, then s")
    return svg(510, 200, [*panel.parts, *legend(395, 60, names)], "What scales express")


def spectra(record: Mapping[str, Any]) -> str:
    """Singular values of each layer's residual, those that are stored filled."""
    top = 1.05 * max(max(values) for values in record["spectra"].values())
    panel = Panel(50, 30, 330, 150, (0, 32), (0, top))
    panel.axes("component", "singular value σ")
    for colour, (name, values) in zip(COLOURS, record["spectra"].items(), strict=False):
        rank = record["ranks"][name]
        points = [(i + 0.5, v) for i, v in enumerate(values)]
        panel.dots(points[rank:], colour, 2.5, hollow=True)
        panel.dots(points[:rank], colour, 3)
    names = [f"{title}: rank {record['ranks'][name]}" for name, title in LAYERS.items()]
    return svg(540, 225, [*panel.parts, *legend(395, 60, names)], "Singular values of the residuals")


def cuts(record: Mapping[str, Any]) -> str:
    """Predicted against measured change of the loss when components are dropped."""
    points = [(p, m) for rows in record["cuts"].values() for _, p, m in rows if p > 0 and m > 1e-6]
    across = (min(p for p, _ in points), max(p for p, _ in points))
    up = (min(m for _, m in points), max(m for _, m in points))
    panel = Panel(65, 30, 320, 200, (across[0] / 1.5, across[1] * 1.5), (up[0] / 1.5, up[1] * 1.5), (True, True))
    panel.axes("predicted: importance × dropped Σ σ²", "measured change of the test loss")
    for colour, rows in zip(COLOURS, record["cuts"].values(), strict=False):
        panel.dots([(p, m) for _, p, m in rows if p > 0 and m > 1e-6], colour)
    return svg(510, 280, [*panel.parts, *legend(400, 60, list(LAYERS.values()))], "Predicted and measured loss")


def ranks(record: Mapping[str, Any]) -> str:
    """Components of all layers by what they promise for each number, those within the bound in full colour."""
    entries = []
    for number, (name, values) in enumerate(record["spectra"].items()):
        for i, sigma in enumerate(values):
            worth = record["importance"][name] * sigma**2 / record["prices"][name]
            entries.append((worth, number, i < record["ranks"][name]))
    entries = sorted(entries, reverse=True)[:48]
    panel = Panel(70, 30, 320, 150, (-1, 48), (entries[-1][0] / 2, entries[0][0] * 2), (False, True))
    panel.axes("components of all layers, best first", "predicted worth for each stored number")
    for i, (worth, number, stored) in enumerate(entries):
        panel.bar(i, worth, 5, COLOURS[number], 1 if stored else 0.3)
    bound = text(400, 130, f"full colour: what {record['numbers']}", colour=SOFT) + text(
        400, 145, "numbers pay for", colour=SOFT
    )
    return svg(550, 225, [*panel.parts, *legend(400, 60, list(LAYERS.values())), bound], "Which components are stored")


def budget(record: Mapping[str, Any]) -> str:
    """Accuracy under bounds on bytes."""
    rows = record["budgets"]
    every = [share for row in rows for share in row[3]]
    panel = Panel(50, 30, 340, 150, (2_200, 13_500), (min(every) - 1, min(100.0, max(every) + 1)), (True, False))
    panel.axes(
        "bound on the task's file, bytes", "test accuracy, %", "{:,.0f}".format, (2_500, 4_000, 6_000, 8_000, 12_000)
    )
    panel.line([(row[0], row[2]) for row in rows], COLOURS[0])
    for row in rows:
        panel.dots([(row[0], share) for share in row[3]], COLOURS[0], 2, hollow=True)
    panel.dots([(row[0], row[2]) for row in rows], COLOURS[0], 4)
    parts = [
        *panel.parts,
        text(400, 60, "mean of three seeds", colour=INK),
        text(400, 76, "small: each seed", colour=SOFT),
    ]
    return svg(540, 225, parts, "What the budget pays for")


def main() -> None:
    """Compute if asked, then draw."""
    if sys.argv[1:] != ["draw"]:
        atomic.write(RECORD, (json.dumps(compute()) + "\n").encode())
    for name, content in pictures(json.loads(RECORD.read_text("utf-8"))).items():
        atomic.write(FIGURES / name, content.encode())
        print(f"wrote {FIGURES.relative_to(ROOT) / name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
