"""Where the backward passes of our own may be used."""

import torch
from torch import Tensor

from halrp.model.factors import Factors


def learns(factors: Factors) -> bool:
    """Whether a backward pass will ask for the gradients of some factors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in factors.tensors())


def measured(x: Tensor) -> bool:
    """Whether x is where backward passes of our own belong.

    They are for the processor: their guards would wait for another device at every step. In half precision, under
    autocast and in graphs that a compiler traces, autograd's own passes are used.
    """
    device, full = x.device.type, x.dtype in (torch.float32, torch.float64)
    return device == "cpu" and full and not torch.is_autocast_enabled(device) and not torch.compiler.is_compiling()
