"""Tensors that share memory until one of them is written to.

A module that is handed to a user reads the base's memory and must not be able to change it. torch can do that: a lazy
clone reads the original's memory and gets memory of its own at the first write, however it is written to (in place,
through `.data`, numpy or an optimiser). It makes both sides copy on write, and a side that several threads use must not
be: a kernel that asks for writable memory although it only reads would copy it in all of them at once. So the library
itself reads the same memory through a second, plain storage (`split`), and only lazy clones of the original are given
away (`private_copy`).

`torch._lazy_clone` is not a public function of torch. Where it is absent or cannot serve (memory that torch has not
allocated itself), a private copy is a plain one: right, and as large as the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

_lazy_clone: Any = getattr(torch, "_lazy_clone", None)


def split(module: nn.Module, known: Mapping[int, Tensor] | None = None) -> dict[int, Tensor]:
    """Make a module read its tensors through storages of their own; the originals, by the ids of its tensors.

    `known` are the originals of a module that shares some of its tensors with this one.
    """
    originals = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if known is not None and id(tensor) in known:
            originals[id(tensor)] = known[id(tensor)]
            continue
        original = tensor.data
        second = _second_storage(original)
        if second is not None:
            originals[id(tensor)], tensor.data = original, second
    return originals


def private_copy(original: Tensor) -> Tensor:
    """A tensor with the same numbers and strides, which can be written to without a change of the original."""
    if _lazy_clone is not None:
        try:
            copy: Tensor = _lazy_clone(original)
            return copy
        except RuntimeError:
            pass
    return original.clone()


def _second_storage(tensor: Tensor) -> Tensor | None:
    """The same memory in another storage, or None where that cannot be had. It keeps the first storage alive."""
    if _lazy_clone is None or not tensor.numel() or tensor.device.type not in ("cpu", "cuda"):
        return None
    like: dict[str, Any] = {"device": tensor.device}
    raw = torch.empty(0, dtype=torch.uint8, **like).set_(tensor.untyped_storage())
    storage = from_dlpack(raw).untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, **like)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
