"""Features of a frozen network, computed once and cached on disk by the content of network and inputs."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from benchmarks.pretrained.domain import Domain
from benchmarks.pretrained.training import predict
from halrp import seeding
from halrp.lab.directories import cache_directory
from halrp.model.batch import Batch, named_leaves
from halrp.store import atomic


class Saved:
    """Seconds of the processor that the cache saved this process; whoever measures a method adds them."""

    seconds = 0.0


def features(domain: Domain, x: Batch, cache: Path | None = None) -> Tensor:
    """The outputs (N, width) of the domain's network without a head; they are the same bits from the cache."""
    inputs = seeding.fingerprint({path or "x": tensor for path, tensor in named_leaves(x)})
    path = (cache or cache_directory() / "features") / f"{_identity(domain)[:16]}-{inputs[:32]}.safetensors"
    if path.exists():
        stored = safetensors.torch.load(path.read_bytes())
        Saved.seconds += float(stored["seconds"])
        return stored["features"]
    start = time.process_time()
    module = domain.base().eval()
    values = predict(_Named(module) if isinstance(x, dict) else module, x).contiguous()
    seconds = torch.tensor(time.process_time() - start)
    atomic.write(path, safetensors.torch.save({"features": values, "seconds": seconds}))
    return values


class _Named(torch.nn.Module):
    """Passes a dict by name."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Batch) -> Tensor:
        outputs: Tensor = self.module(**x)
        return outputs


@functools.cache
def _identity(domain: Domain) -> str:
    return seeding.fingerprint(domain.base().state_dict())
