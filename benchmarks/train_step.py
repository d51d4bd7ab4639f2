"""What a training step of a delta costs, as a ratio to a step that trains the whole network.

LeNet and ResNet18 on batches of 3×32×32 images, the architecture of MiniLM-L6 on sequences of 64 tokens, one thread,
through the library's own loop: batch lookup, forward, backward, penalties, fused Adam, channels last on both sides.
Every variant of a network trains a block of steps per round. "default on a given base" is the fine-tuning of
`Learner(base="given")` with all its defaults: the parts that 2 % of the base's bytes pay for, in the later half of the
layers, over what the layers before give for each example, which is computed once where nothing is drawn in them. In the
other variants every layer has components. Where linear layers run through oneDNN instead of MKL
(`halrp.model.kernels.products`), one shows what that saves.

    python -m benchmarks.train_step [--rounds 10] [--networks lenet resnet18 minilm] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import networks
from benchmarks.interleaved import Row, arguments, measure, report
from halrp import FromProbe, Halrp, Learner, Recipe
from halrp.method import fine_tune as fine_tuning
from halrp.method.fine_tune import prepare as prepare_fine_tuning
from halrp.method.start import Start
from halrp.model.base import Base
from halrp.model.factors import Factors
from halrp.model.kernels import products
from halrp.model.plan import plan
from halrp.training.loop import Group, Stage, Training
from halrp.training.prepare import prepare
from halrp.training.run import TaskRun

CLASSES = 10
WHOLE, DEFAULT = "whole network", "default on a given base"


@dataclass(frozen=True)
class Variant:
    """How the adapted weights are trained: a rank each, None for a dense weight, or one rank for all of them."""

    ranks: tuple[int | None, ...] | int
    view: str = "mean"
    tables: bool = True
    """Whether embeddings have components too; without they are scaled only."""
    onednn: bool = True
    """Whether products of linear layers may run through oneDNN (`kernels.products`), rather than through MKL."""

    again: Literal[False, "cheap"] = False
    """Which activations are computed again in the backward pass."""

    def of(self, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, int | None]]:
        """Every adapted weight and its rank."""
        for i, (name, weight) in enumerate(weights.items()):
            rank = self.ranks if isinstance(self.ranks, int) else self.ranks[i]
            yield name, weight, rank if self.tables or "embedding" not in name else 0


@dataclass(frozen=True)
class Setting:
    """A network, the batches it is trained on, how many of them are a block, and the variants that are compared."""

    batch: int
    block: int
    variants: dict[str, Variant]
    length: int = 0


SETTINGS = {
    "lenet": Setting(
        128,
        8,
        {
            "kernel-mean 3 10 4 8": Variant((3, 10, 4, 8)),
            "kernel-mean 3 20 10 14 (budget)": Variant((3, 20, 10, 14)),
            "owned conv, 5 10 (budget)": Variant((None, None, 5, 10), "full"),
            "full-kernel 3 10 4 8": Variant((3, 10, 4, 8), "full"),
            "kernel-mean 3 20 100 100 (official)": Variant((3, 20, 100, 100)),
            "kernel-mean 3 20 10 14 (budget), products by MKL": Variant((3, 20, 10, 14), onednn=False),
        },
    ),
    "resnet18": Setting(
        64,
        4,
        {
            "kernel-mean, rank 4": Variant(4),
            "kernel-mean, rank 16": Variant(16),
            "full-kernel, rank 4": Variant(4, "full"),
            "full-kernel, rank 16": Variant(16, "full"),
        },
    ),
    "minilm": Setting(
        32,
        1,
        {
            "rank 4": Variant(4),
            "rank 16": Variant(16),
            "rank 16, tables scaled": Variant(16, tables=False),
            "rank 16, products by MKL": Variant(16, onednn=False),
            'rank 16, checkpoint_activations="cheap"': Variant(16, again="cheap"),
        },
        length=64,
    ),
}
"""What is measured, by network."""


def random_start(base: Base, variant: Variant) -> Start:
    """Factors of the variant's ranks, as after a warm-up."""
    factors, owned = {}, {}
    for name, weight, rank in variant.of(base.adapted_weights()):
        if rank is None:
            owned[name] = weight.clone()
            continue
        rows, inputs = weight.shape[:2]
        columns = inputs if variant.view == "mean" else weight[0].numel()
        rank = min(rank, rows, columns)
        p, q = 0.05 * torch.randn(rows, rank), 0.05 * torch.randn(rank, columns)
        factors[name] = Factors(torch.ones(rows), torch.ones(inputs), p, q)
    return Start(factors, owned, recovered={}, scores={})


def block_of_steps(name: str, setting: Setting, variant: Variant | None) -> Callable[[], None]:
    """A function that trains a variant, or the whole network, for a block of steps."""
    model = networks.build(name, CLASSES)
    base = Base(model, plan(model, "head"), channels_last=name != "minilm")
    again = False if variant is None else variant.again
    recipe = Recipe(epochs=10_000, batch=setting.batch, checkpoint_activations=again)
    rows = setting.batch * setting.block
    source = (networks.inputs(name, rows, setting.length), torch.randint(CLASSES, (rows,)))
    data = prepare(source, name="noise", device=base.device, batch=setting.batch, channels_last=base.channels_last)
    net = base.trainable(CLASSES, "benchmark")
    groups = [Group([p for p in net.parameters() if p.requires_grad])]
    if variant is not None:
        run = prepare_fine_tuning(
            base, Halrp.budget(), variant.view, random_start(base, variant), base.owned_tensors(net), CLASSES
        )
        net, groups = run.net, run.groups
    training = Training(net, groups, data, recipe, Stage(recipe.epochs, ("benchmark",)))
    faster = products.onednn_is_faster() and (variant is None or variant.onednn)

    def block() -> None:
        with patch.object(products, "onednn_is_faster", lambda: faster):
            training.run(training.epoch + 1)

    return block


class _PreparedError(Exception):
    """A learner has prepared its fine-tuning, which is not wanted yet."""


def default_block(name: str, setting: Setting) -> Callable[[], None]:
    """A function that trains what a learner with its defaults trains on a given base, for a block of steps."""
    rows = setting.batch * setting.block
    method = replace(Halrp.budget(), start=FromProbe(held_out=0))
    recipe = Recipe.auto(epochs=10_000, batch=setting.batch)
    learner = Learner(networks.build(name, CLASSES), head="head", base="given", method=method, recipe=recipe)
    prepared: list[tuple[fine_tuning.FineTuning, Training]] = []

    def prepare_only(base: Base, method: Halrp, variant: fine_tuning.FineTuning, run: TaskRun) -> Training:
        prepared.append((variant, original(base, method, variant, run)))
        raise _PreparedError

    original = fine_tuning._training
    with patch.object(fine_tuning, "_training", prepare_only), suppress(_PreparedError):
        learner.learn("noise", (networks.inputs(name, rows, setting.length), torch.arange(rows) % CLASSES))
    ((variant, training),) = prepared

    def block() -> None:
        with ExitStack() as stack:
            for part in (variant.start.front, variant.start.cross_fit):
                if part is not None:
                    stack.enter_context(part.installed(variant.net))
            training.run(training.epoch + 1)

    return block


def main() -> None:
    options = arguments(__doc__, rounds=10, networks=list(SETTINGS))
    rows: list[Row] = []
    for name in options.networks:
        setting = SETTINGS[name]
        variants = {WHOLE: block_of_steps(name, setting, None)}
        if name != "lenet":
            variants[DEFAULT] = default_block(name, setting)
        variants |= {title: block_of_steps(name, setting, variant) for title, variant in setting.variants.items()}
        timed = measure(variants, WHOLE, options.rounds)
        rows += [replace(row, name=f"{name}: {row.name}") for row in timed]
    report(rows, options.json)


if __name__ == "__main__":
    main()
