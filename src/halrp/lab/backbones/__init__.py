"""Networks by name: `build("lenet", classes=10, shape=(3, 32, 32))`.

A backbone is a plain `nn.Module` that maps a batch of inputs to logits and ends in an `nn.Linear` called `head`, the
one layer that every task has for itself. Adding one is a file with a class and an entry in `halrp.lab.registry`; a
class or function of your own is named "my_module:build". It takes `classes`, and what it needs to know of the shape of
an image, which is (channels, height, width): `shape` itself, `inputs` (the product of the three), or `channels` and
`pixels` if images must be square.

Initial weights are a function of the seed alone. They are drawn on the CPU from the default generator, whose state is
restored afterwards, so that building a network changes no other random numbers and gives the same weights on every
device.
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

    `shape` is that of one image, (channels, height, width). Other `settings` are passed to the backbone's constructor,
    for instance `build("resnet18", classes=5, width=20)`.
    """
    constructor: Callable[..., object] = registry.backbone(name).load()
    if classes < 1:
        raise SettingError(f"classes={classes} for backbone {name!r}: a head needs at least one class")
    parameters = inspect.signature(constructor).parameters
    if shape is not None:
        settings = _with_shape(name, tuple(shape), settings, parameters)
    try:
        inspect.signature(constructor).bind(classes=classes, **settings)
    except TypeError as error:
        known = [key for key in parameters if key != "classes"]
        raise SettingError(
            f"backbone {name!r} cannot be built: {error}; its settings are {', '.join(known) or 'none'}"
        ) from None
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # The CPU generator alone: torch.manual_seed would also seed CUDA, whose state is not restored here.
        torch.default_generator.manual_seed(seed)
        try:
            return _checked(name, constructor(classes=classes, **settings))
        except SettingError as error:
            given = "" if shape is None else f" for images of shape {tuple(shape)}"
            raise SettingError(f"backbone {name!r} cannot be built{given}: {error}") from None


def _with_shape(
    name: str, shape: tuple[int, ...], settings: dict[str, Any], parameters: Collection[str]
) -> dict[str, Any]:
    """Settings of a backbone that has `parameters`, with those that follow from the shape of an image."""
    refusal = f"backbone {name!r} cannot be built for images of shape {shape}: "
    if not shape or not all(isinstance(size, int) and size >= 1 for size in shape):
        raise SettingError(refusal + "every dimension must be a whole number of at least 1")
    implied: dict[str, Any] = {"shape": shape, "inputs": math.prod(shape)}
    if "pixels" in parameters:
        if len(shape) != 3 or shape[1] != shape[2]:
            raise SettingError(refusal + "it takes square ones, (channels, pixels, pixels)")
        implied["pixels"] = shape[1]
    if len(shape) == 3:
        implied["channels"] = shape[0]
    for key in implied.keys() & parameters:
        if settings.setdefault(key, implied[key]) != implied[key]:
            raise SettingError(refusal + f"{key}={settings[key]!r} contradicts it; leave out one of the two")
    return settings


def _checked(name: str, network: object) -> nn.Module:
    """Refuse what methods cannot use as a network."""
    if not isinstance(network, nn.Module):
        raise SettingError(f"{name!r} gives a {type(network).__name__}; it must return an nn.Module")
    if not isinstance(getattr(network, "head", None), nn.Linear):
        raise SettingError(f"{type(network).__name__} has no nn.Linear called head; name its last layer so")
    return network
