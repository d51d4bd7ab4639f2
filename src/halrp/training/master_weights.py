"""Float32 copies of parameters in half precision, on which the optimiser steps.

A step of a thousandth of a bfloat16 weight rounds to nothing, and Adam's squared gradients underflow in float16. So the
optimiser has a float32 copy of each such parameter, and the parameter is that copy, rounded. In models of float32 and
float64 the parameters themselves are optimised and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

HALF = (torch.bfloat16, torch.float16)


class MasterWeights:
    """What the optimiser steps on, for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Copy the parameters that are in half precision."""
        self.optimised = [nn.Parameter(p.detach().float()) if p.dtype in HALF else p for p in parameters]
        self._pairs = [(p, m) for p, m in zip(parameters, self.optimised, strict=True) if m is not p]

    def take_gradients(self) -> None:
        """Give the copies the gradients of their parameters."""
        for parameter, master in self._pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()

    @torch.no_grad()
    def write(self) -> None:
        """Set the parameters to their copies, rounded."""
        for parameter, master in self._pairs:
            parameter.copy_(master)

    @torch.no_grad()
    def read(self) -> None:
        """Set the copies to their parameters, where somebody has changed those since they were written."""
        for parameter, master in self._pairs:
            changed = parameter != master.to(parameter.dtype)
            master.copy_(torch.where(changed, parameter.float(), master))
