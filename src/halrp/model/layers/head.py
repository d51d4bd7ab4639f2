"""The head: the layer that makes the logits, replaced for every task."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn


def new_head(head: nn.Module, classes: int, device: torch.device | None = None) -> nn.Module:
    """A fresh head of the same kind with one output per class, drawn from the global generator."""
    weight = cast(Tensor, head.weight)
    like: dict[str, Any] = {"device": device or weight.device, "dtype": weight.dtype}
    if isinstance(head, nn.Linear):
        return nn.Linear(head.in_features, classes, bias=head.bias is not None, **like)
    conv = cast(nn.Conv2d, head)
    return type(conv)(
        conv.in_channels,
        classes,
        cast(Any, conv.kernel_size),
        stride=cast(Any, conv.stride),
        padding=cast(Any, conv.padding),
        dilation=cast(Any, conv.dilation),
        bias=conv.bias is not None,
        padding_mode=cast(Any, conv.padding_mode),
        **like,
    )


HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layer types that can serve as a head."""
