"""Fine-tuning: a copy of the whole network for each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import safetensors.torch
import torch

from benchmarks.pretrained.domain import Classifier, Domain, Task
from benchmarks.pretrained.methods import Setting, Stored
from benchmarks.pretrained.training import predict, train
from halrp import seeding


@dataclass(frozen=True)
class FineTune:
    """All weights are trained, batch norms as usual: by statistics of the batch, which move the running ones."""

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        """The learning rates."""
        return tuple({"lr": lr} for lr in domain.rates["finetune"])

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        """Train everything; the file is the network's state in float32."""
        with seeding.isolated("finetune", task.seed, task.name, device=torch.device("cpu")):
            model = Classifier(domain.base(), domain.width, task.classes).requires_grad_(True)
            train(model, task, lr=setting["lr"], batch=domain.batch(task.shots), frozen_norms=False)
        content = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
        yield Stored("float32", len(content), partial(predict, model))
