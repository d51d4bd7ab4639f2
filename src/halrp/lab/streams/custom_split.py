"""The settings of a custom stream: which images train, validate and test, and the order of the tasks."""

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from halrp.errors import DataError, SettingError
from halrp.lab.streams.custom_data import Pool
from halrp.lab.streams.protocol import SEEDS, Indices, shares
from halrp.lab.streams.stream import Normal

Order: TypeAlias = str | Sequence[int]


class Parts(NamedTuple):
    """The images of one class, as indices; `rest` are all that are not test images, used or not."""

    train: Indices
    val: Indices
    test: Indices
    rest: Indices


@dataclass(frozen=True)
class StreamSettings:
    """The settings that custom streams share, validated; `StreamOptions` in `custom` describes them."""

    name: str
    order: Order = "A"
    seed: int = 0
    fraction: float = 1.0
    validation: float = 0.2
    test_share: float = 0.2
    normal: Normal | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.seed, (int, np.integer)) or not 0 <= self.seed < SEEDS:
            raise SettingError(f"seed={self.seed!r} of stream {self.name!r} must be an integer from 0 to 2³²−1")
        if not 0.0 < self.fraction <= 1.0:
            raise SettingError(f"fraction={self.fraction} of stream {self.name!r} must be more than 0 and at most 1")
        for key in ("validation", "test_share"):
            if not 0.0 < getattr(self, key) < 1.0:
                raise SettingError(f"{key}={getattr(self, key)} of stream {self.name!r} must lie between 0 and 1")

    def identities(self, tasks: int) -> tuple[int, ...]:
        """The identities of the tasks, by position."""
        if isinstance(self.order, str) and self.order in set(string.ascii_uppercase):
            seed = string.ascii_uppercase.index(self.order)
            return tuple(np.random.RandomState(seed).permutation(tasks).tolist()) if seed else tuple(range(tasks))
        try:
            listed = self.order.split(",") if isinstance(self.order, str) else self.order
            chosen = tuple(int(identity) for identity in listed)
        except (TypeError, ValueError):
            raise SettingError(
                f"order={self.order!r} of stream {self.name!r} must be a letter from A to Z or a list of identities"
            ) from None
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(tasks)):
            raise SettingError(
                f"order={list(chosen)} of stream {self.name!r} must name tasks 0 … {tasks - 1}, each at most once"
            )
        return chosen

    def parts(self, train: Pool, test: Pool | None, names: Mapping[int, str]) -> dict[int, Parts]:
        """Draw the images of every class in `names`, by label; draws do not depend on which classes those are."""
        random = np.random.RandomState(self.seed)
        drawn = {}
        for label in np.unique(train.labels).tolist():
            members = random.permutation(np.flatnonzero(train.labels == label))
            if label not in names:
                continue
            tested = self.test_count(len(members)) if test is None else 0
            rest = members[tested:]
            if not self.enough(len(members), test is None):
                least = next((count for count in range(2, 100_000) if self.enough(count, test is None)), "many more")
                raise DataError(
                    f"{self.name}: class {names[label]!r} has {len(members)} images; to train, validate and test it "
                    f"needs {least}. Add images, leave the class out, or change "
                    f"validation={self.validation} and test_share={self.test_share}"
                )
            subset, held = shares(f"{self.name}, class {names[label]}", len(rest), self.fraction, self.validation)
            tests = members[:tested] if test is None else np.flatnonzero(test.labels == label)
            drawn[label] = Parts(rest[held:subset], rest[:held], tests, rest)
        return drawn

    def test_count(self, count: int) -> int:
        """The number of test images among `count` images of a class, if there is no separate test data."""
        return math.floor(round(self.test_share * count, 6))

    def enough(self, count: int, hold_out: bool) -> bool:
        """Whether `count` images of a class leave at least one for training, validation and testing."""
        tested = self.test_count(count) if hold_out else 0
        held = math.floor(round(self.validation * (count - tested), 6))
        return (tested > 0 or not hold_out) and 0 < held < count - tested
