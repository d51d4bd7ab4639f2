"""`dora`: LoRA with the magnitudes of outputs apart (Liu et al., 2024), by PEFT.

A layer is m (W + 2 B A) / ‖W + 2 B A‖ with a magnitude m for each output.
"""

from __future__ import annotations

from typing import Any

from halrp.lab.methods.peft_adapters import ALL, PeftAdapter, alpha_of, peft
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head
from halrp.lab.streams import Task


class Dora(PeftAdapter):
    """A rank for every layer that is adapted."""

    def __init__(
        self,
        context: Context,
        lr: float = 2e-3,
        rank: int = 4,
        layers: str = ALL,
        norms: bool = False,
        form: Form = "float32",
        head: Head = "random",
    ) -> None:
        """Take the rate, the rank, the layers, what happens to norms, the precision of files, and the head's start."""
        super().__init__(context, lr, rank, layers, norms, form, head)

    def config(self, targets: list[str], saved: list[str], task: Task | None) -> Any:
        """PEFT's configuration."""
        return peft().LoraConfig(
            r=self.rank, lora_alpha=alpha_of(self.rank), target_modules=targets, modules_to_save=saved, use_dora=True
        )
