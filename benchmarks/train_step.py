"""What a training step of a delta costs, as a ratio to a step that trains the whole network.

One process, one thread, one LeNet on 3×32×32 images: forward, backward and optimiser step. The variants take
turns in small blocks of steps and in a rotating order, so that a busy machine slows all of them alike, and
time is the process's own. Every round gives one ratio per variant; the table shows the median and the
quartiles over the rounds.

    python -m benchmarks.train_step [--rounds 20] [--block 4] [--batch 128] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from halrp import kernels

Step = Callable[[], None]


class AdaptedConv(nn.Module):
    """A convolution of a task: frozen base weight, trained r, s, p, q and bias."""

    weight: Tensor

    def __init__(self, base: nn.Conv2d, rank: int, full_kernel: bool) -> None:
        super().__init__()
        self.register_buffer("weight", base.weight.detach())
        rows, columns = base.weight.shape[:2]
        width = base.weight[0].numel() if full_kernel else columns
        self.r, self.s = nn.Parameter(torch.ones(rows)), nn.Parameter(torch.ones(columns))
        self.p = nn.Parameter(0.05 * torch.randn(rows, rank))
        self.q = nn.Parameter(0.05 * torch.randn(rank, width))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with stride 1 and padding 2."""
        factors = self.r, self.s, self.p, self.q
        return kernels.conv(x, self.weight, self.bias, *factors, stride=(1, 1), padding=(2, 2), dilation=(1, 1))


class AdaptedLinear(nn.Module):
    """A linear layer of a task: frozen base weight, trained r, s, p, q and bias."""

    weight: Tensor

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.register_buffer("weight", base.weight.detach())
        rows, columns = base.weight.shape
        self.r, self.s = nn.Parameter(torch.ones(rows)), nn.Parameter(torch.ones(columns))
        self.p = nn.Parameter(0.05 * torch.randn(rows, rank))
        self.q = nn.Parameter(0.05 * torch.randn(rank, columns))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, factors apart."""
        return kernels.linear(x, self.weight, self.bias, self.r, self.s, self.p, self.q)


@dataclass(frozen=True)
class Variant:
    """How the four layers of LeNet are trained: ranks of adapted layers, or None for a plain trained layer."""

    name: str
    ranks: tuple[int | None, int | None, int | None, int | None]
    full_kernel: bool = False


VARIANTS = (
    Variant("full", (None, None, None, None)),
    Variant("kernel-mean 3 10 4 8", (3, 10, 4, 8)),
    Variant("kernel-mean 3 10 12 8", (3, 10, 12, 8)),
    Variant("full-kernel 3 10 4 8", (3, 10, 4, 8), full_kernel=True),
    Variant("owned conv, linear 3 8", (None, None, 3, 8)),
    Variant("kernel-mean 3 20 100 100", (3, 20, 100, 100)),
)


def lenet(variant: Variant) -> nn.Sequential:
    """Build LeNet with the layers the variant asks for."""

    def conv(columns: int, rows: int, rank: int | None) -> nn.Module:
        base = nn.Conv2d(columns, rows, 5, padding=2)
        base.weight.data = base.weight.data.contiguous(memory_format=torch.channels_last)
        return base if rank is None else AdaptedConv(base, rank, variant.full_kernel)

    def linear(columns: int, rows: int, rank: int | None) -> nn.Module:
        base = nn.Linear(columns, rows)
        return base if rank is None else AdaptedLinear(base, rank)

    a, b, c, d = variant.ranks
    return nn.Sequential(
        conv(3, 20, a), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2),
        conv(20, 50, b), nn.BatchNorm2d(50), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        linear(3200, 800, c), nn.BatchNorm1d(800), nn.ReLU(),
        linear(800, 500, d), nn.BatchNorm1d(500), nn.ReLU(),
        nn.Linear(500, 10),
    )  # fmt: skip


def training_step(variant: Variant, batch: int) -> Step:
    """Return a function that trains the variant for one step on fixed data."""
    torch.manual_seed(0)
    model = lenet(variant)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,))

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def measure(variants: tuple[Variant, ...], batch: int, rounds: int, block: int) -> dict[str, list[float]]:
    """Return the processor seconds per step of each variant in each round.

    In a round every variant trains for a block of steps, after one step that warms the caches; the order
    rotates.
    """
    steps = {variant.name: training_step(variant, batch) for variant in variants}
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            steps[name]()
            start = time.process_time()
            for _ in range(block):
                steps[name]()
            if number >= 0:
                seconds[name].append((time.process_time() - start) / block)
    return seconds


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds, and the ratio to full training with its quartiles."""

    name: str
    milliseconds: float
    ratio: float
    lower: float
    upper: float


def summarise(seconds: dict[str, list[float]], reference: str = "full") -> list[Row]:
    """Reduce the rounds to medians; ratios are taken within a round."""
    rows = []
    for name, values in seconds.items():
        ratios = [value / full for value, full in zip(values, seconds[reference], strict=True)]
        lower, ratio, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append(Row(name, 1e3 * statistics.median(values), ratio, lower, upper))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = summarise(measure(VARIANTS, arguments.batch, arguments.rounds, arguments.block))
    print(f"{'variant':<28}{'ms':>8}{'ratio':>8}  quartiles")
    for row in rows:
        print(f"{row.name:<28}{row.milliseconds:8.1f}{row.ratio:8.3f}  {row.lower:.3f} – {row.upper:.3f}")
    if arguments.json:
        record = {
            "torch": torch.__version__,
            "batch": arguments.batch,
            "rounds": arguments.rounds,
            "block": arguments.block,
            "rows": [asdict(row) for row in rows],
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
