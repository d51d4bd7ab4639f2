"""Damaged files of every format raise one typed error that names the file."""

import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy import io as scipy_io  # type: ignore[import-untyped]

from halrp.lab.data import DataDamaged, decoders
from halrp.lab.data.decoders import Decoder, idx, matlab, natural, records, strips
from halrp.lab.data.image_files import notmnist, omniglot, tinyimagenet
from halrp.lab.data.images import Decoded
from tests.lab.data import makers

IMAGES, LABELS = makers.pictures(10, 1, (28, 28))
COLOUR = makers.pictures(10, 1, (32, 32, 3))[0]


def decode(decoder: Decoder, root: Path, *files: Path, part: str = "train") -> Decoded:
    return decoder(part, root, files, lambda done, total: None)


def idx_pair(root: Path, images: bytes, labels: bytes) -> tuple[Path, Path]:
    return makers.put(root / "train-images-idx3-ubyte", images), makers.put(root / "train-labels-idx1-ubyte", labels)


def test_names_are_sorted_by_their_numbers() -> None:
    assert sorted(["b_1", "a_10", "a_9", "10", "9"], key=natural) == ["9", "10", "a_9", "a_10", "b_1"]


# --- IDX -----------------------------------------------------------------------------------------------------

GOOD = makers.idx(IMAGES)


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        (b"", "does not start like an IDX file"),
        (GOOD[:15], "does not start like an IDX file"),
        (b"\0\0\x09\x03" + GOOD[4:], "does not start like an IDX file"),
        (makers.idx(LABELS), "does not start like an IDX file"),
        (GOOD[:-1], "it should have 7,856"),
        (GOOD + b"\0", "it should have 7,856"),
        (GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:], "it should have"),
        (makers.idx(IMAGES[:, :27]), r"shape \(10, 27, 28\)"),
        (makers.idx(IMAGES[:9]), "has 10 labels"),
        (makers.idx(IMAGES[:0]), "has 10 labels"),
    ],
)
def test_damaged_idx_files(images: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataDamaged, match=f"train-images-idx3-ubyte.*{problem}"):
        decode(idx, tmp_path, *idx_pair(tmp_path, images, makers.idx(LABELS)))


def test_an_idx_label_out_of_range_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DataDamaged, match="train-labels-idx1-ubyte has the label 10"):
        decode(idx, tmp_path, *idx_pair(tmp_path, GOOD, makers.idx(LABELS + 1)))


# --- CIFAR ---------------------------------------------------------------------------------------------------

CIFAR = records(10, {"train": r"data_batch_[1-5]\.bin"})


@pytest.mark.parametrize("cut", [0, 1, 3072, 3074, 30_729])
def test_truncated_records_are_damaged(cut: int, tmp_path: Path) -> None:
    path = makers.put(tmp_path / "data_batch_1.bin", makers.cifar_records(COLOUR, LABELS)[:cut])
    with pytest.raises(DataDamaged, match=rf"data_batch_1\.bin has {cut} bytes"):
        decode(CIFAR, tmp_path, path)


def test_a_label_of_a_record_out_of_range_is_damage(tmp_path: Path) -> None:
    path = makers.put(tmp_path / "data_batch_1.bin", makers.cifar_records(COLOUR, LABELS + 1))
    with pytest.raises(DataDamaged, match=r"data_batch_1\.bin has the label 10; labels should be from 0 to 9"):
        decode(CIFAR, tmp_path, path)


def test_an_archive_without_the_files_or_with_two_of_a_name_is_damaged(tmp_path: Path) -> None:
    content = makers.cifar_records(COLOUR, LABELS)
    for files in ({"readme": b""}, {"a/data_batch_1.bin": content, "b/data_batch_1.bin": content}):
        with pytest.raises(DataDamaged, match="should have one file of each name"):
            decode(CIFAR, tmp_path, makers.archive(tmp_path / "a.tar.gz", files))


# --- Strips --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("03_x.webp", b"not a picture"),
        ("03_x.webp", makers.encoded(COLOUR[0], "WEBP")[:-40]),
        ("03_x.webp", makers.encoded(COLOUR[0], "PNG")),
        ("03_x.webp", makers.encoded(COLOUR[0, :, :31], "WEBP")),
        ("03_x.webp", makers.encoded(COLOUR[0, :31], "WEBP")),
        ("10_x.webp", makers.encoded(COLOUR[0], "WEBP")),
        (f"{10**30}_x.webp", makers.encoded(COLOUR[0], "WEBP")),
    ],
    ids=["no picture", "truncated", "another format", "narrow", "short", "class out of range", "absurd class"],
)
def test_damaged_strips(name: str, content: bytes, tmp_path: Path) -> None:
    path = makers.put(tmp_path / "cifar10" / "train" / name, content)
    with pytest.raises(DataDamaged, match=name):
        decode(strips(10), tmp_path, path)


def test_strips_of_a_class_are_sorted_by_number(tmp_path: Path) -> None:
    folder = tmp_path / "svhn" / "train"
    paths = [makers.put(folder / f"1_{item}.webp", makers.encoded(COLOUR[item % 10], "WEBP")) for item in (10, 9, 0)]
    result = decode(strips(10), tmp_path, *sorted(paths))
    assert np.array_equal(result.images, COLOUR[[0, 9, 0]])


# --- MATLAB --------------------------------------------------------------------------------------------------

X, Y = COLOUR.transpose(1, 2, 3, 0), np.arange(1, 11, dtype=np.uint8)[:, None]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"X": X}, "'y'"),
        ({"X": X[:31], "y": Y}, r"X is uint8 \(31, 32, 3, 10\)"),
        ({"X": X.astype(np.float64), "y": Y}, "X is double"),
        ({"X": X, "y": Y[:9]}, r"y is \(9, 1\)"),
        ({"X": X, "y": Y - 1}, "label outside 1 to 10"),
        ({"X": X, "y": Y + 0.5}, "label outside 1 to 10"),
        ({"X": X, "y": np.array([[{"a": 1}]] * 10)}, "sequence"),
    ],
)
def test_damaged_matlab_arrays(content: dict[str, object], problem: str, tmp_path: Path) -> None:
    scipy_io.savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(DataDamaged, match=rf"train_32x32\.mat is not SVHN's file.*{problem}"):
        decode(matlab, tmp_path, tmp_path / "train_32x32.mat")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99])
def test_truncated_matlab_files_are_damaged(share: float, tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    makers.mat(path, COLOUR, LABELS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataDamaged, match=r"train_32x32\.mat"):
        decode(matlab, tmp_path, path)


def test_a_matlab_file_that_grows_without_end_is_refused_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train_32x32.mat"
    makers.mat(path, COLOUR, LABELS)
    packed = zlib.compress(bytes(64 << 20), 9)
    path.write_bytes(path.read_bytes() + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed)
    monkeypatch.setattr(decoders, "LARGEST_MEMBER", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataDamaged, match="holds more than 1,048,576 bytes"):
            decode(matlab, tmp_path, path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# --- One file per picture ------------------------------------------------------------------------------------


def bad(files: dict[str, bytes], count: int) -> dict[str, bytes]:
    chosen = sorted(files)[:count]
    return files | dict.fromkeys(chosen, b"")


def test_up_to_two_undecodable_files_of_notmnist_are_left_out(tmp_path: Path) -> None:
    files = makers.notmnist(4)
    whole = decode(notmnist, tmp_path, makers.archive(tmp_path / "a.tar.gz", files))
    result = decode(notmnist, tmp_path, makers.archive(tmp_path / "b.tar.gz", bad(files, 2)))
    assert np.array_equal(result.images, whole.images[2:])
    assert np.array_equal(result.labels, whole.labels[2:])
    with pytest.raises(DataDamaged, match="is not a picture of 28×28"):
        decode(notmnist, tmp_path, makers.archive(tmp_path / "c.tar.gz", bad(files, 3)))


def test_notes_that_a_mac_leaves_in_archives_are_no_pictures(tmp_path: Path) -> None:
    files = makers.notmnist() | {f"notMNIST_small/A/._{item}.png": b"note" for item in range(3)}
    assert len(decode(notmnist, tmp_path, makers.archive(tmp_path / "a.tar.gz", files)).labels) == 20


def test_an_undecodable_drawing_of_omniglot_is_damage(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.zip", bad(makers.omniglot("background"), 1))
    with pytest.raises(DataDamaged, match=r"a\.zip: images_background/Alpha_\(background\)/character01/0001_01\.png"):
        decode(omniglot, tmp_path, path, part="background")


def test_a_drawing_of_another_size_is_damage(tmp_path: Path) -> None:
    files = makers.omniglot("background")
    files[min(files)] = makers.encoded(IMAGES[0], "PNG")
    with pytest.raises(DataDamaged, match="28 pixels wide and 28 high"):
        decode(omniglot, tmp_path, makers.archive(tmp_path / "a.zip", files), part="background")


def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    for side in (10_000, 30_000):  # Pillow warns of the first and refuses the second
        header = bytearray(makers.encoded(np.zeros((105, 105), np.uint8), "PNG"))
        header[16:24] = side.to_bytes(4, "big") * 2
        header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
        files = makers.omniglot("background")
        files[min(files)] = bytes(header)
        with pytest.raises(DataDamaged, match="is not a picture of 105×105 that can be decoded"):
            decode(omniglot, tmp_path, makers.archive(tmp_path / "a.zip", files), part="background")


def test_an_archive_of_other_things_is_damaged(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.tar.gz", {"readme": b"hello"})
    for decoder, part in ((notmnist, "all"), (omniglot, "background")):
        with pytest.raises(DataDamaged, match=r"a\.tar\.gz holds none of the pictures"):
            decode(decoder, tmp_path, path, part=part)


def test_a_picture_that_is_there_twice_is_damage(tmp_path: Path) -> None:
    files = makers.notmnist()
    files |= {f"again/{name}": content for name, content in files.items()}
    with pytest.raises(DataDamaged, match="is there twice"):
        decode(notmnist, tmp_path, makers.archive(tmp_path / "a.tar.gz", files))


TINY = "tiny-imagenet-200"


@pytest.mark.parametrize(
    ("change", "part", "problem"),
    [
        ({f"{TINY}/wnids.txt": None}, "train", "lacks wnids.txt"),
        ({f"{TINY}/val/val_annotations.txt": None}, "val", "lacks wnids.txt or val/val_annotations.txt"),
        ({f"{TINY}/wnids.txt": b"n02000000\n"}, "train", "has the class n01000000, which is not in wnids.txt"),
        ({f"{TINY}/val/val_annotations.txt": b"val_0.JPEG\tn02000000\n\n"}, "val", "val_1.JPEG has the class unknown"),
        ({f"{TINY}/wnids.txt": b"\xff\xfe"}, "val", "is not a text"),
        ({f"{TINY}/val/images/val_0.JPEG": b"\xff\xd8\xff"}, "val", "val_0.JPEG is not a picture of 64×64"),
    ],
)
def test_damaged_tinyimagenet(change: dict[str, bytes | None], part: str, problem: str, tmp_path: Path) -> None:
    changed = {name: content for name, content in (makers.tinyimagenet(1) | change).items() if content is not None}
    with pytest.raises(DataDamaged, match=problem):
        decode(tinyimagenet, tmp_path, makers.archive(tmp_path / "a.zip", changed), part=part)


def test_tinyimagenet_without_words_calls_classes_by_their_ids(tmp_path: Path) -> None:
    files = {name: content for name, content in makers.tinyimagenet(1).items() if "words" not in name}
    result = decode(tinyimagenet, tmp_path, makers.archive(tmp_path / "a.zip", files), part="val")
    assert result.classes == ("n01000000", "n02000000")
