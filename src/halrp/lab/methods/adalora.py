"""`adalora`: ranks that move from layer to layer while a task is learned (Zhang et al., 2023), by PEFT.

A layer is W + 2 P Λ Q; `rank` is the mean rank that is left, and training begins with half as much again. Its file
holds what is left. There is no penalty that keeps P and Q orthogonal: PEFT adds it to losses that a model itself
computes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from halrp import seeding
from halrp.lab.methods import features, rounding
from halrp.lab.methods.on_base import Predictor
from halrp.lab.methods.peft_adapters import ALL, PeftAdapter, alpha_of, peft
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head
from halrp.lab.streams import Task


class Adalora(PeftAdapter):
    """Ranks by importance."""

    def __init__(
        self,
        context: Context,
        lr: float = 3e-3,
        rank: int = 4,
        layers: str = ALL,
        norms: bool = False,
        form: Form = "float32",
        head: Head = "random",
    ) -> None:
        """Take the rate, the rank, the layers, what happens to norms, the precision of files, and the head's start."""
        super().__init__(context, lr, rank, layers, norms, form, head)

    def config(self, targets: list[str], saved: list[str], task: Task | None) -> Any:
        """PEFT's configuration: a tenth of the steps before ranks fall, and half of them after."""
        total = 10 if task is None else max(3, self.steps(task))
        return peft().AdaLoraConfig(
            target_r=self.rank,
            init_r=math.ceil(1.5 * self.rank),
            lora_alpha=alpha_of(self.rank),
            tinit=total // 10,
            tfinal=total // 2,
            deltaT=1,
            total_step=total,
            target_modules=targets,
            modules_to_save=saved,
        )

    def after_step(self, model: Any, step: int) -> None:
        """Let PEFT measure importance and take ranks."""
        model.base_model.update_and_allocate(step)

    def opened(self, content: bytes, classes: int) -> Predictor:
        """A network with what the file holds: each layer has the rank that was left to it."""
        net = self.context.build(classes, self.context.seed).requires_grad_(False)
        with seeding.isolated("adalora", device=self.device):
            model = self.adapted(net).eval()
        tensors = {name: tensor.to(self.device) for name, tensor in rounding.decode(content).items()}
        with torch.no_grad():
            for name in [name for name in tensors if name.endswith((".lora_A", ".lora_B", ".lora_E"))]:
                layer, _, part = name.rpartition(".")
                parts: Any = getattr(model.get_submodule(layer), part)
                parts["default"] = nn.Parameter(tensors[name], requires_grad=False)
        peft().set_peft_model_state_dict(model, tensors)
        return lambda x: features.outputs(model, self.on_device(x))
