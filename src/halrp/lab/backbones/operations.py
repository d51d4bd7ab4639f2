"""Operations that torchvision declares, for machines on which it has no binaries.

timm, transformers and PEFT import torchvision where it is installed. A torchvision that was built for another torch
cannot be imported unless these operations have a declaration; models without boxes need no more.
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def declare_image_operations() -> object:
    """Declare two operations without which torchvision, where it has no binaries, cannot be imported."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    return library
