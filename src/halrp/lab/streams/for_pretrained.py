"""Variants of benchmarks for pretrained networks: the same images in colour, normalised as those of ImageNet.

They keep their size, which is small, and a pretrained backbone resizes them on its device.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

import torch
from torch import Tensor

from halrp.lab.streams import cifar100, five, omniglot
from halrp.lab.streams.pixels import IMAGENET
from halrp.lab.streams.stream import Normal, Split, Stream, Task

Data = str | PathLike[str] | None


def load_split(order: str, seed: int, fraction: float, data: Data = None) -> Stream:
    """Load `cifar100-split@pretrained`."""
    return _changed(cifar100.load_split(order, seed, fraction, data))


def load_superclass(order: str, seed: int, fraction: float, data: Data = None) -> Stream:
    """Load `cifar100-superclass@pretrained`."""
    return _changed(cifar100.load_superclass(order, seed, fraction, data))


def load_five(order: str, seed: int, fraction: float, data: Data = None) -> Stream:
    """Load `five@pretrained`."""
    return _changed(five.load(order, seed, fraction, data))


def load_omniglot(order: str, seed: int, fraction: float, data: Data = None) -> Stream:
    """Load `omniglot-rotation@pretrained`."""
    return _changed(omniglot.load(order, seed, fraction, data))


def _changed(stream: Stream) -> Stream:
    def make(identity: int) -> Task:
        task = stream.make(identity)

        def split(part: Split) -> Split:
            return Split(imagenet(part.x, task.normal), part.y)

        train, test = split(task.train), split(task.test)
        val = train if task.val is task.train else split(task.val)
        return replace(task, train=train, val=val, test=test, normal=IMAGENET)

    return replace(stream, make=make, shape=(3, *stream.shape[1:]))


def imagenet(x: Tensor, normal: Normal) -> Tensor:
    """Images of one normalisation and 1 or 3 channels as those of ImageNet."""
    old, new = ([torch.tensor(value).view(-1, 1, 1) for value in which] for which in (normal, IMAGENET))
    return (x * old[1] + old[0] - new[0]) / new[1]
