"""Where data sets are found on disk, and how their files become arrays of bytes.

One directory holds all data sets, each in the layout its reader documents. Decoding compressed pictures takes
seconds and reading an array takes none, so that decoded arrays are kept in the user's cache directory as
`.npy` files, which several processes can map into memory at once. A kept array is named after the content of
the files it was decoded from: changed files are decoded anew, moved or copied ones are not.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halrp.errors import HalrpError

DECODERS = 1
"""Raised when a reader changes what it returns, so that arrays kept by the former one are not used."""


class DataMissing(HalrpError, FileNotFoundError):  # noqa: N818  (reads as what it says, like BudgetTooSmall)
    """A data set is not in the directory that was searched."""


class DataDamaged(HalrpError, ValueError):  # noqa: N818
    """A data set was found, but its files are not what they should be."""


class Images(NamedTuple):
    """One part of a data set as stored, in bytes: `images` (count, height, width, channels), `labels` (count,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def data_directory(data: str | PathLike[str] | None = None) -> Path:
    """Return the directory that holds the data sets: `data`, else `HALRP_DATA`, else `halrp/data` in the cache."""
    chosen = data or os.environ.get("HALRP_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory() / "data"


def cache_directory() -> Path:
    """Return this library's part of the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halrp"


def facts(name: str) -> dict[str, Any]:
    """Read published facts that come with the package, such as the paper's task orders."""
    found: dict[str, Any] = json.loads((resources.files("halrp.lab") / "facts" / f"{name}.json").read_text("utf-8"))
    return found


def cifar100(data: str | PathLike[str] | None = None) -> tuple[Images, Images]:
    """Read CIFAR-100, training and test images, with fine labels.

    Two layouts are known, and searched in this order:
    `cifar100/{train,test}/NN_name.webp`, where a strip of class NN is one lossless picture, 32 pixels wide, with the
    class's images one under the other; and `cifar-100-binary/{train,test}.bin`, the official binary version.
    """
    root = data_directory(data)
    for pattern, decode in (("cifar100/{}/[0-9][0-9]_*.webp", _strips), ("cifar-100-binary/{}.bin", _records)):
        files = [sorted(root.glob(pattern.format(part)), key=_numbers) for part in ("train", "test")]
        if all(files):
            train, test = (
                _decoded(f"cifar100-{part}", found, decode)
                for part, found in zip(("train", "test"), files, strict=True)
            )
            return _balanced("CIFAR-100 train", train, root), _balanced("CIFAR-100 test", test, root)
    raise DataMissing(
        f"CIFAR-100 is not in {root}. Expected there: cifar100/train and cifar100/test with one strip NN_name.webp per "
        "class, or cifar-100-binary/train.bin and cifar-100-binary/test.bin, the official binary version. To use a "
        "directory of your own, pass data=... or set the environment variable HALRP_DATA to it."
    )


def _balanced(name: str, part: Images, root: Path) -> Images:
    """Check that each of the 100 classes is there, and as often as the others: a partial copy is neither."""
    counts = np.bincount(part.labels, minlength=100)
    if len(counts) > 100 or counts.min() != counts.max():
        few, many = int(counts.argmin()), int(counts.argmax())
        raise DataDamaged(
            f"{name} in {root} has {counts[few]} images of class {few} and {counts[many]} of class {many}; every class "
            "from 0 to 99 should have as many. Copy the data set again."
        )
    return part


def _numbers(path: Path) -> list[int]:
    """Sort strips by the numbers in their names: the class, and after it the strip's own number if it has one."""
    return [int(word) for word in path.stem.split("_") if re.fullmatch("[0-9]+", word)]


def _strips(files: Sequence[Path]) -> Images:
    """Decode strips, 32 pixels wide and 32·n high, of n images each; the name starts with the class."""
    from PIL import Image  # part of the `lab` extra, and only strips need it

    images, labels = [], []
    for path in files:
        try:
            with Image.open(path) as picture:
                if picture.mode != "RGB" or picture.width != 32 or picture.height % 32:
                    raise ValueError(f"{picture.mode}, {picture.width} pixels wide and {picture.height} high")
                strip = np.asarray(picture).reshape(-1, 32, 32, 3)
        except (OSError, ValueError) as error:
            raise DataDamaged(f"{path} is not a strip of 32×32 colour images: {error}. Copy it again.") from error
        images.append(strip)
        labels.append(np.full(len(strip), _numbers(path)[0], dtype=np.uint8))
    return Images(np.concatenate(images), np.concatenate(labels))


def _records(files: Sequence[Path]) -> Images:
    """Decode one file of 3074-byte records: coarse label, fine label, and the red, green and blue planes of 32×32."""
    (path,) = files
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % 3074:
        raise DataDamaged(f"{path} has {len(content)} bytes, not a multiple of the 3074 of a record. Copy it again.")
    records = content.reshape(-1, 3074)
    planes = records[:, 2:].reshape(-1, 3, 32, 32)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 1].copy())


def _decoded(name: str, files: Sequence[Path], decode: Callable[[Sequence[Path]], Images]) -> Images:
    """Return what `decode` makes of `files`, from the kept arrays if there are any."""
    folder = cache_directory() / "decoded" / f"{name}-{_fingerprint(files)}"
    try:
        return Images(*(np.load(folder / f"{field}.npy", "r", allow_pickle=False) for field in Images._fields))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError):  # kept arrays that cannot be read are of no use to anyone
        shutil.rmtree(folder, ignore_errors=True)
    found = decode(files)
    try:
        _keep(folder, found)
    except OSError as error:
        warnings.warn(
            f"decoded images cannot be kept in {folder}: {error}. They will be decoded again next time; set "
            "XDG_CACHE_HOME to a directory that can be written.",
            stacklevel=4,
        )
    return found


def _fingerprint(files: Sequence[Path]) -> str:
    """Name the content of some files: a checksum of their names, sizes and bytes."""
    total = hashlib.sha256(f"decoders {DECODERS}\n".encode())
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {path.stat().st_size} {content}\n".encode())
    return total.hexdigest()[:32]


def _keep(folder: Path, found: Images) -> None:
    """Write arrays to `folder`, which appears complete or not at all, whatever happens meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        for field, array in found._asdict().items():
            with open(fresh / f"{field}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has kept the same arrays first
                raise
