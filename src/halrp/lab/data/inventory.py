"""Which data sets are on this machine; on request verified with published checksums."""

import hashlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halrp.lab.data.cache import cached_arrays
from halrp.lab.data.image_files import tinyimagenet_files
from halrp.lab.data.images import DataDamaged, LoadedDataSet, Progress
from halrp.lab.data.reading import Located, is_complete, locate, read
from halrp.lab.data.sets import SETS
from halrp.lab.data.sources import sources
from halrp.lab.names import check_name
from halrp.lab.reference import load_reference


@dataclass(frozen=True)
class Status:
    """What is known about a data set on this machine."""

    name: str
    title: str
    present: bool
    layout: str | None = None
    directory: Path | None = None
    """The directory in which its files are."""
    bytes: int = 0
    """Of its files, on disk."""
    complete: bool | None = None
    """True or False for a subset; None if it is not there, or was never decoded."""
    verified: str = "not asked"
    """"yes" if the files or the decoded images have a published checksum, "no" if they should have and have not, or are
    damaged; "unknown" if none is published for what is there."""
    problem: str = ""
    """What is wrong with it."""


def status(
    name: str, data: str | PathLike[str] | None = None, verify: bool = False, progress: Progress | None = None
) -> Status:
    """The status of the data set `name`. Only `verify` decodes images or reads files."""
    check_name("data set", name, SETS)
    chosen = SETS[name]
    located = locate(chosen, data)
    if located is None:
        return Status(name, chosen.title, present=False)
    layout, directory, parts = located
    files = dict.fromkeys(path for mine in parts.values() for path in mine)
    size = sum(path.stat().st_size for path in files)
    complete, verified, problem = None, "not asked", ""
    if verify:
        try:
            data_set = read(name, data, progress)
            complete, verified = data_set.complete, _verified(name, located, data_set)
        except DataDamaged as error:
            verified, problem = "no", str(error)
    else:
        cached = {part: cached_arrays(f"{name}-{part}", directory, mine) for part, mine in parts.items()}
        counts = {part: len(arrays.labels) for part, arrays in cached.items() if arrays is not None}
        complete = is_complete(chosen, counts) if len(counts) == len(cached) else None
    return Status(name, chosen.title, True, layout.name, directory, size, complete, verified, problem)


def _verified(name: str, located: Located, data_set: LoadedDataSet) -> str:
    """Compare with the checksums of official files, then with those of decoded images: yes, no or unknown."""
    official = {Path(file.path).name: file.checksum for file in sources()[name].files} if name in sources() else {}
    published = [official.get(path.name) for path in data_set.files]
    if all(published):
        pairs = zip(data_set.files, published, strict=True)
        if all(known is not None and _of_file(path, known[0]) == known[1] for path, known in pairs):
            return "yes"
    known = load_reference("checksums")["sets"].get(name)
    if known is None or (known["layouts"] is not None and data_set.layout not in known["layouts"]):
        return "no" if all(published) else "unknown"
    parts = known["parts"]
    if any(len(data_set.parts[part].labels) != parts[part]["count"] for part in parts):
        return "no" if all(published) else "unknown"
    same = all(
        _sums(known, part, located, data_set) == (parts[part]["images"], parts[part]["labels"]) for part in parts
    )
    return "yes" if same else "no"


def _of_file(path: Path, algorithm: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _sums(known: dict[str, Any], part: str, located: Located, data_set: LoadedDataSet) -> tuple[str, str | None]:
    """Return the checksums of a part's images and labels, in the form of the fact; None where it has none."""
    form, algorithm, labelled = known["form"], known["algorithm"], known["parts"][part]["labels"] is not None
    images, labels = data_set.parts[part]
    if form == "files":
        pictures, _ = tinyimagenet_files(part, located.directory, located.files[part])
        total = hashlib.new(algorithm)
        for member in pictures:
            total.update(member.content)
        return total.hexdigest(), None
    arrays: list[NDArray[np.uint8]] = [images[..., 0] if form == "idx" else images, labels.astype(np.uint8)]
    sums = [hashlib.new(algorithm, _header(array) if form == "idx" else b"") for array in arrays]
    for total, array in zip(sums, arrays, strict=True):
        total.update(np.ascontiguousarray(array).data)
    return sums[0].hexdigest(), sums[1].hexdigest() if labelled else None


def _header(array: NDArray[np.uint8]) -> bytes:
    """The header of an IDX file that holds this array."""
    return bytes((0, 0, 8, array.ndim)) + b"".join(length.to_bytes(4, "big") for length in array.shape)
