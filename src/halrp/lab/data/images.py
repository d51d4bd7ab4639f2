"""A part of a data set as arrays of bytes, and the errors of finding one."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halrp.errors import HalrpError

Progress = Callable[[int, int, str], None]
"""Called while a data set is decoded, with what is done, what there is to do, and what it is."""


class DataMissing(HalrpError, FileNotFoundError):  # noqa: N818  (reads as what it says, like BudgetTooSmall)
    """A data set is not in the directory that was searched."""


class DataDamaged(HalrpError, ValueError):  # noqa: N818
    """A data set was found, but its files are not what they should be."""


class Images(NamedTuple):
    """One part of a data set as stored: `images` (count, height, width, channels), `labels` (count,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Decoded(NamedTuple):
    """What a decoder makes of the files of a part."""

    images: NDArray[np.uint8]
    """(count, height, width, channels)"""
    labels: NDArray[np.int64]
    """(count,)"""
    classes: tuple[str, ...] | None = None
    """The names of the classes by label, if the files have them."""


class LoadedDataSet(NamedTuple):
    """A data set as it was read from disk."""

    parts: dict[str, Images]
    """By name, such as "train" and "test"."""
    complete: bool
    """Whether every image of the published set is there; False for a subset."""
    classes: tuple[str, ...]
    """The classes' names, by label. Omniglot's parts share no class: the names of its parts follow each other here."""
    layout: str
    """Which of the known layouts the files have."""
    part_classes: dict[str, tuple[str, ...]]
    """The names of each part's classes, by label."""
    directory: Path
    """The directory in which the files were found."""
    files: tuple[Path, ...]
    """All files that were read."""
