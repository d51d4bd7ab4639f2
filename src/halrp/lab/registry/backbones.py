"""The backbones that come with the package."""

from __future__ import annotations

from halrp.lab.registry.entries import BackboneEntry

BACKBONES: dict[str, BackboneEntry] = {
    "lenet": BackboneEntry("halrp.lab.backbones.lenet:LeNet", "LeNet", "two convolutions, two linear layers", "LeNet"),
    "lenet-large": BackboneEntry(
        "halrp.lab.backbones.lenet:LeNetLarge", "LeNet-Large", "LeNet with three times the channels", "extended LeNet"
    ),
    "alexnet": BackboneEntry(
        "halrp.lab.backbones.alexnet:AlexNet", "AlexNet", "a small AlexNet with batch norm and dropout", "AlexNet"
    ),
    "mlp": BackboneEntry("halrp.lab.backbones.mlp:MLP", "MLP", "two hidden layers of 256 units", "MLP"),
    "resnet18": BackboneEntry(
        "halrp.lab.backbones.resnet:ResNet18", "ResNet-18", "ResNet-18 with half the channels", "ResNet18"
    ),
    "digits-net": BackboneEntry(
        "halrp.lab.backbones.digits_net:DigitsNet", "DigitsNet", "a small convolutional network for 8×8 images"
    ),
    "series-net": BackboneEntry(
        "halrp.lab.backbones.series_net:SeriesNet", "SeriesNet", "a small convolutional network for series"
    ),
    "efficientnet-lite0": BackboneEntry(
        "halrp.lab.backbones.efficientnet:efficientnet_lite0",
        "EfficientNet-Lite0",
        "EfficientNet-Lite0 with the weights of ImageNet, from an installed package",
        pretrained=True,
    ),
    "minilm-l6": BackboneEntry(
        "halrp.lab.backbones.minilm:minilm",
        "MiniLM-L6",
        "MiniLM-L6, an encoder of sentences, from an installed package",
        pretrained=True,
    ),
}

LIBRARIES: dict[str, str] = {
    "timm": "halrp.lab.backbones.libraries:timm",
    "torchvision": "halrp.lab.backbones.libraries:torchvision",
    "hf": "halrp.lab.backbones.libraries:hf",
}
"""Libraries whose models are backbones, written "timm:resnet18": how to build one of them."""
