"""Models that people have, as their libraries define them, tiny and with random weights.

`FAMILIES[name].model()` builds one, `.inputs(rows, seed)` draws inputs for it: pictures, or token ids with a mask of
those that are present.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.model.batch import Batch
from tests.helpers import drawn

VOCABULARY = 40
LENGTH = 6
CLASSES = 3


@cache
def declare_image_operations() -> object:
    """Declare two operations without which torchvision, where it has no binaries, cannot be imported."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    return library


class Family(NamedTuple):
    """How to build a model, its head, and the size of its pictures; without one it takes tokens."""

    build: Callable[[], nn.Module]
    head: str | None = None
    size: int = 0

    def model(self, seed: int = 0) -> nn.Module:
        """A new model drawn from a seed."""
        return drawn(self.build, seed)

    def inputs(self, rows: int, seed: int = 0) -> Batch:
        """Random inputs; of tokens, rows have different lengths."""
        generator = torch.Generator().manual_seed(seed)
        if self.size:
            return torch.randn(rows, 3, self.size, self.size, generator=generator)
        ids = torch.randint(2, VOCABULARY, (rows, LENGTH), generator=generator)
        lengths = torch.randint(2, LENGTH + 1, (rows, 1), generator=generator)
        present = torch.arange(LENGTH) < lengths
        return {"input_ids": torch.where(present, ids, 0), "attention_mask": present.long()}

    def task(self, seed: int, rows: int = 18) -> tuple[Batch, Tensor]:
        """Inputs with classes that show in them."""
        x, y = self.inputs(rows, seed), torch.arange(rows) % CLASSES
        if isinstance(x, Tensor):
            return x + 2 * torch.randn(CLASSES, 3, 1, 1, generator=torch.Generator().manual_seed(seed))[y], y
        named = cast(dict[str, Tensor], x)
        named["input_ids"][:, 0] = 2 + (y + seed) % CLASSES
        return named, y


# ---- transformers -------------------------------------------------------------------------------------------------


def _transformer(kind: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers by the names of its classes."""

    def build() -> nn.Module:
        declare_image_operations()
        transformers = pytest.importorskip("transformers")
        return cast(nn.Module, getattr(transformers, kind)(getattr(transformers, config)(**settings)))

    return build


def _pooled(body: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: MeanOfTokens(body())


class MeanOfTokens(nn.Module):
    """A body, and a head on the mean of the tokens that are present."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(states.dtype)
        return cast(Tensor, self.fc((states * mask).sum(1) / mask.sum(1)))


_BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 12,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_LLAMA: dict[str, Any] = {
    **_BERT,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_DISTIL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 12,
    "num_labels": CLASSES,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}
_VIT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": CLASSES,
}

TRANSFORMERS: dict[str, Family] = {
    "BERT": Family(_transformer("BertForSequenceClassification", "BertConfig", **_BERT), "classifier"),
    "BERT, attention step by step": Family(
        _transformer("BertForSequenceClassification", "BertConfig", **_BERT, attn_implementation="eager"), "classifier"
    ),
    "RoBERTa": Family(_transformer("RobertaForSequenceClassification", "RobertaConfig", **_BERT), "classifier"),
    "DistilBERT": Family(
        _transformer("DistilBertForSequenceClassification", "DistilBertConfig", **_DISTIL), "classifier"
    ),
    "GPT-2": Family(_transformer("GPT2ForSequenceClassification", "GPT2Config", **_GPT), "score"),
    "Llama": Family(_transformer("LlamaForSequenceClassification", "LlamaConfig", **_LLAMA), "score"),
    "T5 encoder": Family(_pooled(_transformer("T5EncoderModel", "T5Config", **_T5)), "fc"),
    "ViT of transformers": Family(_transformer("ViTForImageClassification", "ViTConfig", **_VIT), "classifier", 12),
}

# ---- timm ---------------------------------------------------------------------------------------------------------


def _timm(path: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of timm by the path of its class in `timm.models`, or by its name if that has no dot."""

    def build() -> nn.Module:
        declare_image_operations()
        timm = pytest.importorskip("timm")
        if "." not in path:
            return cast(nn.Module, timm.create_model(path, num_classes=CLASSES, **settings))
        module, _, kind = path.rpartition(".")
        return cast(nn.Module, getattr(getattr(timm.models, module), kind)(num_classes=CLASSES, **settings))

    return build


_TOKENS: dict[str, Any] = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "mlp_ratio": 2.0}
TIMM: dict[str, Family] = {
    "ViT": Family(_timm("vision_transformer.VisionTransformer", depth=2, **_TOKENS), None, 12),
    "ViT with scales, registers and norms of queries": Family(
        _timm(
            "vision_transformer.VisionTransformer",
            depth=1,
            init_values=0.1,
            global_pool="avg",
            class_token=False,
            reg_tokens=2,
            qk_norm=True,
            **_TOKENS,
        ),
        None,
        12,
    ),
    "Swin": Family(
        _timm(
            "swin_transformer.SwinTransformer",
            img_size=16,
            patch_size=2,
            embed_dim=8,
            depths=(2, 1),
            num_heads=(2, 2),
            window_size=4,
        ),
        "head.fc",
        16,
    ),
    "ConvNeXt": Family(_timm("convnext.ConvNeXt", depths=(1, 1, 1, 1), dims=(8, 8, 12, 12)), "head.fc", 32),
    "MobileNetV3": Family(_timm("mobilenetv3_small_050"), "classifier", 32),
    "EfficientNet": Family(_timm("test_efficientnet"), "classifier", 32),
    "MLP-Mixer": Family(_timm("mlp_mixer.MlpMixer", num_blocks=2, img_size=12, patch_size=4, embed_dim=16), "head", 12),
}

# ---- torch alone --------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Two scales with a connection between them, which pads and resizes, and a head on the mean of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU())
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.join = nn.Conv2d(16, 8, 3, padding=1)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        y = self.up(self.deep(F.max_pool2d(skip, 2)))
        y = F.pad(y, (0, skip.shape[-1] - y.shape[-1], 0, skip.shape[-2] - y.shape[-2]))
        y = F.interpolate(y, size=skip.shape[-2:], mode="bilinear", align_corners=False)
        return cast(Tensor, self.fc(self.join(torch.cat([skip, y], 1)).mean((2, 3))))


class Encoder(nn.Module):
    """torch's own transformer over embedded tokens with learned positions."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.tokens = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, LENGTH, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, absent = self.tokens(input_ids) + self.positions, attention_mask == 0
        if self.batch_first:
            return cast(Tensor, self.fc(self.encoder(x, src_key_padding_mask=absent)[:, 0]))
        return cast(Tensor, self.fc(self.encoder(x.transpose(0, 1), src_key_padding_mask=absent)[0]))


TORCH: dict[str, Family] = {
    "U-Net": Family(UNet, None, 11),
    "encoder": Family(lambda: Encoder(batch_first=True)),
    "encoder with the sequence first": Family(lambda: Encoder(batch_first=False)),
}

FAMILIES: dict[str, Family] = {**TRANSFORMERS, **TIMM, **TORCH}
