"""The models of the matrix: one entry per family, from this package, transformers, timm and torchvision.

All have random weights and tiny sizes: what is checked does not depend on either.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.conformance import networks
from tests.conformance.networks import LENGTH, VOCABULARY, WIDTH
from tests.helpers import drawn

PER_EXAMPLE = ("classification", "multi-label", "regression", "ordinal")
"""Objectives of models with one vector of outputs per example."""


@dataclass(frozen=True)
class Family:
    """A model, what it takes, and what it can be asked to learn."""

    title: str
    build: Callable[[], nn.Module]
    inputs: str
    """A kind of inputs of `tasks`."""
    objectives: tuple[str, ...] = PER_EXAMPLE
    library: str = ""
    """What must be installed; nothing if empty."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Learner` besides the model."""

    def model(self) -> nn.Module:
        """A new one, always with the same weights."""
        return drawn(self.build)

    @property
    def installed(self) -> bool:
        """Whether the library is there."""
        return not self.library or importlib.util.find_spec(self.library) is not None


def _from(module: str) -> Any:
    """A module that imports torchvision, or torchvision itself."""
    _define_operators_of_torchvision()
    return importlib.import_module(module)


def _define_operators_of_torchvision() -> None:
    """Declare the operators that torchvision looks for when it is imported, where its compiled part does not load.

    None of the models here calls them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for compiled in Path(spec.origin).parent.glob("_C*"):
        with suppress(OSError):
            torch.ops.load_library(str(compiled))
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            signature = f"torchvision::{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(signature.partition("(")[0], "(" + signature.partition("(")[2])


# ---- transformers -------------------------------------------------------------------------------------------------


def _bert(kind: str) -> nn.Module:
    library = _from("transformers")
    config = library.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LENGTH,
        num_labels=3,
    )
    model: nn.Module = getattr(library, kind)(config)
    return model


def _distilbert() -> nn.Module:
    library = _from("transformers")
    config = library.DistilBertConfig(
        vocab_size=VOCABULARY, dim=WIDTH, n_layers=1, n_heads=2, hidden_dim=2 * WIDTH, max_position_embeddings=LENGTH
    )
    model: nn.Module = library.DistilBertForSequenceClassification(config)
    return model


def _vit() -> nn.Module:
    library = _from("transformers")
    config = library.ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        num_labels=3,
    )
    model: nn.Module = library.ViTForImageClassification(config)
    return model


def _gpt2(kind: str) -> nn.Module:
    library = _from("transformers")
    config = library.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        num_labels=3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        use_cache=False,
    )
    model: nn.Module = getattr(library, kind)(config)
    return model


def _llama() -> nn.Module:
    library = _from("transformers")
    config = library.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        use_cache=False,
    )
    model: nn.Module = library.LlamaForCausalLM(config)
    return model


def _t5() -> nn.Module:
    library = _from("transformers")
    config = library.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=1, num_heads=2, use_cache=False
    )
    model: nn.Module = library.T5EncoderModel(config)
    return model


def mean_of_states(given: Any) -> Tensor:
    """Features of an encoder: the mean over its positions."""
    features: Tensor = given.last_hidden_state.mean(1)
    return features


# ---- timm ---------------------------------------------------------------------------------------------------------


def _timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model: nn.Module = _from("timm").create_model(name, pretrained=False, num_classes=3, **settings)
        return model

    return build


# ---- torchvision --------------------------------------------------------------------------------------------------


def _mobilenet() -> nn.Module:
    blocks = [[1, 16, 1, 1], [2, 24, 1, 2]]
    model: nn.Module = _from("torchvision.models").MobileNetV2(3, inverted_residual_setting=blocks, width_mult=0.5)
    return model


def _densenet() -> nn.Module:
    model: nn.Module = _from("torchvision.models").DenseNet(8, (2, 2), 16, num_classes=3)
    return model


def _swin() -> nn.Module:
    size = {"patch_size": [2, 2], "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": [2, 2]}
    model: nn.Module = _from("torchvision.models").SwinTransformer(**size, num_classes=3)
    return model


class Features(nn.Module):
    """A backbone as torchvision's segmentation models take it: it gives features under the name `out`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.body(x)}


def _fcn() -> nn.Module:
    library = _from("torchvision.models.segmentation.fcn")
    model: nn.Module = library.FCN(Features(), library.FCNHead(24, 3))
    return model


BERT = "BertForSequenceClassification"
ENCODER = {"head": nn.Linear(WIDTH, 3), "output": mean_of_states}

FAMILIES = {
    "conv-batch-norm": Family("convolutions with batch norm", networks.ConvWithBatchNorm, "pictures"),
    "batch-statistics": Family("batch norm without running statistics", networks.BatchStatistics, "pictures"),
    "depthwise": Family("depthwise convolutions (MobileNet)", networks.DepthwiseConv, "pictures"),
    "convnext": Family("ConvNeXt", networks.ConvNextLike, "pictures"),
    "resnet": Family("ResNet", networks.ResNet, "pictures"),
    "vit": Family("vision transformer", networks.VisionTransformer, "pictures"),
    "bert": Family("BERT, inputs by name", networks.BertLike, "encoded text"),
    "bert-tokens": Family(
        "BERT for tokens", lambda: networks.BertLike(True), "encoded text", ("token classification",)
    ),
    "gpt": Family("GPT, embedding tied", networks.GptLike, "tokens by name", ("causal LM",), settings={"head": False}),
    "lstm": Family("LSTM", networks.Lstm, "tokens"),
    "u-net": Family("U-Net", networks.UNet, "pictures", ("segmentation",), settings={"head": "out"}),
    "two-inputs": Family("perceptron with two inputs", networks.TwoInputs, "pair"),
    "hf-bert": Family(BERT, lambda: _bert(BERT), "encoded text", library="transformers"),
    "hf-bert-tokens": Family(
        "BertForTokenClassification",
        lambda: _bert("BertForTokenClassification"),
        "encoded text",
        ("token classification",),
        library="transformers",
    ),
    "hf-distilbert": Family("DistilBertForSequenceClassification", _distilbert, "encoded text", library="transformers"),
    "hf-vit": Family("ViTForImageClassification", _vit, "pictures by name", library="transformers"),
    "hf-gpt2-lm": Family(
        "GPT2LMHeadModel",
        lambda: _gpt2("GPT2LMHeadModel"),
        "encoded text",
        ("causal LM",),
        library="transformers",
        settings={"head": False},
    ),
    "hf-gpt2": Family(
        "GPT2ForSequenceClassification",
        lambda: _gpt2("GPT2ForSequenceClassification"),
        "encoded text",
        library="transformers",
    ),
    "hf-llama": Family(
        "LlamaForCausalLM", _llama, "encoded text", ("causal LM",), library="transformers", settings={"head": False}
    ),
    "hf-t5": Family("T5EncoderModel, head on top", _t5, "encoded text", library="transformers", settings=ENCODER),
    "timm-resnet": Family(
        "resnet18", _timm("resnet18", layers=(1, 1, 1, 1), channels=(16, 16, 24, 24)), "large pictures", library="timm"
    ),
    "timm-mobilenet": Family("mobilenetv3_small_050", _timm("mobilenetv3_small_050"), "large pictures", library="timm"),
    "timm-vit": Family(
        "vit_tiny_patch16_224",
        _timm("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=WIDTH, depth=1, num_heads=2),
        "large pictures",
        library="timm",
    ),
    "timm-convnext": Family(
        "convnext_atto",
        _timm("convnext_atto", patch_size=1, depths=(1, 1, 1, 1), dims=(8, 16, 16, 24)),
        "large pictures",
        library="timm",
    ),
    "tv-mobilenet": Family("MobileNetV2", _mobilenet, "large pictures", library="torchvision"),
    "tv-densenet": Family("DenseNet", _densenet, "large pictures", library="torchvision"),
    "tv-swin": Family("SwinTransformer", _swin, "large pictures", library="torchvision"),
    "tv-fcn": Family(
        "FCN",
        _fcn,
        "pictures",
        ("segmentation",),
        library="torchvision",
        settings={"head": "classifier", "output": "out"},
    ),
}
