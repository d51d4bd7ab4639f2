"""The networks that benchmarks of single layers and steps share, with random inputs for each."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.lab import backbones
from halrp.lab.backbones.operations import declare_image_operations

__all__ = ["NETWORKS", "MiniLM", "build", "declare_image_operations", "inputs"]

NETWORKS = ("lenet", "resnet18", "minilm")


class MiniLM(nn.Module):
    """The architecture of MiniLM-L6 with random weights: ids (N, L) → mean of the last states → logits."""

    VOCABULARY = 30_522

    def __init__(self, classes: int) -> None:
        super().__init__()
        declare_image_operations()
        from transformers import BertConfig, BertModel

        config = cast(Any, BertConfig)(
            vocab_size=self.VOCABULARY,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(384, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (N, classes) of token ids (N, L)."""
        states = self.body(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return cast(Tensor, self.head(states.mean(1)))


def build(name: str, classes: int) -> nn.Module:
    """A network with a head called `head`, drawn from a fixed seed."""
    torch.manual_seed(0)
    return MiniLM(classes) if name == "minilm" else backbones.build(name, classes=classes)


def inputs(name: str, rows: int, length: int = 32) -> Tensor:
    """Random inputs: token ids (N, length), or images (N, 3, 32, 32)."""
    generator = torch.Generator().manual_seed(1)
    if name == "minilm":
        return torch.randint(1000, MiniLM.VOCABULARY, (rows, length), generator=generator)
    return torch.randn(rows, 3, 32, 32, generator=generator)
