"""Files of a method's tensors: as they are, rounded to bfloat16, or to int8 with a scale per row.

A matrix (m, n), a kernel being flattened to (out, rest), has one scale for each row, or for each column if it has fewer
columns: LoRA's factors have one scale per component and not one per output. Scales are one tensor, in the order of
names. Vectors of an int8 file are bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import safetensors.torch
import torch
from torch import Tensor

from halrp.lab.methods.settings import check_choice

Form = Literal["float32", "bfloat16", "int8"]
FORMS: tuple[Form, ...] = ("float32", "bfloat16", "int8")
SCALES = "scales"


def check_form(method: str, form: str) -> None:
    """Raise unless files can have a form."""
    check_choice(method, "form", form, FORMS)


def encode(tensors: Mapping[str, Tensor], form: str) -> bytes:
    """The content of a file that holds the tensors in a form."""
    rounded, scales = {}, []
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        if form == "float32" or not tensor.is_floating_point():
            rounded[name] = tensor.contiguous()
        elif form == "int8" and tensor.dim() > 1:
            rounded[name], scale = quantised(tensor)
            scales.append(scale.flatten())
        else:
            rounded[name] = tensor.to(torch.bfloat16).contiguous()
    if scales:
        rounded[SCALES] = torch.cat(scales)
    return safetensors.torch.save(rounded)


def decode(content: bytes) -> dict[str, Tensor]:
    """The tensors of a file, those that were rounded as float32."""
    stored = safetensors.torch.load(content)
    scales, start, tensors = stored.pop(SCALES, torch.empty(0)), 0, {}
    for name in sorted(stored):
        tensor = stored[name]
        if tensor.dtype == torch.int8:
            flat = tensor.flatten(1)
            shape = scale_shape(flat)
            count = shape[0] * shape[1]
            scale = scales[start : start + count].view(shape)
            start += count
            tensor = (flat.float() * scale).view(tensor.shape)
        tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def quantised(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in −127 … 127 of the same shape, and scales that multiply them; the error is half a scale at most."""
    flat = tensor.flatten(1)
    scale = flat.abs().amax(1 if scale_shape(flat)[1] == 1 else 0, keepdim=True) / 127
    integers = (flat / scale.clamp_min(torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return integers.view(tensor.shape).contiguous(), scale


def scale_shape(flat: Tensor) -> tuple[int, int]:
    """The shape of the scales of a matrix: one for each slice along its shorter side."""
    return (flat.shape[0], 1) if flat.shape[0] <= flat.shape[1] else (1, flat.shape[1])
