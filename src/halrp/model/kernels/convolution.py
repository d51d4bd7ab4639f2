"""Convolutions in 1, 2 and 3 dimensions and their gradients, as functions of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from halrp.model.kernels.conditions import measured

_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
FEW_IMAGES = 16
"""The number of images from which on torch gives pointwise convolutions to oneDNN on one thread."""


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


def is_pointwise(kernel: Tensor, geometry: Geometry) -> bool:
    """Whether every output position sees one input position, its own."""
    return all(size == 1 for size in (*kernel.shape[2:], *geometry.stride)) and not any(geometry.padding)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Convolve in as many dimensions as the kernel has."""
    convolution = _CONVOLUTIONS[kernel.dim() - 3]
    if not is_computed_by_rows(x, kernel, geometry):
        return convolution(x, kernel, bias, *geometry)
    return _unfolded(convolution(_folded(x), kernel, bias, *geometry), x)


def window_sums(x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Sum every channel over each window that a kernel shaped like ``weight`` sees, padding included.

    A depthwise convolution with ones: on one thread it beats average pooling, which knows no dilation
    either, in both memory formats.
    """
    if is_pointwise(weight, geometry):
        return x
    channels = x.shape[1]
    ones = x.new_ones(()).expand(channels, 1, *weight.shape[2:])
    return convolve(x, ones, None, geometry._replace(groups=channels))


def input_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of x, of which only the shape matters, in y = kernel * x."""
    if is_computed_by_rows(x, kernel, geometry) and is_last(g):
        return _unfolded(_backward(_folded(g), _folded(x), kernel, geometry, [True, False, False])[0], x)
    return _backward(g, x, kernel, geometry, [True, False, False])[0]


def kernel_gradient(g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """Return the gradient of the kernel, of which only the shape matters, in y = kernel * x."""
    if is_computed_by_rows(x, kernel, geometry) and is_last(g):
        return _backward(_folded(g), _folded(x), kernel, geometry, [False, True, False])[1]
    return _backward(g, x, kernel, geometry, [False, True, False])[1]


def _backward(
    g: Tensor, x: Tensor, kernel: Tensor, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted ones of the gradients of x, kernel and bias."""
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        g, x, kernel, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted
    )


def is_last(x: Tensor) -> bool:
    """Whether the channels of one position lie side by side in memory."""
    return x.movedim(1, -1).is_contiguous()


def is_computed_by_rows(x: Tensor, kernel: Tensor, geometry: Geometry) -> bool:
    """Whether the rows of images count as images: in pointwise convolutions of few images, on one thread.

    There torch uses a product of MKL for fewer than 16 images, which takes longer than oneDNN's convolution on AMD, and
    every position may as well belong to an image of its own.
    """
    return (
        measured(x)
        and x.dim() == 4
        and x.dtype == torch.float32
        and len(x) < FEW_IMAGES <= len(x) * x.shape[2]
        and geometry.groups == 1
        and is_pointwise(kernel, geometry)
        and is_last(x)
        and torch.get_num_threads() == 1
    )


def _folded(x: Tensor) -> Tensor:
    """Rows of images as images of one row: (N, C, H, W) → (N·H, C, 1, W), in channels-last memory a view."""
    return x.movedim(1, -1).flatten(0, 1).unsqueeze(1).movedim(-1, 1)


def _unfolded(x: Tensor, like: Tensor) -> Tensor:
    """Undo `_folded`, for images of the height of ``like``."""
    height: Tensor = x.movedim(1, -1).squeeze(1).unflatten(0, (len(like), like.shape[2]))
    return height.movedim(-1, 1)
