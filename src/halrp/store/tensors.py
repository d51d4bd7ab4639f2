"""Tensors as files take them."""

from __future__ import annotations

import torch
from torch import Tensor


def copy_of(tensor: Tensor) -> Tensor:
    """A tensor on the CPU, contiguous, and overlapping no other."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
