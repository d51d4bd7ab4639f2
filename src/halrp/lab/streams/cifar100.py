"""CIFAR-100 cut into tasks by class, three ways.

`cifar100-split` has ten tasks; task k has the fine classes 10k … 10k+9. `cifar100-superclass` has twenty, one
for each superclass and its five fine classes. Both follow the paper: a repeat has one random generator, which visits
the tasks by identity. For each it shuffles the task's training images, listed class by class and in file order within
a class, keeps the first ⌈fraction · N⌉, validates on the first fifth of those and trains on the rest. Classes are not
balanced within these parts. The test images are the official ones, all of them.

`cifar100-20` is the setting of the rank-one-update method (IRU): twenty tasks of five classes assigned at random. Its
assignment and orders are not published; here the classes are the permutation drawn from `CLASS_SEED`, five by five
and sorted within a task, order A is by identity, and B … E are the permutations drawn from the seeds 1 … 4. It has no
validation images either; a tenth of the training images is held out here, and all the rest is as above.

Which images a seed draws depends on the file order: class strips are sorted by the pictures' original names,
the official binary files are not, so the two hold the same pictures and draw different subsets of them.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from halrp.lab.data import read
from halrp.lab.reference import load_reference
from halrp.lab.streams.pixels import CIFAR100, split
from halrp.lab.streams.protocol import (
    carve,
    class_names,
    drawn_orders,
    identities_of,
    members,
    mixed,
    name_of,
    published_orders,
    split_seed,
)
from halrp.lab.streams.stream import Stream, Task

VALIDATION, HELD_OUT = 0.2, 0.1
"""The share of the kept images that validates: the paper's, and the one chosen here for `cifar100-20`."""
CLASS_SEED = 0


class ClassSplit(NamedTuple):
    """A benchmark that assigns the classes of CIFAR-100 to tasks."""

    name: str
    orders: Mapping[str, Sequence[int]]
    classes: Mapping[int, Sequence[int]]
    """The fine classes of each task, by identity."""
    names: Mapping[int, str]
    """The names of the tasks, by identity."""
    validation: float
    """The share of the used training images for validation."""


def random_classes() -> dict[int, list[int]]:
    """Return the fine classes of each task of `cifar100-20`, drawn from `CLASS_SEED`."""
    drawn = np.random.RandomState(CLASS_SEED).permutation(100).reshape(20, 5)
    return {task: sorted(mine.tolist()) for task, mine in enumerate(drawn)}


def load_split(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `cifar100-split`: ten tasks of ten classes."""
    classes = {int(task): ids for task, ids in load_reference("task_orders")["cifar100_split_classes"].items()}
    names = {task: f"classes-{mine[0]:02d}-{mine[-1]:02d}" for task, mine in classes.items()}
    orders = published_orders("cifar100_split")
    return _load(ClassSplit("cifar100-split", orders, classes, names, VALIDATION), order, seed, fraction, data)


def load_superclass(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `cifar100-superclass`: twenty tasks, each a superclass with five classes."""
    known = load_reference("task_orders")["cifar100_superclass"]
    classes = {entry["task"]: entry["fine_ids"] for entry in known}
    names = {entry["task"]: entry["name"].replace(" ", "-") for entry in known}
    orders = published_orders("cifar100_superclass")
    return _load(ClassSplit("cifar100-superclass", orders, classes, names, VALIDATION), order, seed, fraction, data)


def load_20(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `cifar100-20`: twenty tasks of five classes that have nothing in common."""
    classes = random_classes()
    names = {task: "classes-" + "-".join(f"{entry:02d}" for entry in mine) for task, mine in classes.items()}
    return _load(ClassSplit("cifar100-20", drawn_orders(20), classes, names, HELD_OUT), order, seed, fraction, data)


def _load(benchmark: ClassSplit, order: str, seed: int, fraction: float, data: str | PathLike[str] | None) -> Stream:
    name, orders, classes, names, validation = benchmark
    identities = identities_of(name, orders, order)
    data_set = read("cifar100", data)
    train, test = data_set.parts["train"], data_set.parts["test"]
    random = np.random.RandomState(split_seed(seed))  # the generator of the paper's scripts
    drawn = {
        identity: carve(name, members(train, classes[identity]), random, fraction, validation)
        for identity in sorted(classes)
    }

    def make(identity: int) -> Task:
        mine = classes[identity]
        learned, validated = drawn[identity]
        return Task(
            name=names[identity],
            identity=identity,
            classes=len(mine),
            train=split(train, learned, mine, CIFAR100),
            val=split(train, validated, mine, CIFAR100),
            test=split(test, mixed(members(test, mine)), mine, CIFAR100),
            class_names=class_names(data_set, mine),
            normal=CIFAR100,
        )

    return Stream(name_of(name, data_set), order, seed, fraction, identities, make, (3, 32, 32))
