"""Decoders of the files that hold many images each: strips, IDX files, CIFAR's records and MATLAB's arrays.

A decoder takes the name of a part, the directory and the files of the part, and a callback for progress.
Nothing is ever unpickled.
"""

import io
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from halrp.lab.data.archives import AGAIN, LARGEST_MEMBER, Member, members
from halrp.lab.data.image_files import decode_image, strict
from halrp.lab.data.images import DataDamaged, Decoded

Note = Callable[[int, int], None]
Decoder = Callable[[str, Path, Sequence[Path], Note], Decoded]

_COMPRESSED = 15
LONGEST_STRIP = 5000
"""Images in one strip, at most."""


def natural(name: str) -> list[str | int]:
    """Sort names by the numbers in them, where they have numbers: `a_2` comes before `a_10`."""
    return [int(word) if word.isdigit() else word for word in re.split("([0-9]+)", name)]


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def labelled(member: str, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Check that labels are in 0 … classes−1."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise DataDamaged(f"{member} has the label {wrong}; labels should be from 0 to {classes - 1}. {AGAIN}")
    return labels


def strips(classes: int) -> Decoder:
    """Strips, 32 pixels wide and 32·n high, of n images each; a file's name starts with the class."""

    def decode(part: str, root: Path, files: Sequence[Path], note: Note) -> Decoded:
        images, labels = [], []
        with strict():
            for done, member in enumerate(members(root, sorted(files, key=lambda path: natural(path.name)))):
                strip = decode_image(member, "WEBP", "RGB", 32, None, highest=32 * LONGEST_STRIP).reshape(-1, 32, 32, 3)
                label = min(int(natural(_last(member.name))[1]), classes)  # a longer number might not be an int64
                images.append(strip)
                labels.append(labelled(member.origin, np.full(len(strip), label, np.int64), classes))
                note(done + 1, len(files))
        return Decoded(np.concatenate(images), np.concatenate(labels))

    return decode


def idx(part: str, root: Path, files: Sequence[Path], note: Note) -> Decoded:
    """A pair of IDX files, plain or compressed: 28×28 grey images, and labels 0 … 9."""
    pictured, numbered = (_idx_array(member, axes) for member, axes in zip(members(root, files), (3, 1), strict=True))
    if pictured.shape[1:] != (28, 28) or len(pictured) != len(numbered) or not len(numbered):
        raise DataDamaged(
            f"{files[0]} has images of shape {pictured.shape} and {files[1]} has {len(numbered)} labels; expected as "
            f"many images of 28×28. {AGAIN}"
        )
    return Decoded(pictured[..., None], labelled(str(files[1]), numbered.astype(np.int64), 10))


def _idx_array(member: Member, axes: int) -> NDArray[np.uint8]:
    """Read one IDX file of bytes with that many axes: 0, 0, 8, axes, then each length as four bytes, then the bytes."""
    content, start = member.content, 4 + 4 * axes
    if len(content) < start or content[:4] != bytes((0, 0, 8, axes)):
        raise DataDamaged(f"{member.origin} does not start like an IDX file with {axes} axes. {AGAIN}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    count = math.prod(shape)
    if len(content) != start + count:
        raise DataDamaged(
            f"{member.origin} has {len(content):,} bytes; by its header, of shape {shape}, it should have "
            f"{start + count:,}. {AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def records(classes: int, names: Mapping[str, str], skipped: int = 0) -> Decoder:
    """CIFAR's binary records: `skipped` bytes, a label, and the red, green and blue planes of 32×32.

    `names` has a pattern for the names of each part's files, which may be in an archive.
    """

    def decode(part: str, root: Path, files: Sequence[Path], note: Note) -> Decoded:
        pattern = re.compile(names[part])
        every = list(members(root, files, lambda name: pattern.fullmatch(_last(name))))
        by_name = {_last(member.name): member for member in every}
        if not by_name or len(by_name) < len(every):
            raise DataDamaged(f"{files[0]} should have one file of each name {pattern.pattern}. {AGAIN}")
        images, labels = [], []
        length = skipped + 1 + 3072
        for done, member in enumerate(by_name[name] for name in sorted(by_name, key=natural)):
            if not member.content or len(member.content) % length:
                raise DataDamaged(
                    f"{member.origin} has {len(member.content)} bytes, not a multiple of the {length} of a record. "
                    f"{AGAIN}"
                )
            rows = np.frombuffer(member.content, np.uint8).reshape(-1, length)
            images.append(rows[:, skipped + 1 :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(labelled(member.origin, rows[:, skipped].astype(np.int64), classes))
            note(done + 1, len(by_name))
        return Decoded(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels))

    return decode


def matlab(part: str, root: Path, files: Sequence[Path], note: Note) -> Decoded:
    """SVHN's MATLAB file: `X` (32, 32, 3, count) and `y` (count, 1), where the digit 0 has the label 10."""
    from scipy import io as scipy_io  # type: ignore[import-untyped]  # comes with scikit-learn, of the `lab` extra

    (member,) = members(root, files)
    try:
        content = _decompressed(member.content)
        shapes = {name: (shape, kind) for name, shape, kind in scipy_io.whosmat(io.BytesIO(content))}
        (shape, kind), (label_shape, _) = shapes["X"], shapes["y"]
        if (
            shape[:3] != (32, 32, 3)
            or len(shape) != 4
            or kind != "uint8"
            or label_shape != (shape[3], 1)
            or not shape[3]
        ):
            raise ValueError(f"X is {kind} {shape}, y is {label_shape}")
        if 3072 * shape[3] > len(content):
            raise ValueError(f"X has {shape[3]:,} images by its header")
        arrays = scipy_io.loadmat(io.BytesIO(content), variable_names=["X", "y"])
        raw, values = arrays["X"], arrays["y"].reshape(-1)
        labels = values.astype(np.int64)
        if (labels != values).any() or labels.min() < 1 or labels.max() > 10:
            raise ValueError("y has a label outside 1 to 10")
    except Exception as error:  # a reader of foreign bytes: whatever it raises, the bytes are at fault
        raise DataDamaged(
            f"{member.origin} is not SVHN's file of 32×32 colour images X and labels y: {error}. {AGAIN}"
        ) from error
    return Decoded(np.ascontiguousarray(raw.transpose(3, 0, 1, 2)), labels % 10)


def _decompressed(content: bytes) -> bytes:
    """A MATLAB 5 file without compression: scipy decompresses an array without a limit, so it gets none to decompress.

    A file is 128 bytes of header, then elements: four bytes of type, where 15 is a compressed element, four bytes of
    length, and as many bytes of content.
    """
    parts, at, room = [content[:128]], 128, LARGEST_MEMBER
    order: Literal["little", "big"] = "big" if content[126:128] == b"MI" else "little"
    while at + 8 <= len(content):
        kind, length = (int.from_bytes(content[start : start + 4], order) for start in (at, at + 4))
        element = content[at + 8 : at + 8 + length]
        if kind == _COMPRESSED:
            part = zlib.decompressobj().decompress(element, room + 1)
        else:
            part = content[at : at + 8 + length]
        room -= len(part)
        if room < 0:
            raise ValueError(f"it holds more than {LARGEST_MEMBER:,} bytes")
        parts.append(part)
        at += 8 + length
    return b"".join(parts)
