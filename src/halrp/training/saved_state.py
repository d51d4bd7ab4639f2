"""Whether a saved state fits the training that would resume from it. Nothing in a checkpoint is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from halrp.checks import is_number, is_whole


class UnfitError(Exception):
    """A saved state does not fit, and why."""


class Position(NamedTuple):
    """How far a training has come."""

    epoch: int
    step: int
    seconds: float


def position_of(facts: Mapping[str, Any], epochs: int, steps: int | None) -> Position:
    """How far a saved training has come, out of `epochs` of `steps` each; None if epochs may have other steps."""
    epoch: Any = facts.get("epoch")
    step: Any = facts.get("step")
    seconds: Any = facts.get("seconds")
    if not is_whole(epoch, 0, epochs + 1):
        raise UnfitError(f"its epoch is {epoch!r}, the stage has {epochs}")
    if not is_whole(step, epoch) or (steps is not None and step != epoch * steps):
        raise UnfitError(f"its step is {step!r} after {epoch} epochs" + (f" of {steps}" if steps is not None else ""))
    if not is_number(seconds, 0):
        raise UnfitError(f"its time is {seconds!r} seconds")
    return Position(epoch, step, seconds)


def check_tensors(saved: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> None:
    """Compare saved parameters and buffers with those of the module: names, shapes, types, and finite values.

    A buffer that is not finite in the module may be so in the checkpoint too: placeholders may well be NaN.
    """
    if other := sorted(saved.keys() ^ present.keys()):
        raise UnfitError(f"it {'lacks' if other[0] in present else 'has'} {other[0]}")
    for name, tensor in saved.items():
        check_like(name, tensor, present[name])
        if not bool(tensor.isfinite().all()) and bool(present[name].isfinite().all()):
            raise UnfitError(f"{name} is not finite")


def check_like(name: str, tensor: Tensor, present: Tensor) -> None:
    """Compare type and shape of a saved tensor with those of the one that it would replace."""
    if tensor.shape != present.shape or tensor.dtype != present.dtype:
        saved, expected = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (tensor, present))
        raise UnfitError(f"{name} is {saved}, not {expected}")
