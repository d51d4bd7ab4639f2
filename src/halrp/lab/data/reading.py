"""Reading a data set by name: located in one of its layouts, decoded once, and checked for completeness."""

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from halrp.lab.data.archives import AGAIN
from halrp.lab.data.cache import decoded
from halrp.lab.data.images import DataDamaged, DataMissing, Decoded, Images, LoadedDataSet, Progress
from halrp.lab.data.layouts import Layout
from halrp.lab.data.sets import SETS, DataSet
from halrp.lab.directories import data_directory
from halrp.lab.names import check_name
from halrp.lab.reference import load_reference


class Located(NamedTuple):
    """Where the files of a data set are."""

    layout: Layout
    directory: Path
    files: dict[str, tuple[Path, ...]]
    """By part."""


def read(name: str, data: str | PathLike[str] | None = None, progress: Progress | None = None) -> LoadedDataSet:
    """Read the data set `name` from the data directory.

    The layouts of `SETS[name]` are tried in order. Images are decoded on the first read, which calls
    `progress`, and mapped from the cache afterwards: the arrays are read-only.
    """
    check_name("data set", name, SETS)
    chosen = SETS[name]
    located = locate(chosen, data)
    if located is None:
        raise _missing(chosen, data_directory(data))
    layout, directory, files = located
    made = {}
    for part, mine in files.items():

        def decode(part: str = part, mine: tuple[Path, ...] = mine) -> Decoded:
            text = f"{chosen.title}, {part}"
            return layout.decode(part, directory, mine, lambda at, of: progress(at, of, text) if progress else None)

        made[part] = decoded(f"{name}-{part}", directory, mine, decode)
    classes = {part: arrays.classes or tuple(load_reference("classes")[name]) for part, arrays in made.items()}
    for part, arrays in made.items():
        check(chosen, part, arrays, len(classes[part]), directory)
    return LoadedDataSet(
        parts={part: Images(arrays.images, arrays.labels) for part, arrays in made.items()},
        complete=is_complete(chosen, {part: len(arrays.labels) for part, arrays in made.items()}),
        classes=sum(dict.fromkeys(classes.values()), ()),
        layout=layout.name,
        part_classes=classes,
        directory=directory,
        files=tuple(dict.fromkeys(path for mine in files.values() for path in mine)),
    )


def locate(chosen: DataSet, data: str | PathLike[str] | None = None) -> Located | None:
    """Find the first layout of a data set that is in the data directory, or in the layout's own directory."""
    for layout in chosen.layouts:
        directory = Path(layout.directory) if layout.directory else data_directory(data)
        if (files := layout.find(directory)) is not None:
            return Located(layout, directory, files)
    return None


def is_complete(chosen: DataSet, counts: dict[str, int]) -> bool:
    """Whether these are the numbers of images of the published set."""
    return counts == dict(chosen.counts)


def check(chosen: DataSet, part: str, arrays: Decoded, classes: int, directory: Path) -> None:
    """Check shapes and counts: every class is there, none more often than it should, and no part is too large."""
    name = f"{chosen.title}, {part}, in {directory}"
    if arrays.images.shape[1:] != chosen.shape:
        raise DataDamaged(f"{name} has images of shape {arrays.images.shape[1:]}, not {chosen.shape}. {AGAIN}")
    if len(arrays.labels) > chosen.counts[part]:
        raise DataDamaged(f"{name} has {len(arrays.labels):,} images; the set has {chosen.counts[part]:,}. {AGAIN}")
    counts = np.bincount(arrays.labels, minlength=classes)
    few, many = int(counts.argmin()), int(counts.argmax())
    if len(counts) > classes or not counts[few] or (chosen.balanced and counts[few] != counts[many]):
        expected = "every class should have as many" if chosen.balanced else "every class should have some"
        raise DataDamaged(
            f"{name} has {counts[few]} images of class {few} and {counts[many]} of class {many}; {expected}, from 0 to "
            f"{classes - 1}. {AGAIN}"
        )


def _missing(chosen: DataSet, root: Path) -> DataMissing:
    layouts = "; or ".join(layout.shown for layout in chosen.layouts)
    hint = f" or {chosen.hint}," if chosen.hint else ""
    return DataMissing(
        f"{chosen.title} is not in {root}. Expected there: {layouts}. Get it with `halrp data get {chosen.name}`,"
        f"{hint} or use a directory of your own: pass data=... or set the environment variable HALRP_DATA to it."
    )
