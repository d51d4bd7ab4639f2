"""Small data sets in the formats of the real ones."""

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import io as scipy_io  # type: ignore[import-untyped]

Bytes = NDArray[np.uint8]


def pictures(classes: int, count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[Bytes, Bytes]:
    """Make `count` random images of each class, in random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(classes), count)).astype(np.uint8)
    return random.integers(0, 256, (len(labels), *shape), dtype=np.uint8), labels


def by_class(images: Bytes, labels: Bytes) -> tuple[Bytes, Bytes]:
    """Sort images by class, leaving the order within a class."""
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


def put(path: Path, content: bytes) -> Path:
    """Write a file and the folders above it; `.gz` and `.xz` are compressed unless they are archives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".gz", ".xz"):
        content = gzip.compress(content) if path.suffix == ".gz" else lzma.compress(content)
    path.write_bytes(content)
    return path


def encoded(image: Bytes, form: str) -> bytes:
    """Encode one picture: (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, form, **({"lossless": True, "method": 0} if form == "WEBP" else {}))
    return file.getvalue()


def strips(folder: Path, images: Bytes, labels: Bytes, digits: int = 2) -> None:
    """Write one strip per class."""
    for label in np.unique(labels):
        strip = encoded(images[labels == label].reshape(-1, 32, 3), "WEBP")
        put(folder / f"{label:0{digits}d}_some_name.webp", strip)


def cifar_records(images: Bytes, labels: Bytes, skipped: int = 0) -> bytes:
    """CIFAR's binary records."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    coarse = np.zeros((len(labels), skipped), np.uint8)
    return bytes(np.column_stack([coarse, labels, planes]).tobytes())


def idx(array: Bytes) -> bytes:
    """An IDX file."""
    return bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def mat(path: Path, images: Bytes, labels: Bytes) -> None:
    """SVHN's MATLAB file, where the digit 0 has the label 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    scipy_io.savemat(path, {"X": images.transpose(1, 2, 3, 0), "y": values}, do_compression=True)


def archive(path: Path, files: Mapping[str, bytes], folders: bool = True) -> Path:
    """Write an archive of the kind that its name tells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return path
    with tarfile.open(path, {".gz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")) as tar:  # type: ignore[call-overload]
        if folders:
            info = tarfile.TarInfo("folder")
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def unpacked(root: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of an archive as files."""
    for name, content in files.items():
        put(root / name, content)


def notmnist(count: int = 2) -> dict[str, bytes]:
    """Pictures of notMNIST by name, in an order that is not the sorted one."""
    images, _ = pictures(10, count, (28, 28), seed=3)
    names = [f"notMNIST_small/{letter}/{number}Zm9udA==.png" for letter in "JABCDEFGHI" for number in range(count)]
    return {name: encoded(image, "PNG") for name, image in zip(reversed(names), images, strict=True)}


def omniglot(part: str, characters: int = 2) -> dict[str, bytes]:
    """Drawings of Omniglot by name: two alphabets, 1-bit pictures, not in the sorted order."""
    random = np.random.default_rng(len(part))
    names = [
        f"images_{part}/{alphabet}/character{character + 1:02d}/{number:04d}_{drawing:02d}.png"
        for number, alphabet in enumerate((f"Zulu_{part}", f"Alpha_({part})"))
        for character in range(characters)
        for drawing in (2, 1)
    ]
    return {name: encoded(random.integers(0, 2, (105, 105)).astype(np.bool_), "PNG") for name in names}


WNIDS = ("n02000000", "n01000000")


def tinyimagenet(count: int = 11) -> dict[str, bytes]:
    """TinyImageNet by name: two classes, `count` training and one validation picture each; one picture is grey."""
    random = np.random.default_rng(4)

    def jpeg(grey: bool = False) -> bytes:
        return encoded(random.integers(0, 256, (64, 64) if grey else (64, 64, 3), dtype=np.uint8), "JPEG")

    files = {
        f"train/{item}/images/{item}_{number}.JPEG": jpeg(number == 1) for item in WNIDS for number in range(count)
    }
    files |= {f"val/images/val_{number}.JPEG": jpeg() for number in (1, 0)}
    texts = {
        "wnids.txt": "\n".join(WNIDS) + "\n",
        "words.txt": "n00000001\tentity\nn01000000\tgoldfish, Carassius auratus\n",
        "val/val_annotations.txt": f"val_0.JPEG\t{WNIDS[0]}\t0\t0\t9\t9\nval_1.JPEG\t{WNIDS[1]}\t0\t0\t9\t9\n",
        "train/n01000000/n01000000_boxes.txt": "not read",
    }
    files |= {name: text.encode() for name, text in texts.items()}
    files["test/images/test_0.JPEG"] = b"not read"
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}
