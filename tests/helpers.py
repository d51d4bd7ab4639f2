"""Tiny nets of every family that the library adapts, and tiny tasks that they can learn in a few steps.

`net(kind)` builds a net, `tiny_task(kind, seed)` draws a task for it: each class has a pattern, examples are the
pattern in noise (for token ids: tokens drawn mostly from the class's own). Both are functions of their arguments alone
and leave the global generators as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from halrp import Recipe

CLASSES = 3
VOCABULARY = 20
LENGTH = 6

FAST = Recipe(epochs=2, batch=8, lr=5e-3)
"""A recipe for tests that ask what happens, not how well it is learned."""


class ConvNet(nn.Module):
    """Two convolutions with batch norm, a hidden layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(32, 12)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(self.features(x))).relu().flatten(1)
        return cast(Tensor, self.fc(self.hidden(x).relu()))


class GroupedNet(nn.Module):
    """A stem, a grouped and a depthwise convolution with group norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.grouped(self.stem(x).relu()).relu())
        return cast(Tensor, self.fc(self.norm(x).relu().mean((2, 3))))


class TransformerNet(nn.Module):
    """A transformer encoder over vectors, with dropout, and a head on its mean."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.encoder(x).mean(1)))


class GruNet(nn.Module):
    """A GRU over embedded tokens, and a head on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.gru(self.embedding(x))[0][:, -1]))


def mlp() -> nn.Module:
    """Two hidden layers and a head, which is module "4"."""
    return nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, CLASSES))


NETS: dict[str, Callable[[], nn.Module]] = {
    "conv": ConvNet,
    "grouped": GroupedNet,
    "transformer": TransformerNet,
    "gru": GruNet,
    "mlp": mlp,
}

SHAPES = {"conv": (3, 8, 8), "grouped": (3, 8, 8), "transformer": (LENGTH, 8), "mlp": (10,)}


def net(kind: str, seed: int = 0) -> nn.Module:
    """A new net of a kind, drawn from a seed."""
    return drawn(NETS[kind], seed)


def drawn(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a module with the global generator seeded, and put the generator back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def tiny_task(kind: str, seed: int = 0, examples: int = 24, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Data `(x, y)` of a learnable task for the nets of a kind; every class occurs."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(examples) % classes
    if kind == "gru":
        typical = torch.rand(classes, VOCABULARY, generator=generator).argsort(1)[:, :3]
        tokens = typical[y].gather(1, torch.randint(3, (examples, LENGTH), generator=generator))
        stray = torch.randint(VOCABULARY, tokens.shape, generator=generator)
        return torch.where(torch.rand(tokens.shape, generator=generator) < 0.1, stray, tokens), y
    pattern = torch.randn(classes, *SHAPES[kind], generator=generator)
    return pattern[y] + 0.3 * torch.randn(examples, *SHAPES[kind], generator=generator), y


def address(tensor: Tensor) -> int:
    """Where a tensor's numbers lie; `data_ptr` gives a tensor that shares them memory of its own first."""
    return cast(Any, torch._C)._data_address(tensor)  # type: ignore[no-any-return]


def digest(module: nn.Module) -> str:
    """A hash of every parameter and buffer of a module, in order, bytes and names."""
    hasher = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        hasher.update(name.encode())
        hasher.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: children are forked, and bits are compared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """A data set of a user."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]
