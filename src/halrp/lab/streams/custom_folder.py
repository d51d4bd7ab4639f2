"""A folder of pictures, one folder per class, read as arrays."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halrp.lab.data import DataDamaged, DataMissing, Images
from halrp.lab.data.image_files import strict

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a picture may be, whatever its ending: Pillow reads others with programs of the system."""
PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IGNORED = frozenset({"Thumbs.db", "desktop.ini"})
"""Files that file managers leave behind; hidden files are ignored as well."""
Key = tuple[str, ...]
"""The names of the folders that lead to pictures: a class, or a task and a class."""


def read_folder(
    path: str | PathLike[str], depth: int, size: int, grey: bool
) -> tuple[list[Key], Images, Images | None]:
    """Read the pictures that are `depth` folders deep: the names of those folders by label, train and test."""
    root = Path(path)
    if not root.is_dir():
        raise DataMissing(f"{root} is not a folder; expected there: a folder for each class, with its pictures")
    folders = {entry.name: entry for entry in _entries(root) if entry.is_dir()}
    train, test = [root], []
    if "train" in folders and folders.keys() <= {"train", "val", "test"}:
        train = [folders["train"]]
        test = [folders[key] for key in ("test", "val") if key in folders][:1]
        train += [folders["val"]] if "test" in folders and "val" in folders else []
    train_files = _gather(train, depth)
    keys = sorted(train_files)
    if not test:
        return keys, _decode(train_files, keys, size, grey), None
    test_files = _gather(test, depth)
    for key in sorted(train_files.keys() ^ test_files.keys()):
        raise DataDamaged(
            f"{root}: {'/'.join(key)} is only in one of {train[0].name} and {test[0].name}; put it in both"
        )
    return keys, _decode(train_files, keys, size, grey), _decode(test_files, keys, size, grey)


def _entries(folder: Path) -> Iterator[Path]:
    """The files and folders in a folder, by name, without hidden ones."""
    return (entry for entry in sorted(folder.iterdir()) if entry.name[0] != "." and entry.name not in IGNORED)


def _gather(roots: Sequence[Path], depth: int) -> dict[Key, list[Path]]:
    """The picture files of every class."""
    files_by_class: dict[Key, list[Path]] = {}
    for root in roots:
        for key, folder in _class_folders(root, depth):
            files_by_class.setdefault(key, []).extend(_picture_files(folder))
    if not files_by_class:
        raise DataDamaged(f"{roots[0]} has no folders; expected there: {'<task>/' * (depth - 1)}<class>/ with pictures")
    return files_by_class


def _class_folders(folder: Path, depth: int) -> Iterator[tuple[Key, Path]]:
    """Yield the folders `depth` below `folder`, each with the names on the path to it."""
    if depth == 0:
        yield (), folder
        return
    for entry in _entries(folder):
        if entry.is_dir():
            for key, below in _class_folders(entry, depth - 1):
                yield (entry.name, *key), below
        elif entry.suffix.lower() in PICTURES:
            raise DataDamaged(f"{entry} is beside the folders of classes and belongs to no class; move it into one")


def _picture_files(folder: Path) -> list[Path]:
    """The files of a class, all of which must be pictures."""
    files = list(_entries(folder))
    if not files:
        raise DataDamaged(f"{folder} has no pictures; add some, or remove the folder")
    for entry in files:
        if entry.is_dir() or entry.suffix.lower() not in PICTURES:
            kinds = ", ".join(sorted(PICTURES))
            raise DataDamaged(f"{entry} is among the pictures of a class but is none ({kinds}); move it elsewhere")
    return files


def _decode(files_by_class: dict[Key, list[Path]], keys: list[Key], size: int, grey: bool) -> Images:
    """Read the pictures of all classes, in the order of `keys`."""
    labels = np.repeat(np.arange(len(keys), dtype=np.int64), [len(files_by_class[key]) for key in keys])
    files = [file for key in keys for file in files_by_class[key]]
    images = np.empty((len(files), size, size, 1 if grey else 3), dtype=np.uint8)
    for number, file in enumerate(files):
        images[number] = _read_picture(file, size, grey)
    return Images(images, labels)


def _read_picture(file: Path, size: int, grey: bool) -> NDArray[np.uint8]:
    """Read a picture as (size, size, channels): resized by its short side, cropped at the centre."""
    from PIL import Image, ImageOps  # part of the `lab` extra

    bombs = Image.DecompressionBombError, Image.DecompressionBombWarning
    try:
        with strict(), Image.open(file, formats=FORMATS) as opened:
            if opened.mode[0] in "IF":
                raise ValueError(f"mode {opened.mode} has more than 8 bits per channel")
            picture = ImageOps.exif_transpose(opened).convert("L" if grey else "RGB")
        pixels = np.asarray(ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, EOFError, *bombs) as error:
        raise DataDamaged(f"{file} cannot be read as a picture: {error}. Replace or remove it.") from error
    return pixels.reshape(size, size, -1)
