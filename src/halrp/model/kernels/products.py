"""Products of activations and a weight on the processor, by the faster of the two libraries that torch has for them.

torch multiplies matrices with MKL and convolves with oneDNN. On processors of AMD, MKL uses vectors of half their
width, and a product that is written as a 1×1 convolution takes half the time: `benchmarks/train_step.py` has a variant
without it. Other processors are not measured, and use MKL. torch does not say who made a processor, so its name is
read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

_PICTURES = range(16, 65)
"""How many pictures rows are arranged in: torch gives smaller batches to MKL."""
_PIXELS = 8
"""The least number of rows in a picture for which oneDNN is faster."""


def rows_times(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b for x (M, I) and W (J, I)."""
    pictures = _pictures(x, weight)
    if pictures is None:
        return functional.linear(x, weight, bias)
    y = functional.conv2d(_as_pictures(x, pictures), weight[:, :, None, None], bias)
    return y.permute(0, 2, 3, 1).reshape(len(x), -1)


def rows_times_transposed(g: Tensor, weight: Tensor) -> Tensor:
    """Return g W for g (M, J) and W (J, I)."""
    pictures = _pictures(g, weight)
    if pictures is None:
        return g @ weight
    shape = _as_pictures(g.new_empty(len(g), weight.shape[1]), pictures)  # only its shape and format matter
    dx, _, _ = torch.ops.aten.convolution_backward(
        *(_as_pictures(g, pictures), shape, weight[:, :, None, None], None),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]),
    )
    return dx.permute(0, 2, 3, 1).reshape(len(g), -1)  # type: ignore[no-any-return]


def _as_pictures(x: Tensor, pictures: int) -> Tensor:
    """Rows (M, C) as pictures (N, C, M / N, 1) with channels last, in the same memory."""
    return x.view(pictures, -1, 1, x.shape[1]).permute(0, 3, 1, 2)


def _pictures(x: Tensor, weight: Tensor) -> int | None:
    """Into how many pictures rows are best arranged; None if a plain product is faster."""
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or not x.is_contiguous()
    if plain or min(weight.shape) < 32 or not onednn_is_faster():
        return None
    return next((n for n in _PICTURES if len(x) % n == 0 and len(x) >= n * _PIXELS), None)


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor of AMD with wide vectors, and torch has oneDNN."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
