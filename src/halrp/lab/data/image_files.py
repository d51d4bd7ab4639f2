"""Decoders of sets with one file per image, in archives or in folders: notMNIST, Omniglot and TinyImageNet.

Images are sorted by their names, so that an archive and its unpacked folder give the same arrays.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halrp.lab.data.archives import AGAIN, Member, members
from halrp.lab.data.images import DataDamaged, Decoded

UNDECODABLE = 2
"""notMNIST's original archive has two files that cannot be decoded, one in A and one in F. They are left out."""


@contextmanager
def strict() -> Iterator[None]:
    """Make Pillow's warning about a picture that is too large an error, for a block or a function."""
    from PIL import Image  # part of the `lab` extra

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode_image(
    member: Member, form: str, mode: str, width: int, height: int | None, highest: int | None = None
) -> NDArray[np.uint8]:
    """Decode a picture of the format `form` to bytes (height, width[, channels]) of Pillow's `mode`.

    Its size is checked before its pixels are decoded. Without a `height`, it may be any multiple of the width up to
    `highest`, and the mode must be the stored one.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(member.content), formats=(form,)) as opened:
            if height is None:
                fits = opened.mode == mode and 0 < opened.height <= (highest or 0) and opened.height % width == 0
            else:
                fits = opened.height == height
            if opened.width != width or not fits:
                raise ValueError(f"{opened.mode}, {opened.width} pixels wide and {opened.height} high")
            return np.asarray(opened if opened.mode == mode else opened.convert(mode))
    except Exception as error:  # whatever Pillow raises, the file is at fault
        size = f"{width}×{height}" if height else f"{width} pixels wide with one image under the other"
        raise DataDamaged(
            f"{member.origin} is not a picture of {size} that can be decoded: {error}. {AGAIN}"
        ) from error


@strict()
def _decode(
    pictures: Sequence[Member],
    size: int,
    form: str,
    mode: str,
    note: Callable[[int, int], None],
    skippable: int = 0,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Decode pictures of size×size, in order, and a mask that is False for those that were skipped.

    Up to `skippable` pictures that cannot be decoded are left out.
    """
    channels = 3 if mode == "RGB" else 1
    images = np.empty((len(pictures), size, size, channels), np.uint8)
    good = np.ones(len(pictures), np.bool_)
    for index, picture in enumerate(pictures):
        try:
            images[index] = decode_image(picture, form, mode, size, size).reshape(size, size, channels)
        except DataDamaged:
            good[index] = False
            if (~good).sum() > skippable:
                raise
        if index % 1000 == 999 or index + 1 == len(pictures):
            note(index + 1, len(pictures))
    return (images if good.all() else images[good]), good


def _sorted_by(
    candidates: Iterable[Member],
    pattern: str,
    files: Sequence[Path],
    key: Callable[[re.Match[str]], tuple[object, ...]],
) -> list[tuple[tuple[object, ...], Member]]:
    """The members whose names match a pattern, with their keys, sorted; an error if there is none, or a key twice."""
    keyed: dict[tuple[object, ...], Member] = {}
    for member in candidates:
        match = re.search(pattern, member.name)
        if match is None:
            continue
        if keyed.setdefault(key(match), member) is not member:
            raise DataDamaged(f"{member.origin} is there twice. {AGAIN}")
    if not keyed:
        raise DataDamaged(f"{files[0]} holds none of the pictures that it should have. {AGAIN}")
    return sorted(keyed.items(), key=lambda pair: pair[0])


def notmnist(part: str, root: Path, files: Sequence[Path], note: Callable[[int, int], None]) -> Decoded:
    """Decode notMNIST: `A` … `J`/name.png, 28×28 grey; label 0 is A. Sorted by letter, then by file name."""
    pattern = r"(?:^|/)([A-J])/(?!\._)([^/]+)\.png$"  # ._ files are metadata of macOS
    pictures = members(root, files, lambda name: re.search(pattern, name))
    pairs = _sorted_by(pictures, pattern, files, lambda match: (match[1], match[2] + ".png"))
    images, good = _decode([member for _, member in pairs], 28, "PNG", "L", note, UNDECODABLE)
    labels = np.array(["ABCDEFGHIJ".index(str(key[0])) for key, _ in pairs], np.int64)
    return Decoded(images, labels[good])


def omniglot(part: str, root: Path, files: Sequence[Path], note: Callable[[int, int], None]) -> Decoded:
    """Decode one part of Omniglot: alphabet/characterNN/drawing.png, 105×105, ink 0 and paper 255.

    Classes are the part's characters, sorted by alphabet and character; drawings are sorted by file name.
    """
    pattern = rf"(?:^|/)images_{part}/([^/]+)/(character[0-9]+)/([^/]+)\.png$"
    pictures = members(root, files, lambda name: re.search(pattern, name))
    pairs = _sorted_by(pictures, pattern, files, lambda match: (match[1], match[2], match[3]))
    images, _ = _decode([member for _, member in pairs], 105, "PNG", "L", note)
    characters = [f"{key[0]}/{key[1]}" for key, _ in pairs]
    classes = tuple(dict.fromkeys(characters))
    number = {name: label for label, name in enumerate(classes)}
    return Decoded(images, np.array([number[name] for name in characters], np.int64), classes)


def tinyimagenet(part: str, root: Path, files: Sequence[Path], note: Callable[[int, int], None]) -> Decoded:
    """Decode one part of TinyImageNet: 64×64 colour JPEGs; a class is the rank of its WordNet id in sorted order.

    Training pictures are sorted by class and number, validation pictures by number. Grey pictures are converted to RGB.
    """
    pictures, texts = tinyimagenet_files(part, root, files)
    if "wnids.txt" not in texts or ("val_annotations.txt" not in texts and part == "val"):
        raise DataDamaged(f"{files[-1]} lacks wnids.txt or val/val_annotations.txt. {AGAIN}")
    ids = sorted(set(texts["wnids.txt"].split()))
    number = {wnid: label for label, wnid in enumerate(ids)}
    annotations = dict(
        line.split()[:2] for line in texts.get("val_annotations.txt", "").splitlines() if len(line.split()) > 1
    )
    labels = []
    for member in pictures:
        file = member.name.rsplit("/", 1)[-1]
        wnid = file.split("_")[0] if part == "train" else annotations.get(file, "unknown")
        if wnid not in number:
            raise DataDamaged(f"{member.origin} has the class {wnid}, which is not in wnids.txt. {AGAIN}")
        labels.append(number[wnid])
    images, _ = _decode(pictures, 64, "JPEG", "RGB", note)
    words = dict(line.split("\t", 1) for line in texts.get("words.txt", "").splitlines() if "\t" in line)
    classes = tuple(words.get(wnid, wnid).split(",")[0].strip() or wnid for wnid in ids)
    return Decoded(images, np.array(labels, np.int64), classes)


def tinyimagenet_files(part: str, root: Path, files: Sequence[Path]) -> tuple[list[Member], dict[str, str]]:
    """The picture files of a part of TinyImageNet, in order, and its text files about classes, by name."""
    train = r"(?:^|/)train/(n[0-9]+)/images/\1_([0-9]{1,9})\.JPEG$"
    pattern = train if part == "train" else r"(?:^|/)val/images/(val)_([0-9]{1,9})\.JPEG$"
    lists = r"(?:^|/)(wnids\.txt|words\.txt|val_annotations\.txt)$"
    wanted = list(members(root, files, lambda name: re.search(pattern, name) or re.search(lists, name)))
    texts = {member.name.rsplit("/", 1)[-1]: _text(member) for member in wanted if re.search(lists, member.name)}
    pairs = _sorted_by(wanted, pattern, files, lambda match: (match[1], int(match[2])))
    return [member for _, member in pairs], texts


def _text(member: Member) -> str:
    try:
        return member.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataDamaged(f"{member.origin} is not a text: {error}. {AGAIN}") from error
