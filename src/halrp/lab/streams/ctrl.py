"""CTrL's recipes of transfer (Veniat, Denoyer and Ranzato, 2021), on other data: six tasks of five classes.

The first five tasks are objects (CIFAR-10), digits (MNIST), letters (notMNIST), house numbers (SVHN) and five classes
of TinyImageNet, all unrelated. The sixth is the first one again, changed:

- `ctrl@minus`: with few examples, after many in the first task. A method should recall what it has.
- `ctrl@plus`: with many examples, after few in the first task. A method should learn it again.
- `ctrl@in`: with inverted colours: similar outputs of other inputs.
- `ctrl@out`: with other labels for the same classes: similar inputs of other outputs.
- `ctrl`: not at all related, five more classes of TinyImageNet. A method should stay able to learn.

Many examples are 160 of a class, few are 20, each with a quarter as many for validation; a fraction scales both. Theirs
are 5000 and 450 at most, of data sets that not all machines have. Order A is the recipe. Images are 3×32×32, normalised
as those of ImageNet.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, NamedTuple

from halrp.lab.data import read
from halrp.lab.streams.pixels import IMAGENET
from halrp.lab.streams.protocol import class_names, drawn_orders, identities_of, name_of
from halrp.lab.streams.sites import parts_of, splits
from halrp.lab.streams.stream import Stream, Task

SIDE = 32
MANY, FEW = 200, 25
Recipe = Literal["plastic", "minus", "plus", "in", "out"]


class Part(NamedTuple):
    """Where the images of a task come from, and what is changed."""

    name: str
    data_set: str
    classes: tuple[int, ...]
    most: int = MANY
    inverted: bool = False


FIRST = Part("objects", "cifar10", (0, 1, 2, 3, 4))
OTHERS = (
    Part("digits", "mnist", (0, 1, 2, 3, 4)),
    Part("letters", "notmnist", (0, 1, 2, 3, 4)),
    Part("house-numbers", "svhn", (5, 6, 7, 8, 9)),
    Part("tiny-images", "tinyimagenet", (0, 1, 2, 3, 4)),
)
RECIPES: dict[Recipe, tuple[Part, Part]] = {
    "plastic": (FIRST, Part("more-tiny-images", "tinyimagenet", (50, 51, 52, 53, 54))),
    "minus": (FIRST, FIRST._replace(name="few-objects", most=FEW)),
    "plus": (FIRST._replace(most=FEW), FIRST._replace(name="many-objects")),
    "in": (FIRST, FIRST._replace(name="inverted-objects", inverted=True)),
    "out": (FIRST, FIRST._replace(name="relabelled-objects", classes=(3, 0, 4, 1, 2))),
}
"""The first task of each recipe, and the last."""


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `ctrl`."""
    return _load("plastic", order, seed, fraction, data)


def load_minus(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `ctrl@minus`."""
    return _load("minus", order, seed, fraction, data)


def load_plus(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `ctrl@plus`."""
    return _load("plus", order, seed, fraction, data)


def load_in(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `ctrl@in`."""
    return _load("in", order, seed, fraction, data)


def load_out(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `ctrl@out`."""
    return _load("out", order, seed, fraction, data)


def _load(recipe: Recipe, order: str, seed: int, fraction: float, data: str | PathLike[str] | None) -> Stream:
    first, last = RECIPES[recipe]
    parts = (first, *OTHERS, last)
    identities = identities_of("ctrl", drawn_orders(len(parts)), order)
    sets = {part.data_set: read(part.data_set, data) for part in parts}

    def make(identity: int) -> Task:
        part = parts[identity]
        data_set = sets[part.data_set]
        key, sources = f"ctrl {identity}", parts_of(data_set)
        names = class_names(data_set, part.classes)
        train, val, test = splits(key, sources, part.classes, seed, fraction, part.most, SIDE, inverted=part.inverted)
        return Task(part.name, identity, len(part.classes), train, val, test, class_names=names, normal=IMAGENET)

    return Stream(name_of("ctrl", *sets.values()), order, seed, fraction, identities, make, (3, SIDE, SIDE))
