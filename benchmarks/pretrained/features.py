"""Features of a domain's frozen network, from the cache of the laboratory."""

from __future__ import annotations

import functools
from pathlib import Path

from torch import Tensor

from benchmarks.pretrained.domain import Domain
from halrp import seeding
from halrp.lab.methods import features as lab
from halrp.lab.methods.features import Saved
from halrp.model.batch import Batch

__all__ = ["Saved", "features"]


def features(domain: Domain, x: Batch, cache: Path | None = None) -> Tensor:
    """The outputs (N, width) of the domain's network without a head; they are the same bits from the cache."""
    return lab.features(domain.base(), _identity(domain), x, cache)


@functools.cache
def _identity(domain: Domain) -> str:
    return seeding.fingerprint(domain.base().state_dict())
