"""The start of a task where the method leaves it open."""

from __future__ import annotations

from halrp.method.from_probe import FromProbe, other_than_default
from halrp.method.method import Halrp, StartRule
from halrp.method.warm_up import WarmUp
from halrp.model.base import Base


def start_of(method: Halrp, base: Base) -> StartRule:
    """The method's start or, if it leaves it open, at the probe on a given base where its choices allow that.

    A base is given if no task trained it, so that its fingerprint leaves the head out; stores keep that.
    """
    if method.start is not None:
        return method.start
    return FromProbe() if not base.counts_head and not other_than_default(method) else WarmUp()
