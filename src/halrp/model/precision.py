"""The precision of a task's forward passes: part of the task, whatever region the caller is in.

A task that was learned under autocast gives its outputs under the same autocast, and one that was not gives them
without, so neither a learner's recipe nor a caller's own autocast region can change what a committed task predicts.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from torch import nn

_LOWER = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""What autocast can compute in; every other name means the model's own precision."""


def forward_precision(autocast: str | None, device: torch.device) -> AbstractContextManager[object]:
    """A context in which forward passes have the precision `autocast` of a task; None is that of the model."""
    if autocast in _LOWER:
        return torch.autocast(device.type, dtype=_LOWER[autocast])
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def rounding_unit(autocast: str | None, dtype: torch.dtype) -> float:
    """The rounding unit of outputs of type `dtype` that were computed in a task's precision."""
    return max(torch.finfo(_LOWER[autocast]).eps if autocast in _LOWER else 0.0, torch.finfo(dtype).eps)


class _Lowered(nn.Module):
    """A module that runs in a lower precision; a class of this kind is made for each class of models."""

    model_class: ClassVar[type[nn.Module]]


@cache
def _lowered(kind: type[nn.Module], autocast: str) -> type[_Lowered]:
    @wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device = next((tensor.device for tensor in chain(self.parameters(), self.buffers())), torch.device("cpu"))
        with forward_precision(autocast, device):
            return kind.forward(self, *args, **kwargs)

    body = {"forward": forward, "model_class": kind, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, _Lowered), body)


def run_in(module: nn.Module, autocast: str | None) -> nn.Module:
    """Make a module run in the precision of a task wherever it is called; it stays an instance of its class."""
    if autocast in _LOWER:
        module.__class__ = _lowered(cast(Hashable, type(module)), autocast)
    return module


def run_as_called(module: nn.Module) -> nn.Module:
    """Undo `run_in`."""
    if isinstance(module, _Lowered):
        cast(Any, module).__class__ = module.model_class
    return module
