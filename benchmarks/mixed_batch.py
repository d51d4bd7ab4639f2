"""What a batch with rows of many tasks costs, as ratios to other ways of using the same network.

LeNet on 3×32×32 images, one thread, 20 tasks with random deltas, a batch of 64 rows. The mixed pass is compared with

- single task: 64 rows of one task, through that task's view; the price of mixing,
- grouped: the tasks one after another, each on its own three or four rows,
- every task: the tasks one after another, each on all 64 rows, of which it keeps its own.

    python -m benchmarks.mixed_batch [--rounds 20] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.interleaved import arguments, measure, report
from halrp import Delta, Plan
from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.description import Description
from halrp.model.factors import Factors
from halrp.model.layout import Layout
from halrp.model.mixed import MixedModule
from halrp.model.plan import plan as plan_of
from halrp.model.views import task_view

BATCH, TASKS = 64, 20
Way = Callable[[], object]


@dataclass(frozen=True)
class Variant:
    """The ranks of LeNet's four layers in every task, or None for a weight that is dense in every task."""

    name: str
    ranks: tuple[int | None, int | None, int | None, int | None]
    full_kernel: bool = False


VARIANTS = (
    Variant("kernel-mean 3 20 10 14", (3, 20, 10, 14)),
    Variant("owned conv, linear 5 10", (None, None, 5, 10)),
    Variant("full-kernel 2 5 5 10", (2, 5, 5, 10), full_kernel=True),
)
LAYERS = ("conv1.weight", "conv2.weight", "linear1.weight", "linear2.weight")


def random_delta(base: nn.Module, plan: Plan, variant: Variant, number: int) -> Delta:
    """A task whose every tensor differs a little from the base's."""
    ranks = dict(zip(LAYERS, variant.ranks, strict=True))
    factors, owned = {}, {}
    for name, parameter in base.named_parameters():
        weight, rank = parameter.detach(), ranks.get(name)
        if rank is None:
            owned[name] = weight + 0.05 * torch.randn_like(weight)
            continue
        rows, columns = weight.shape[0], weight[0].numel() if variant.full_kernel else weight.shape[1]
        factors[name] = Factors(
            1 + 0.1 * torch.randn(rows),
            1 + 0.1 * torch.randn(weight.shape[1]),
            0.05 * torch.randn(rows, rank),
            0.05 * torch.randn(rank, columns),
        )
    for name, buffer in base.named_buffers():
        if buffer.is_floating_point():
            owned[name] = buffer + 0.1 * torch.rand_like(buffer)
    tensors = {**dict(base.named_parameters()), **dict(base.named_buffers())}
    description = Description(task=f"task {number}", classes=10, view="full" if variant.full_kernel else "mean")
    return Delta.pack(description, Layout.of("", plan, tensors), factors, owned)


def ways(variant: Variant) -> dict[str, Way]:
    """The four ways to compute a batch, over the same base, tasks and inputs."""
    torch.manual_seed(0)
    base = cast(Any, backbones.build("lenet")).to(memory_format=torch.channels_last).eval()
    plan = plan_of(base)
    deltas = [random_delta(base, plan, variant, number) for number in range(TASKS)]
    views = [task_view(base, plan, d.factors, d.owned, d.classes) for d in deltas]
    mixed = MixedModule(Base(base, plan, channels_last=False), deltas)
    x = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    rows = (torch.arange(BATCH) % TASKS)[torch.randperm(BATCH)]
    groups = {task: (rows == task).nonzero().squeeze(1) for task in sorted(set(rows.tolist()))}

    def grouped() -> Tensor:
        logits = torch.empty(BATCH, 10)
        for task, index in groups.items():
            logits[index] = views[task](x[index])
        return logits

    def every_task() -> Tensor:
        logits = torch.empty(BATCH, 10)
        for task, index in groups.items():
            logits[index] = views[task](x)[index]
        return logits

    with torch.no_grad():
        mixed(x, rows)
        torch.testing.assert_close(mixed(x, rows), grouped(), rtol=0, atol=1e-4)
    if not mixed.one_pass:
        raise RuntimeError(f"the batch did not go in one pass: {mixed.reason}")
    return {
        "mixed": lambda: mixed(x, rows),
        "single task": lambda: views[0](x),
        "grouped": grouped,
        "every task": every_task,
    }


def main() -> None:
    options = arguments(__doc__, rounds=20)
    with torch.no_grad():
        rows = [
            replace(row, name=f"{variant.name}: mixed to {row.name}")
            for variant in VARIANTS
            for row in measure(ways(variant), "mixed", options.rounds, inverse=True)
            if row.name != "mixed"
        ]
    report(rows, options.json)


if __name__ == "__main__":
    main()
