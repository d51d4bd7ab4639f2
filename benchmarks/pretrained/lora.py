"""LoRA as PEFT has it: its layers, its files, and the same files rounded.

pip install -c constraints.txt peft
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from benchmarks.pretrained.domain import Classifier, Domain, Task
from benchmarks.pretrained.methods import Setting, Stored
from benchmarks.pretrained.probe import fitted_head
from benchmarks.pretrained.training import predict, train
from halrp import seeding
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.methods import rounding


@dataclass(frozen=True)
class Lora:
    """Low-rank factors beside frozen layers, and a head; the file that holds both counts, and no other of PEFT's."""

    rank: int
    norms: bool = False
    """Batch norms are trained and stored, instead of frozen with the base's statistics."""
    fitted_head: bool = False
    """The head starts as the probe's, instead of at random."""

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        """Learning rates × the sets of layers."""
        return tuple({"lr": lr, "targets": targets} for targets in domain.lora_targets for lr in domain.rates["lora"])

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        """Train, then give PEFT's file and its rounded forms, each measured as it comes back from the file."""
        declare_image_operations()
        from peft import set_peft_model_state_dict

        with seeding.isolated("lora", task.seed, task.name, device=torch.device("cpu")):
            model = self._adapted(domain, task, setting)
            train(model, task, lr=setting["lr"], batch=domain.batch(task.shots), frozen_norms=not self.norms)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            content = (Path(folder) / "adapter_model.safetensors").read_bytes()
        yield Stored("float32", len(content), partial(predict, model))
        tensors = safetensors.torch.load(content)
        for form in rounding.FORMS[1:]:
            content = rounding.encode(tensors, form)
            set_peft_model_state_dict(model, rounding.decode(content))
            yield Stored(form, len(content), partial(predict, model))

    def _adapted(self, domain: Domain, task: Task, setting: Setting) -> Any:
        from peft import LoraConfig, get_peft_model

        model = Classifier(domain.base(), domain.width, task.classes)
        if self.fitted_head:
            model.classifier.load_state_dict(fitted_head(domain, task).state_dict())
        trained = ["classifier"]
        if self.norms:
            norms = nn.modules.batchnorm._BatchNorm
            trained += [name for name, module in model.named_modules() if isinstance(module, norms)]
        config = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank,
            target_modules=list(domain.lora_targets[setting["targets"]]),
            modules_to_save=trained,
        )
        return get_peft_model(model, config)
