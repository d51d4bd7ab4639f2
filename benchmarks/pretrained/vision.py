"""CIFAR-100's superclasses, five classes each, as tasks of EfficientNet-Lite0."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.pretrained.domain import Part, Task, drawn
from halrp.lab.backbones import efficientnet
from halrp.lab.data import Images, LoadedDataSet, read
from halrp.lab.reference import load_reference
from halrp.lab.streams.pixels import IMAGENET, local_labels, normalised, resized, taken

SIDE = 96
"""Pixels to which images are resized, from 32."""
CLASSES: dict[str, list[int]] = {
    entry["name"].replace(" ", "-"): entry["fine_ids"] for entry in load_reference("task_orders")["cifar100_superclass"]
}
"""The fine classes of each superclass, by identity of the superclass."""


@dataclass(frozen=True)
class Vision:
    """EfficientNet-Lite0 with the weights of ImageNet, and twenty tasks of five classes."""

    data: Path | None = None
    weights: Path | None = None

    name = "vision"
    network = "efficientnet-lite0"
    width = 1280
    dev = tuple(CLASSES)[:4]
    held_out = tuple(CLASSES)[4:]

    @property
    def rates(self) -> Mapping[str, tuple[float, ...]]:
        """LoRA ends at a guess on some tasks with 0.01; fine-tuning improves up to 0.001 at least."""
        return {"lora": (1e-3, 2e-3, 3e-3, 5e-3), "finetune": (1e-4, 3e-4, 1e-3, 3e-3)}

    @property
    def lora_targets(self) -> Mapping[str, tuple[str, ...]]:
        """Pointwise convolutions; PEFT has no low-rank form of depthwise ones: ranks must be multiples of groups."""
        return {"pointwise": ("_expand_conv", "_project_conv", "_conv_head")}

    def base(self) -> nn.Module:
        """A new copy of the network: images (N, 3, 96, 96) → features (N, 1280)."""
        return efficientnet.load(self.weights, SIDE)

    def task(self, name: str, shots: int, seed: int) -> Task:
        """A superclass with `shots` training images a class, 20 for validation (of 5 shots: 5), and all test images."""
        source, classes = _images(self.data), CLASSES[name]
        val = 5 if shots <= 5 else 20
        samples = [
            drawn(np.flatnonzero(source.parts["train"].labels == label).tolist(), (shots, val), "vision", seed, label)
            for label in classes
        ]
        test = np.flatnonzero(np.isin(source.parts["test"].labels, classes))
        learned, validated = (np.array([i for sample in samples for i in sample[part]]) for part in range(2))
        return Task(
            name,
            len(classes),
            shots,
            seed,
            train=_part(source.parts["train"], learned, classes),
            val=_part(source.parts["train"], validated, classes),
            test=_part(source.parts["test"], test, classes),
        )

    def batch(self, shots: int) -> int:
        """Two steps for each example of a class, but at most 20 an epoch."""
        return 5 if shots <= 5 else 15 if shots <= 30 else 50


@functools.cache
def _images(data: Path | None) -> LoadedDataSet:
    return read("cifar100", data)


def _part(source: Images, chosen: Any, classes: list[int]) -> Part:
    x = normalised(resized(taken(source, chosen), SIDE), IMAGENET)
    return Part(x.contiguous(memory_format=torch.channels_last), local_labels(source.labels[chosen], classes))
