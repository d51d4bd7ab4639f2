"""Orders of examples in which every class is equally likely."""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_order(labels: Tensor, shuffle: torch.Generator) -> Tensor:
    """Indices of as many examples as there are labels: each is of a class drawn evenly, and an even draw from it."""
    labels = labels.cpu()
    by_class = labels.argsort(stable=True)
    _, counts = labels.unique(return_counts=True)
    first = counts.cumsum(0) - counts
    drawn = torch.randint(len(counts), (len(labels),), generator=shuffle)
    share = torch.rand(len(labels), generator=shuffle, dtype=torch.float64)
    return by_class[first[drawn] + (share * counts[drawn]).long()]
