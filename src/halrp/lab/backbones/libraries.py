"""Models of other libraries as backbones: "timm:resnet18", "torchvision:resnet18", "hf:FOLDER".

`weights` names a file (see `halrp.lab.backbones.weights`), with its checksum as `sha256`. "random" is a network without
pretrained weights, and only `fetch=true` lets the library download what it calls pretrained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from halrp.errors import MissingPackageError, ModelError, SettingError
from halrp.lab.backbones import weights as files
from halrp.lab.backbones.minilm import encoder
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.backbones.pretrained import Pretrained, copies, width_of
from halrp.model.layers.head import find_head
from halrp.model.views import replace_module

RANDOM = "random"


def timm(
    model: str, classes: int = 10, side: int = 224, weights: str = "", sha256: str = "", fetch: bool = False
) -> Pretrained:
    """A model of timm for images of `side` pixels."""
    return _images("timm", model, classes, side, weights, sha256, fetch)


def torchvision(
    model: str, classes: int = 10, side: int = 224, weights: str = "", sha256: str = "", fetch: bool = False
) -> Pretrained:
    """A model of torchvision for images of `side` pixels."""
    return _images("torchvision", model, classes, side, weights, sha256, fetch)


def hf(model: str, classes: int = 10, sha256: str = "", fetch: bool = False) -> Pretrained:
    """An encoder of texts from a folder of transformers; `sha256` is that of its file model.safetensors.

    Streams of texts give token ids of BERT's uncased vocabulary.
    """
    body = _encoder(model, sha256, fetch)
    return Pretrained(body, width_of(body, torch.ones(1, 2, dtype=torch.int64)), classes)


def _images(library: str, model: str, classes: int, side: int, weights: str, sha256: str, fetch: bool) -> Pretrained:
    if bool(weights) == fetch:
        raise SettingError(
            f"{library}:{model} needs weights: give weights=FILE with sha256=CHECKSUM, weights={RANDOM!r}, or "
            "fetch=true to download them"
        )
    body = _body(library, model, weights, sha256, torch.initial_seed() if weights == RANDOM else 0)
    return Pretrained(body, width_of(body, torch.zeros(1, 3, side, side)), classes, side)


@copies
def _body(library: str, model: str, weights: str, sha256: str, seed: int) -> nn.Module:
    network = _created(library, model, pretrained=not weights)
    if weights not in ("", RANDOM):
        path = files.find(weights, sha256 or None)
        try:
            network.load_state_dict(files.tensors(path), strict=True)
        except RuntimeError as error:
            raise ModelError(
                f"{path.name} holds the weights of another network than {library}:{model}: {error}"
            ) from None
    head = find_head(network)
    replace_module(network, head, nn.Identity())
    return network.eval()


def _created(library: str, model: str, pretrained: bool) -> nn.Module:
    declare_image_operations()
    try:
        if library == "timm":
            import timm

            network: nn.Module = timm.create_model(model, pretrained=pretrained)
        else:
            from torchvision import models

            network = models.get_model(model, weights="DEFAULT" if pretrained else None)
    except ImportError as error:
        raise MissingPackageError(f"the backbone {library}:{model} needs {library}: pip install {library}") from error
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"{library} has no model {model!r} for this: {error}") from error
    return network


@copies
def _encoder(model: str, sha256: str, fetch: bool) -> nn.Module:
    folder: Any = model if fetch else files.find(model, sha256 or None)
    return encoder(folder, fetch).eval()
