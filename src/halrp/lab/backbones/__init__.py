"""Networks by name: `build("lenet", classes=10)`.

A backbone is a plain `nn.Module` that maps a batch of inputs to logits and ends in an `nn.Linear` called
`head`, the one layer every task owns. Adding one is a file with a class and a line in `BACKBONES`.

Initial weights are a function of the seed alone. They are drawn on the CPU from the default generator, whose
state is put back afterwards, so that building a network changes no other draw and gives the same weights on
every device.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from halrp.errors import SettingError
from halrp.lab.backbones.digits_net import DigitsNet
from halrp.lab.backbones.lenet import LeNet
from halrp.lab.backbones.mlp import MLP
from halrp.lab.backbones.resnet import ResNet18

__all__ = ["BACKBONES", "build"]

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "lenet": LeNet,
    "mlp": MLP,
    "resnet18": ResNet18,
    "digits-net": DigitsNet,
}


def build(name: str, classes: int = 10, *, seed: int = 0, **settings: Any) -> nn.Module:
    """Build the backbone `name` with one head of `classes` outputs and initial weights drawn from `seed`.

    `settings` go to the backbone's constructor, for instance `build("mlp", classes=5, inputs=3072)`.
    """
    if name not in BACKBONES:
        nearest = difflib.get_close_matches(str(name), BACKBONES, n=1, cutoff=0.0)[0]
        raise SettingError(
            f"no backbone is called {name!r}; the nearest name is {nearest!r}, and all of them are "
            f"{', '.join(BACKBONES)}"
        )
    if classes < 1:
        raise SettingError(f"classes={classes} for backbone {name!r}: a head needs at least one class")
    make = BACKBONES[name]
    try:
        inspect.signature(make).bind(classes=classes, **settings)
    except TypeError as error:
        known = [key for key in inspect.signature(make).parameters if key != "classes"]
        raise SettingError(
            f"backbone {name!r} cannot be built: {error}; its settings are {', '.join(known) or 'none'}"
        ) from None
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # The CPU generator alone: torch.manual_seed would also reseed CUDA, which is not put back here.
        torch.default_generator.manual_seed(seed)
        return make(classes=classes, **settings)
