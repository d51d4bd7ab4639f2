"""What a training step of a delta costs, as a ratio to a step that trains the whole network.

LeNet on 3×32×32 images, batches of 128, one thread, through the library's own loop: batch lookup, forward, backward,
penalties, fused Adam, channels last on both sides. Every variant trains a block of steps per round.

    python -m benchmarks.train_step [--rounds 20] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.interleaved import arguments, measure, report
from halrp import Halrp, Recipe
from halrp.lab import backbones
from halrp.method.fine_tune import prepare as prepare_fine_tuning
from halrp.method.start import Start
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.model.plan import plan
from halrp.training.loop import Group, Stage, Training
from halrp.training.prepare import prepare

BATCH, BLOCK = 128, 8
WEIGHTS = ("conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight")


@dataclass(frozen=True)
class Variant:
    """How the four layers are trained: a rank each, or None for a dense weight."""

    ranks: tuple[int | None, ...]
    view: str = "mean"


VARIANTS = {
    "kernel-mean 3 10 4 8": Variant((3, 10, 4, 8)),
    "kernel-mean 3 20 10 14 (budget)": Variant((3, 20, 10, 14)),
    "owned conv, 5 10 (budget)": Variant((None, None, 5, 10), "full"),
    "full-kernel 3 10 4 8": Variant((3, 10, 4, 8), "full"),
    "kernel-mean 3 20 100 100 (official)": Variant((3, 20, 100, 100)),
}


def random_start(base: Base, variant: Variant) -> Start:
    """Factors of the variant's ranks, as after a warm-up."""
    factors, owned = {}, {}
    for name, rank in zip(WEIGHTS, variant.ranks, strict=True):
        weight = base.adapted_weights()[name]
        if rank is None:
            owned[name] = weight.clone()
            continue
        rows, inputs = weight.shape[:2]
        columns = inputs if variant.view == "mean" else weight[0].numel()
        p, q = 0.05 * torch.randn(rows, rank), 0.05 * torch.randn(rank, columns)
        factors[name] = Factors(torch.ones(rows), torch.ones(inputs), p, q)
    return Start(factors, owned, recovered={}, scores={})


def block_of_steps(variant: Variant | None) -> Callable[[], None]:
    """A function that trains a variant, or the whole network, for a block of steps."""
    torch.manual_seed(0)
    model = backbones.build("lenet", classes=10)
    base = Base(model, plan(model, "head"), channels_last=True)
    recipe = Recipe(epochs=10_000, batch=BATCH)
    source = (torch.randn(BATCH * BLOCK, 3, 32, 32), torch.randint(10, (BATCH * BLOCK,)))
    data = prepare(source, name="noise", device=base.device, batch=BATCH, channels_last=True)
    net = base.trainable(10, "benchmark")
    groups = [Group([p for p in net.parameters() if p.requires_grad])]
    if variant is not None:
        run = prepare_fine_tuning(
            base, Halrp.budget(), variant.view, random_start(base, variant), base.owned_tensors(net), 10
        )
        net, groups = run.net, run.groups
    training = Training(net, groups, data, recipe, Stage(recipe.epochs, ("benchmark",)))
    return lambda: void(training.run(training.epoch + 1))


def void(_: object) -> None:
    """Drop a result."""


def main() -> None:
    options = arguments(__doc__, rounds=20)
    variants = {"whole network": block_of_steps(None)}
    variants |= {name: block_of_steps(variant) for name, variant in VARIANTS.items()}
    report(measure(variants, "whole network", options.rounds), options.json)


if __name__ == "__main__":
    main()
