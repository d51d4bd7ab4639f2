"""Convolutions in 1, 2 and 3 dimensions and their gradients, as functions of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)


class Geometry(NamedTuple):
    """How a convolution's window moves; one entry per spatial dimension, zeros padded on both sides."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


def pointwise(weight: Tensor, groups: int = 1) -> Geometry:
    """Return the geometry of a 1×1 convolution with as many dimensions as ``weight``."""
    ones = tuple(1 for _ in weight.shape[2:])
    return Geometry(ones, tuple(0 for _ in ones), ones, groups)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolve in as many dimensions as the kernel has."""
    return _CONVOLUTIONS[kernel.dim() - 3](x, kernel, bias, *geometry)


def window_sums(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Sum every channel over each window that a kernel shaped like ``weight`` sees, padding included.

    A depthwise convolution with ones: on one thread it beats average pooling, which knows no dilation
    either, in both memory formats.
    """
    channels = x.shape[1]
    ones = x.new_ones(()).expand(channels, 1, *weight.shape[2:])
    return convolve(x, ones, None, geometry._replace(groups=channels))


def input_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x, of which only the shape matters, in y = kernel * x."""
    return _backward(g, x, kernel, geometry, [True, False, False])[0]


def kernel_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the kernel, of which only the shape matters, in y = kernel * x."""
    return _backward(g, x, kernel, geometry, [False, True, False])[1]


def _backward(
    g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted ones of the gradients of x, kernel and bias."""
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        g, x, kernel, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted
    )
