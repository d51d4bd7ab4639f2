"""How fast batches come from data in memory, as a ratio to a `DataLoader` that transforms item by item.

Batches of 128 from 4096 images of 3×32×32, shuffled, one thread. The usual data set keeps bytes and turns each item
into normalised floats; the library normalises once and looks rows up. In between stands a `DataLoader` over floats that
are normalised already. A ratio is batches per second to those of the usual data set. The loaders have no workers: time
is the process's own, in which the work of other processes would not show.

    python -m benchmarks.batches [--rounds 20] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.interleaved import arguments, measure, report
from halrp.training.prepare import prepare

BATCH, BLOCK = 128, 32
MEAN, DEVIATION = (torch.tensor(value).view(3, 1, 1) for value in ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)))
REFERENCE = "DataLoader, bytes transformed by item"


class Bytes(Dataset[tuple[Tensor, int]]):
    """Images as bytes, each scaled and normalised when it is asked for."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return normalised(self.images[index]), self.labels[index]


def normalised(x: Tensor) -> Tensor:
    """Bytes as floats with mean 0 and deviation 1."""
    return (x.to(torch.float32) / 255 - MEAN) / DEVIATION


def variants() -> dict[str, Callable[[], None]]:
    """Ways to read a block of shuffled batches."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (BATCH * BLOCK, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (BATCH * BLOCK,), generator=draw)
    x = normalised(images)

    def in_memory(channels_last: bool) -> Callable[[], None]:
        device = torch.device("cpu")
        data = prepare((x, labels), name="noise", device=device, batch=BATCH, channels_last=channels_last)
        return lambda: read(data.batches(BATCH, draw))

    def loader(source: Dataset[tuple[Tensor, ...]] | Bytes) -> Callable[[], None]:
        batches: DataLoader[object] = DataLoader(source, BATCH, shuffle=True, generator=draw)
        return lambda: read(batches)

    return {
        REFERENCE: loader(Bytes(images, labels)),
        "DataLoader, floats": loader(TensorDataset(x, labels)),
        "in memory": in_memory(False),
        "in memory, channels last": in_memory(True),
    }


def read(batches: Iterable[object]) -> None:
    """Read one block."""
    count = sum(1 for _ in batches)
    if count != BLOCK:
        raise RuntimeError(f"{count} batches came instead of {BLOCK}")


def main() -> None:
    options = arguments(__doc__, rounds=20)
    rows = measure(variants(), REFERENCE, options.rounds, inverse=True)
    report(rows, options.json)
    for row in rows:
        print(f"{row.name}: {1e3 * BLOCK / row.milliseconds:,.0f} batches per second")


if __name__ == "__main__":
    main()
