"""What can be known of a `DataLoader` before anything is trained on it: batches, targets and content.

The sizes of batches follow from torch's own samplers without reading. Targets and content need one pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from halrp.model import batch as tree
from halrp.model.batch import Batch

_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Scan:
    """What one pass over a loader shows: the sizes of its batches, and a hash of its examples."""

    def __init__(self, ordered: bool) -> None:
        """Begin; `ordered` says whether the hash depends on the order of the examples."""
        self.sizes: list[int] = []
        """Examples in each batch so far."""
        self._content = Content(ordered)

    def targets(self, pairs: Iterable[tuple[Batch, Tensor]]) -> Iterator[Tensor]:
        """Yield the targets of the checked batches of a loader."""
        for x, y in pairs:
            self.sizes.append(y.shape[0])
            self._content.add(x, y)
            yield y

    def digest(self) -> str:
        """A hash of the examples so far."""
        return self._content.digest()


def foreseen_sizes(loader: DataLoader[Any]) -> tuple[int, ...] | None:
    """The examples in each batch, if they are known without reading: torch's own samplers and way to make batches."""
    if not _is_plain(loader) or loader.collate_fn is not default_collate:
        return None
    batch, drop_last = loader.batch_size or 1, loader.drop_last
    full, rest = divmod(len(loader.sampler), batch)  # type: ignore[arg-type]
    return (batch,) * full + ((rest,) if rest and not drop_last else ())


def is_repeatable(loader: DataLoader[Any]) -> bool:
    """Whether a loader gives its examples in the same order whenever the global generators are seeded alike."""
    return _is_plain(loader) and loader.generator is None and getattr(loader.sampler, "generator", None) is None


def _is_plain(loader: DataLoader[Any]) -> bool:
    plain = type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler
    return plain and type(loader.sampler) in _SAMPLERS


class Content:
    """A hash of examples: in their order, or the sum of the hashes of all, which no order changes."""

    def __init__(self, ordered: bool) -> None:
        """Begin with no examples."""
        self._ordered, self._sum, self._chain = ordered, 0, hashlib.sha256()

    def add(self, x: Batch, y: Tensor) -> None:
        """Add the examples of a batch."""
        named = [*tree.named_leaves(x), ("y", y)]
        kind = "\x1f".join(f"{path} {t.dtype} {tuple(t.shape[1:])}" for path, t in named).encode()
        for parts in zip(*(_bytes_of_rows(tensor) for _, tensor in named), strict=True):
            digest = hashlib.sha256(kind + b"\x1f".join(parts)).digest()
            if self._ordered:
                self._chain.update(digest)
            else:
                self._sum = (self._sum + int.from_bytes(digest, "big")) % 2**256

    def digest(self) -> str:
        """The hash of the examples so far."""
        return self._chain.hexdigest() if self._ordered else f"{self._sum:064x}"


def _bytes_of_rows(x: Tensor) -> list[bytes]:
    if x.numel() == 0:
        return [b""] * x.shape[0]
    flat = x.detach().cpu().contiguous().reshape(x.shape[0], -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]
