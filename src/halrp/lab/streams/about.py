"""What is known of a benchmark before its data are read: its size, its orders, and the data sets it needs."""

from collections.abc import Callable
from typing import NamedTuple

from halrp.lab.streams.protocol import drawn_orders, published_orders


class About(NamedTuple):
    """A benchmark in brief."""

    title: str
    tasks: int
    classes: int
    """Of each task."""
    sets: tuple[str, ...]
    """The data sets it is made of; empty when they come with a package."""
    orders: Callable[[], dict[str, list[int]]]


def _sequential() -> dict[str, list[int]]:
    """Omniglot's five orders, and the one by identity that its accuracies are told for."""
    return {**published_orders("omniglot_rotation"), "sequential": list(range(100))}


_FIVE = ("cifar10", "mnist", "svhn", "fashion-mnist", "notmnist")

ABOUT: dict[str, About] = {
    "digits": About("turned and permuted handwritten digits", 10, 5, (), lambda: drawn_orders(10)),
    "cifar100-split": About(
        "CIFAR-100, ten classes a task", 10, 10, ("cifar100",), lambda: published_orders("cifar100_split")
    ),
    "cifar100-superclass": About(
        "CIFAR-100, a superclass a task", 20, 5, ("cifar100",), lambda: published_orders("cifar100_superclass")
    ),
    "cifar100-20": About("CIFAR-100, five random classes a task", 20, 5, ("cifar100",), lambda: drawn_orders(20)),
    "pmnist": About("MNIST under permutations of its pixels", 10, 10, ("mnist",), lambda: published_orders("pmnist")),
    "pmnist-20": About("MNIST under twenty permutations", 20, 10, ("mnist",), lambda: drawn_orders(20)),
    "five": About("five data sets, one a task", 5, 10, _FIVE, lambda: published_orders("five_dataset")),
    "omniglot-rotation": About("turned Omniglot characters", 100, 12, ("omniglot",), _sequential),
    "tinyimagenet-20": About(
        "TinyImageNet, ten classes a task", 20, 10, ("tinyimagenet",), lambda: published_orders("tinyimagenet_20")
    ),
    "tinyimagenet-40": About(
        "TinyImageNet, five classes a task", 40, 5, ("tinyimagenet",), lambda: published_orders("tinyimagenet_40")
    ),
}
"""By the benchmark's name, without a variant."""
