"""Images as networks take them, from stored bytes: resized, permuted, normalised."""

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from halrp.lab.data import Images
from halrp.lab.streams.protocol import Indices
from halrp.lab.streams.stream import Normal, Split

CIFAR100 = Normal((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
MNIST = Normal((0.1307,), (0.3081,))
IMAGENET = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def taken(source: Images, chosen: Indices) -> Tensor:
    """Copy the chosen images, as bytes (images, channels, height, width)."""
    copied = torch.from_numpy(source.images[chosen]).permute(0, 3, 1, 2).contiguous()
    _unmapped(source.images)
    return copied


def _unmapped(array: NDArray[np.uint8]) -> None:
    """Release the pages of a memory-mapped file, so that the memory of a run does not grow by the images it reads."""
    if isinstance(array, np.memmap) and array.mode == "r" and isinstance(array.base, mmap.mmap):
        with suppress(AttributeError, OSError):  # not supported on every system
            array.base.madvise(mmap.MADV_DONTNEED)


def normalised(x: Tensor, normal: Normal) -> Tensor:
    """(pixel / 255 − mean) / deviation of bytes (images, channels, height, width), as float32."""
    mean, deviation = (torch.tensor(value, dtype=torch.float32).view(-1, 1, 1) for value in normal)
    return x.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(deviation)


def resized(x: Tensor, side: int) -> Tensor:
    """Resize bytes (images, channels, height, width) to `side` × `side`: bilinear, antialiased when it shrinks.

    Pillow's bilinear resize gives the same values, or values that differ by 1 of 255.
    """
    return functional.interpolate(x, size=(side, side), mode="bilinear", antialias=True)


def padded(x: Tensor, by: int) -> Tensor:
    """Add `by` black pixels on every side of bytes (images, channels, height, width)."""
    return functional.pad(x, (by, by, by, by))


def permuted(x: Tensor, pixels: Tensor) -> Tensor:
    """Gather bytes (images, …): value p of the result (images, values) is value `pixels[p]` of the flattened image."""
    return torch.from_numpy(np.take(x.flatten(1).numpy(), pixels.numpy(), axis=1))  # several times faster than torch


def local_labels(labels: NDArray[np.int64], classes: Sequence[int]) -> Tensor:
    """Replace labels by their positions in `classes`: int64, 0 … classes−1."""
    positions = np.zeros(max(classes) + 1, dtype=np.int64)
    positions[list(classes)] = np.arange(len(classes))
    return torch.from_numpy(positions[labels])


def split(
    source: Images,
    chosen: Indices,
    classes: Sequence[int],
    normal: Normal,
    change: Callable[[Tensor], Tensor] = lambda x: x,
) -> Split:
    """The chosen images, changed as bytes by `change` and then normalised, with labels local to `classes`."""
    return Split(normalised(change(taken(source, chosen)), normal), local_labels(source.labels[chosen], classes))
