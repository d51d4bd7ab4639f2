"""Dropout of the inputs of the last linear layers before the head, while a network is trained and never otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LAYERS = 2
"""The number of linear layers before the head whose inputs are dropped."""


def last_linear_layers(module: nn.Module) -> list[nn.Linear]:
    """The last linear layers before the head of a network, in the order in which it declares them.

    The head is the very last one; its inputs are dropped where there is no other.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return layers[:-1][-LAYERS:] or layers


@contextmanager
def dropout(module: nn.Module, share: float) -> Iterator[None]:
    """Inside the block and in training mode, set a share of the inputs of those layers to zero.

    The others are scaled by 1 / (1 − share). Draws come from torch's generator of the device.
    """
    with ExitStack() as stack:
        for layer in last_linear_layers(module) if share else ():
            stack.callback(layer.register_forward_pre_hook(partial(_drop, share)).remove)
        yield


def _drop(share: float, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    if not inputs or not isinstance(inputs[0], Tensor):
        return inputs
    return F.dropout(inputs[0], share, layer.training), *inputs[1:]
