"""Scaling of the loss for float16, whose smallest numbers are larger than many gradients.

Torch's `GradScaler` multiplies the loss before the backward pass, divides the gradients before the step, and leaves a
step out if one of them overflowed. Fused optimisers do so on the device, without anybody waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from halrp.checks import is_number, is_whole
from halrp.errors import SettingError
from halrp.training.master_weights import HALF
from halrp.training.saved_state import UnfitError


def scaler_for(autocast: torch.dtype | None, parameters: Sequence[nn.Parameter]) -> torch.amp.GradScaler | None:
    """The scaler of a training with forward passes in `autocast`, if it needs one."""
    if autocast != torch.float16:
        return None
    for half in (parameter.dtype for parameter in parameters if parameter.dtype in HALF):
        raise SettingError(
            f"Recipe(autocast=torch.float16) is for models in float32, and this one has parameters of {half}; leave "
            "autocast out, or convert the model with .float()"
        )
    return torch.amp.GradScaler(parameters[0].device.type)


def scale_of(scaler: torch.amp.GradScaler) -> dict[str, Any]:
    """The state of a scaler, as JSON values."""
    state = scaler.state_dict()
    return {"scale": state["scale"], "_growth_tracker": state["_growth_tracker"]}


def check_scale(saved: Any) -> dict[str, Any]:
    """The saved state of a scaler, or `UnfitError`."""
    good = isinstance(saved, dict) and saved.keys() == {"scale", "_growth_tracker"}
    if not good or not is_number(saved["scale"], 2.0**-149) or not is_whole(saved["_growth_tracker"], 0):
        raise UnfitError(f"its scale of the loss is {saved!r}")
    return dict(saved)
