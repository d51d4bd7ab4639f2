"""Networks by name: `build("lenet", classes=10, shape=(3, 32, 32))`.

A backbone is a plain `nn.Module` that maps a batch of inputs to logits and ends in an `nn.Linear` called
`head`, the one layer every task owns. Adding one is a file with a class and a line in `BACKBONES`; the class takes
the settings `channels` and `pixels`, or `inputs`, if it can be made for images of another shape.

Initial weights are a function of the seed alone. They are drawn on the CPU from the default generator, whose
state is put back afterwards, so that building a network changes no other draw and gives the same weights on
every device.
"""

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from halrp.errors import SettingError
from halrp.lab import registry
from halrp.lab.registry import BACKBONES

__all__ = ["BACKBONES", "build"]


def build(
    name: str, classes: int = 10, *, seed: int = 0, shape: Sequence[int] | None = None, **settings: Any
) -> nn.Module:
    """Build the backbone `name` with one head of `classes` outputs and initial weights drawn from `seed`.

    `shape` is that of one image, (channels, height, width), and is put into the backbone's own settings. Other
    `settings` go to its constructor, for instance `build("resnet18", classes=5, width=20)`.
    """
    make: Callable[..., nn.Module] = registry.backbone(name).load()
    if classes < 1:
        raise SettingError(f"classes={classes} for backbone {name!r}: a head needs at least one class")
    if shape is not None:
        settings = _fitted(name, tuple(shape), settings, inspect.signature(make).parameters)
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
        try:
            return make(classes=classes, **settings)
        except SettingError as error:
            given = "" if shape is None else f" for images of shape {tuple(shape)}"
            raise SettingError(f"backbone {name!r} cannot be built{given}: {error}") from None


def _fitted(name: str, shape: tuple[int, ...], settings: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Add what the shape of an image says to the settings of a backbone that knows the `known` ones."""
    refusal = f"backbone {name!r} cannot be built for images of shape {shape}: "
    if not shape or not all(isinstance(size, int) and size >= 1 for size in shape):
        raise SettingError(refusal + "every dimension must be a whole number of at least 1")
    told = {"inputs": math.prod(shape)}
    if "inputs" not in known:
        if len(shape) != 3 or shape[1] != shape[2]:
            raise SettingError(refusal + "it takes square ones, (channels, pixels, pixels)")
        told = {"channels": shape[0], "pixels": shape[1]}
    for key, value in told.items():
        if settings.setdefault(key, value) != value:
            raise SettingError(refusal + f"{key}={settings[key]!r} says otherwise; leave out one of the two")
    return settings
