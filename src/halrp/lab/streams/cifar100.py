"""CIFAR-100 cut into tasks by class, with the paper's protocol.

`cifar100-split` has ten tasks; task k tells apart the fine classes 10k … 10k+9. A repeat has one random
generator, which visits the tasks by identity. For each it shuffles the task's training images, listed class
by class and in file order within a class, keeps the first ⌈fraction · N⌉, validates on the first fifth of
those and trains on the rest. Classes are not balanced within these parts. The test images are the official
ones, all of them.

Which images a seed draws depends on the file order: class strips are sorted by the pictures' original names,
the official binary files are not, so the two hold the same pictures and draw different subsets of them.
"""

from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np
import torch
from numpy.typing import NDArray

from halrp.errors import SettingError
from halrp.lab.streams.data import Images, cifar100, facts
from halrp.lab.streams.stream import Split, Stream, Task, identities_of, shares

MEAN, DEVIATION = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
"""Of red, green and blue, scaled to 0 … 1."""
VALIDATION = 0.2
SPLIT_SEEDS = (7690, 1304, 3254, 8140, 7444)
"""The generator's seed for each repeat: the paper's scripts draw them from the master seed 111111."""


def load_split(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load `cifar100-split`: ten tasks of ten classes; `seed` 0 … 4 is one of the paper's repeats."""
    known = facts("task_orders")
    classes = {int(task): ids for task, ids in known["classes"]["cifar100_split"].items()}
    return _load("cifar100-split", known["orders"]["cifar100_split"], classes, order, seed, fraction, data)


def draw(
    stream: str, pools: Mapping[int, NDArray[np.intp]], seed: int, fraction: float
) -> dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Draw the images that train and validate from each task's pool: {identity: (train, val)} as indices."""
    random = np.random.RandomState(seed)  # the generator of the paper's scripts
    drawn = {}
    for identity in sorted(pools):
        pool = pools[identity].copy()
        random.shuffle(pool)
        kept, held = shares(stream, len(pool), fraction, VALIDATION)
        drawn[identity] = (pool[held:kept], pool[:held])
    return drawn


def _load(
    name: str,
    orders: Mapping[str, Sequence[int]],
    classes: Mapping[int, Sequence[int]],
    order: str,
    seed: int,
    fraction: float,
    data: str | PathLike[str] | None,
) -> Stream:
    identities = identities_of(name, orders, order)
    if seed not in range(len(SPLIT_SEEDS)):
        raise SettingError(f"seed={seed} of stream {name!r}: its repeats are the seeds 0 to {len(SPLIT_SEEDS) - 1}")
    train, test = cifar100(data)
    pools = {identity: _members(train, mine) for identity, mine in classes.items()}
    drawn = draw(name, pools, SPLIT_SEEDS[seed], fraction)

    def make(identity: int) -> Task:
        mine = classes[identity]
        learned, validated = drawn[identity]
        return Task(
            name=f"classes-{mine[0]:02d}-{mine[-1]:02d}",
            identity=identity,
            classes=len(mine),
            train=_split(train, learned, mine),
            val=_split(train, validated, mine),
            test=_split(test, _members(test, mine), mine),
        )

    return Stream(name, order, seed, fraction, identities, make)


def _members(source: Images, classes: Sequence[int]) -> NDArray[np.intp]:
    """List the images of some classes, class by class and in file order within a class."""
    return np.concatenate([np.flatnonzero(source.labels == one) for one in classes])


def _split(source: Images, chosen: NDArray[np.intp], classes: Sequence[int]) -> Split:
    """Normalise the chosen images, as (images, 3, 32, 32), and number their classes by position in `classes`."""
    local = np.zeros(256, dtype=np.int64)
    local[list(classes)] = np.arange(len(classes))
    x = torch.from_numpy(source.images[chosen]).permute(0, 3, 1, 2).to(torch.float32)
    mean, deviation = (torch.tensor(value, dtype=torch.float32).view(3, 1, 1) for value in (MEAN, DEVIATION))
    x = x.div_(255).sub_(mean).div_(deviation).contiguous(memory_format=torch.contiguous_format)
    return Split(x, torch.from_numpy(local[source.labels[chosen]]))
