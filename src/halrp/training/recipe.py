"""How a task is trained: `Recipe`, the settings of the training loop."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch

from halrp.errors import SettingError

LATER: dict[str, object] = {"later": True}
"""Marks a setting that files of earlier versions do not have: it is written only if it is not at its default."""


@dataclass(frozen=True)
class Recipe:
    """How a task is trained."""

    epochs: int = 20
    """Passes over the data: all of them for the base; warm-up and fine-tuning together for a later task."""
    batch: int = 128
    """Examples per step (a DataLoader has its own batch size)."""
    lr: float = 1e-3
    """The optimiser's learning rate at the start of every stage."""
    schedule: Literal["exponential", "cosine", "constant"] = "exponential"
    """How the rate falls, step by step: by `decay` per pass, along half a cosine to zero, or not at all."""
    decay: float = 0.95
    """Factor per pass of the exponential schedule."""
    decay_examples: float | None = None
    """Examples that count as one pass for `decay`; None means the task's own number. The released code of the paper
    uses 50000 / tasks × fraction for every data set."""
    shuffle: bool = True
    """A new order of the examples for every epoch. Off: the stored order, every time."""
    gradient_scale: float = 1.0
    """Factor on every gradient; Adam sees it only through its epsilon, SGD like a factor on `lr`. The released code of
    the paper uses 10."""
    autocast: torch.dtype | None = None
    """Lower precision for forward passes: torch.bfloat16. None: the model's own."""
    channels_last: bool = True
    """Keep pictures and kernels of two-dimensional convolutions with channels last, which is faster."""
    drop_last: bool = field(default=False, metadata=LATER)
    """Leave out the examples that do not fill a last batch, others in every epoch (a DataLoader has its own
    setting)."""
    optimiser: Literal["adam", "sgd"] = field(default="adam", metadata=LATER)
    """What turns gradients into steps."""
    momentum: float = field(default=0.0, metadata=LATER)
    """SGD's momentum."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        passes = self.decay_examples
        for name, good, remedy in (
            ("epochs", isinstance(self.epochs, int) and self.epochs >= 1, "a whole number of at least 1"),
            ("batch", isinstance(self.batch, int) and self.batch >= 1, "a whole number of at least 1"),
            ("lr", 0 < self.lr < math.inf, "a finite number above 0, such as 1e-3"),
            ("decay", 0 < self.decay <= 1, "a factor in (0, 1], such as 0.95"),
            ("decay_examples", passes is None or 0 < passes < math.inf, "a number above 0, or None for the task's own"),
            ("gradient_scale", 0 < self.gradient_scale < math.inf, "a finite number above 0; 1 changes nothing"),
            ("momentum", 0 <= self.momentum < 1, "a factor in [0, 1), such as 0.9"),
        ):
            if not good:
                raise SettingError(f"Recipe({name}={getattr(self, name)!r}) is out of range; give {remedy}")
        if self.schedule not in ("exponential", "cosine", "constant"):
            raise SettingError(
                f"Recipe(schedule={self.schedule!r}) is unknown; choose 'exponential', 'cosine' or 'constant'"
            )
        if self.autocast not in (None, torch.bfloat16):
            reason = (
                " needs its loss scaled, which is not done here" if self.autocast == torch.float16 else " is unknown"
            )
            raise SettingError(
                f"Recipe(autocast={self.autocast!r}){reason}; give torch.bfloat16, or None for the model's own"
            )
        if self.optimiser not in ("adam", "sgd"):
            raise SettingError(f"Recipe(optimiser={self.optimiser!r}) is unknown; choose 'adam' or 'sgd'")
        if self.momentum and self.optimiser == "adam":
            raise SettingError(
                f"Recipe(momentum={self.momentum!r}) means nothing to Adam; choose optimiser='sgd', or give momentum=0"
            )

    def rate(self, step: int, steps: int, batch: float, examples: int) -> float:
        """The learning rate of a step out of `steps`, each over `batch` of the task's `examples`."""
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        return self.lr * math.pow(self.decay, step * batch / (self.decay_examples or examples))


def autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in lower precision; nothing when `dtype` is None."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
