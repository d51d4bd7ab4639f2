"""A pretrained network as a backbone: a body that gives features, and a head for a task.

Images reach it at the resolution at which their stream stores them and are resized on the device, so that a stream
needs the memory of small images.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from halrp import seeding
from halrp.errors import SettingError


class Pretrained(nn.Module):
    """Images or token ids → features of a pretrained body → logits."""

    def __init__(self, body: nn.Module, width: int, classes: int, side: int | None = None) -> None:
        """Take the body, the number of its features, and the pixels to which images are resized; None for texts."""
        super().__init__()
        if side is not None and side < 1:
            raise SettingError(f"side={side} of a pretrained backbone must be at least 1 pixel")
        self.body, self.side = body, side
        with seeding.isolated("head", torch.initial_seed(), device=torch.device("cpu")):  # whatever was drawn before
            self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """The body's outputs, (rows, width)."""
        if self.side is not None and x.shape[-2:] != (self.side, self.side):
            x = functional.interpolate(x, size=(self.side, self.side), mode="bilinear")
        outputs: Tensor = self.body(x)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (rows, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def copies(load: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A function that reads weights once for each set of arguments, and returns a new copy at every call."""
    cached = functools.cache(load)

    @functools.wraps(load)
    def copied(*arguments: Any, **settings: Any) -> nn.Module:
        return copy.deepcopy(cached(*arguments, **settings))

    return copied


@torch.no_grad()
def width_of(body: nn.Module, x: Tensor) -> int:
    """The number of features that a body gives for an input."""
    outputs = body.eval()(x)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise SettingError(f"the features of a {type(body).__name__} are {shape}, not (rows, width); it cannot be used")
    return outputs.shape[1]
