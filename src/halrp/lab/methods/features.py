"""Features of a frozen network, computed once and cached on disk by the content of network and inputs."""

from __future__ import annotations

import time
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.lab.directories import cache_directory
from halrp.model.batch import Batch, named_leaves, rows, split
from halrp.store import atomic

FEWEST = 9
"""Rows from which on features are cached: a run looks at eight rows of every task again and again."""
ROWS = 100
"""Rows in a batch."""


class Saved:
    """Seconds of the processor that the cache saved this process; whoever measures a method adds them."""

    seconds = 0.0


def features(body: nn.Module, identity: str, x: Batch, cache: Path | None = None) -> Tensor:
    """The outputs (rows, width) of a network for inputs; they are the same bits from the cache.

    `identity` is the `seeding.fingerprint` of the network's tensors; dicts reach the network by name.
    """
    if rows(x) < FEWEST:
        return outputs(body, x)
    inputs = seeding.fingerprint({path or "x": tensor.cpu() for path, tensor in named_leaves(x)})
    path = (cache or cache_directory() / "features") / f"{identity[:16]}-{inputs[:32]}.safetensors"
    device = next(body.parameters()).device
    if path.exists():
        stored = safetensors.torch.load(path.read_bytes())
        Saved.seconds += float(stored["seconds"])
        return stored["features"].to(device)
    start = time.process_time()
    values = outputs(body, x)
    seconds = torch.tensor(time.process_time() - start)
    atomic.make_folder(path.parent)
    atomic.write(path, safetensors.torch.save({"features": values.cpu().contiguous(), "seconds": seconds}))
    return values


@torch.no_grad()
def outputs(body: nn.Module, x: Batch) -> Tensor:
    """The outputs of a network in evaluation mode, in batches."""
    body.eval()
    device = next(body.parameters()).device

    def of(part: Batch) -> Tensor:
        if isinstance(part, dict):
            return body(**{name: tensor.to(device) for name, tensor in part.items()})  # type: ignore[no-any-return]
        return body(part.to(device))  # type: ignore[no-any-return]

    return torch.cat([of(part) for part in split(x, min(ROWS, max(1, rows(x))))])
