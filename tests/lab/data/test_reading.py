"""Reading every data set in each of its layouts, telling whole from subset, and saying what is missing."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halrp.errors import HalrpError, SettingError
from halrp.lab.data import SETS, DataDamaged, DataMissing, LoadedDataSet, data_directory, read
from halrp.lab.data import reading as module
from halrp.lab.data.layouts import expanded
from halrp.lab.reference import load_reference
from tests.lab.data import makers

pytestmark = pytest.mark.usefixtures("private_cache")

CIFAR100 = {"train": makers.pictures(100, 2, (32, 32, 3), 0), "test": makers.pictures(100, 1, (32, 32, 3), 1)}
TEN = {"train": makers.pictures(10, 5, (32, 32, 3), 2), "test": makers.pictures(10, 2, (32, 32, 3), 3)}
GREY = {"train": makers.pictures(10, 5, (28, 28), 4), "test": makers.pictures(10, 2, (28, 28), 5)}

# --- Writers: one per set and layout -------------------------------------------------------------------------


def strips(folder: str, parts: dict[str, tuple[makers.Bytes, makers.Bytes]], digits: int) -> Callable[[Path], object]:
    def write(root: Path) -> None:
        for part in parts:
            makers.strips(root / folder / part, *parts[part], digits)

    return write


def cifar100_binary(root: Path) -> None:
    for part, (images, labels) in CIFAR100.items():
        makers.put(root / "cifar-100-binary" / f"{part}.bin", makers.cifar_records(images, labels, 1))


def cifar100_archive(root: Path) -> None:
    files = {f"cifar-100-binary/{part}.bin": makers.cifar_records(*CIFAR100[part], 1) for part in ("test", "train")}
    makers.archive(root / "cifar-100-binary.tar.gz", files | {"cifar-100-binary/fine_label_names.txt": b"not read"})


def cifar10_files() -> dict[str, bytes]:
    images, labels = TEN["train"]
    files = {
        f"cifar-10-batches-bin/data_batch_{item + 1}.bin": makers.cifar_records(
            images[10 * item : 10 * item + 10], labels[10 * item : 10 * item + 10]
        )
        for item in (4, 0, 2, 1, 3)
    }
    return files | {"cifar-10-batches-bin/test_batch.bin": makers.cifar_records(*TEN["test"])}


def idx(folder: str, endings: tuple[str, str] = ("", "")) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        for stem, part in (("train", "train"), ("t10k", "test")):
            images, labels = GREY[part]
            makers.put(root / folder / f"{stem}-images-idx3-ubyte{endings[0]}", makers.idx(images))
            makers.put(root / folder / f"{stem}-labels-idx1-ubyte{endings[1]}", makers.idx(labels))

    return write


def svhn(folder: str) -> Callable[[Path], object]:
    def write(root: Path) -> None:
        for part in TEN:
            makers.mat(root / folder / f"{part}_32x32.mat", *TEN[part])

    return write


def packed(name: str, files: dict[str, bytes]) -> Callable[[Path], object]:
    return lambda root: makers.archive(root / name, files)


def omniglot(folder: str, ending: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        for part in ("background", "evaluation"):
            if ending:
                makers.archive(root / folder / f"images_{part}{ending}", makers.omniglot(part))
            else:
                makers.unpacked(root / folder, makers.omniglot(part))

    return write


def tiny_archives(root: Path) -> None:
    files = makers.tinyimagenet()
    train = {name: content for name, content in files.items() if "/train/" in name}
    makers.archive(root / "tiny-imagenet-200" / "tiny-imagenet-200_train_first200.tar.xz", train)
    rest = {name: content for name, content in files.items() if "/train/" not in name}
    makers.archive(root / "tiny-imagenet-200" / "tiny-imagenet-200_val.tar.xz", rest)


WRITERS: dict[str, list[tuple[str, Callable[[Path], object]]]] = {
    "cifar100": [
        ("strips", strips("cifar100", CIFAR100, 2)),
        ("official binary files", cifar100_binary),
        ("official archive", cifar100_archive),
    ],
    "cifar10": [
        ("strips", strips("cifar10", TEN, 1)),
        ("official binary files", lambda root: makers.unpacked(root, cifar10_files())),
        ("official archive", packed("cifar-10-binary.tar.gz", cifar10_files())),
    ],
    "mnist": [
        ("IDX files", idx("mnist", (".xz", ".gz"))),
        ("IDX files", idx("mnist")),
        ("torchvision's IDX files", idx("MNIST/raw", (".gz", ""))),
    ],
    "fashion-mnist": [
        ("IDX files", idx("fashion-mnist", (".gz", ".gz"))),
        ("torchvision's IDX files", idx("FashionMNIST/raw")),
    ],
    "svhn": [
        ("strips", strips("svhn", TEN, 1)),
        ("official MATLAB files", svhn("svhn")),
        ("official MATLAB files", svhn(".")),
    ],
    "notmnist": [
        ("archive", packed("notmnist/notMNIST_small.tar.xz", makers.notmnist())),
        ("archive", packed("notMNIST_small.tar.gz", makers.notmnist())),
        ("folder per class", lambda root: makers.unpacked(root, makers.notmnist())),
    ],
    "omniglot": [
        ("archives", omniglot("omniglot", ".tar.xz")),
        ("archives", omniglot("omniglot-py", ".zip")),
        ("archives", omniglot(".", ".zip")),
        ("folders", omniglot("omniglot", "")),
        ("folders", omniglot("omniglot-py", "")),
    ],
    "tinyimagenet": [
        ("archives", tiny_archives),
        ("official archive", packed("tiny-imagenet-200.zip", makers.tinyimagenet())),
        ("folders", lambda root: makers.unpacked(root, makers.tinyimagenet())),
    ],
}
LAYOUTS = [(name, *rest) for name, some in WRITERS.items() for rest in some]


def expected(name: str) -> dict[str, tuple[makers.Bytes, makers.Bytes]]:
    """Return what was written, decoded here from the single pictures where they were written one by one."""

    def decode(content: bytes, mode: str) -> makers.Bytes:
        return np.asarray(Image.open(io.BytesIO(content)).convert(mode))

    if name in ("cifar100", "cifar10", "svhn", "mnist", "fashion-mnist"):
        return {"cifar100": CIFAR100, "cifar10": TEN, "svhn": TEN}.get(name, GREY)
    if name == "notmnist":
        files = sorted(makers.notmnist().items())
        labels = ["ABCDEFGHIJ".index(path.split("/")[1]) for path, _ in files]
        return {"all": (np.stack([decode(content, "L") for _, content in files]), np.array(labels, np.uint8))}
    if name == "omniglot":
        parts = {}
        for part in ("background", "evaluation"):
            drawings = [decode(content, "L") for _, content in sorted(makers.omniglot(part).items())]
            parts[part] = (np.stack(drawings), np.repeat(np.arange(4), 2).astype(np.uint8))
        return parts
    stored = {path.rsplit("/", 1)[-1]: content for path, content in makers.tinyimagenet().items()}
    train = [f"{wnid}_{number}.JPEG" for wnid in sorted(makers.WNIDS) for number in range(11)]
    return {
        "train": (np.stack([decode(stored[item], "RGB") for item in train]), np.repeat([0, 1], 11).astype(np.uint8)),
        "val": (np.stack([decode(stored[f"val_{item}.JPEG"], "RGB") for item in (0, 1)]), np.array([1, 0], np.uint8)),
    }


# --- Layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layout", "write"), LAYOUTS)
def test_each_layout_gives_back_what_was_written(
    name: str, layout: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path / "data")
    result = read(name, tmp_path / "data")
    assert result.layout == layout
    assert not result.complete
    assert list(result.parts) == list(SETS[name].counts)
    for part, (images, labels) in expected(name).items():
        if layout == "strips":
            images, labels = makers.by_class(images, labels)
        got = result.parts[part]
        assert got.images.shape == (len(labels), *SETS[name].shape)
        assert got.images.dtype == np.uint8
        assert got.labels.dtype == np.int64
        assert np.array_equal(got.images.reshape(images.shape), images)
        assert np.array_equal(got.labels, labels)


def test_every_layout_in_the_data_directory_is_tried_above() -> None:
    for name, chosen in SETS.items():
        assert {item.name for item in chosen.layouts if not item.directory} == {layout for layout, _ in WRITERS[name]}


def test_the_debian_package_is_the_last_place_for_fashion_mnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = SETS["fashion-mnist"].layouts
    assert layouts[-1].directory == "/usr/share/datasets"
    here = (*layouts[:-1], replace(layouts[-1], directory=str(tmp_path / "debian")))
    monkeypatch.setitem(SETS, "fashion-mnist", replace(SETS["fashion-mnist"], layouts=here))
    idx("fashion-mnist", (".gz", ".gz"))(tmp_path / "debian")
    result = read("fashion-mnist", tmp_path / "data")
    assert (result.layout, result.directory) == ("Debian's IDX files", tmp_path / "debian")


def test_braces_stand_for_their_choices_in_order() -> None:
    assert list(expanded("{a,b}/x{,.gz}")) == ["a/x", "a/x.gz", "b/x", "b/x.gz"]


def test_whole_files_are_preferred_to_a_subset_in_strips(tmp_path: Path) -> None:
    for _, write in WRITERS["svhn"]:
        write(tmp_path)
    assert read("svhn", tmp_path).layout == "official MATLAB files"


# --- Classes -------------------------------------------------------------------------------------------------


def test_class_names_are_facts_in_label_order() -> None:
    known = load_reference("classes")
    named = {
        item: fine
        for each in load_reference("task_orders")["cifar100_superclass"]
        for item, fine in zip(each["fine_ids"], each["fine_classes"], strict=True)
    }
    assert known["cifar100"] == [named[label] for label in range(100)]
    assert all(len(set(known[name])) == 10 for name in ("cifar10", "mnist", "fashion-mnist", "svhn", "notmnist"))


def test_omniglots_parts_have_their_own_classes(tmp_path: Path) -> None:
    omniglot("omniglot", ".zip")(tmp_path)
    result = read("omniglot", tmp_path)
    assert result.part_classes["background"][:3] == (
        "Alpha_(background)/character01",
        "Alpha_(background)/character02",
        "Zulu_background/character01",
    )
    assert result.classes == result.part_classes["background"] + result.part_classes["evaluation"]


def test_tinyimagenets_classes_are_first_words_or_ids(tmp_path: Path) -> None:
    tiny_archives(tmp_path)
    for _ in range(2):  # decoded, then from the cache
        assert read("tinyimagenet", tmp_path).classes == ("goldfish", "n02000000")


# --- Counts --------------------------------------------------------------------------------------------------


def small(name: str, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], LoadedDataSet]:
    monkeypatch.setitem(SETS, name, replace(SETS[name], counts=counts))
    return lambda root: read(name, root)


def test_a_set_of_the_published_size_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_binary(tmp_path)
    assert small("cifar100", {"train": 200, "test": 100}, monkeypatch)(tmp_path).complete
    assert not small("cifar100", {"train": 200, "test": 200}, monkeypatch)(tmp_path).complete


def test_more_images_than_were_published_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_binary(tmp_path)
    with pytest.raises(DataDamaged, match="200 images; the set has 199"):
        small("cifar100", {"train": 199, "test": 100}, monkeypatch)(tmp_path)


def test_a_data_set_that_lost_images_is_damaged(tmp_path: Path) -> None:
    cifar100_binary(tmp_path)
    path = tmp_path / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-3074])
    with pytest.raises(DataDamaged, match=r"has 1 images of class \d+ and 2 of class \d+"):
        read("cifar100", tmp_path)


def test_a_missing_class_is_damage_even_where_classes_are_unequal(tmp_path: Path) -> None:
    images, labels = GREY["train"]
    idx("mnist")(tmp_path)
    keep = labels != 7
    makers.put(tmp_path / "mnist" / "train-images-idx3-ubyte", makers.idx(images[keep]))
    makers.put(tmp_path / "mnist" / "train-labels-idx1-ubyte", makers.idx(labels[keep]))
    with pytest.raises(DataDamaged, match=r"MNIST, train.* has 0 images of class 7"):
        read("mnist", tmp_path)


# --- Messages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_missing_data_names_the_set_the_directory_the_layouts_and_the_remedies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = tuple(
        replace(item, directory=item.directory and str(tmp_path / "nowhere")) for item in SETS[name].layouts
    )
    monkeypatch.setitem(SETS, name, replace(SETS[name], layouts=layouts))
    with pytest.raises(DataMissing) as caught:
        read(name, tmp_path)
    assert isinstance(caught.value, HalrpError)
    reported = [SETS[name].title, str(tmp_path), f"halrp data get {name}", "data=", "HALRP_DATA"]
    reported += [layout.shown for layout in layouts] + (["dataset-fashion-mnist"] if name == "fashion-mnist" else [])
    assert [item for item in reported if item not in str(caught.value)] == []


def test_half_a_layout_is_missing_not_damaged(tmp_path: Path) -> None:
    cifar100_binary(tmp_path)
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    with pytest.raises(DataMissing):
        read("cifar100", tmp_path)


def test_an_unknown_set_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no data set is called 'cifar-100'; the nearest name is 'cifar100'"):
        read("cifar-100", tmp_path)


def test_the_data_directory_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_directory() == private_cache / "data"
    monkeypatch.setenv("HALRP_DATA", str(tmp_path / "environment"))
    assert data_directory() == tmp_path / "environment"
    assert data_directory(tmp_path / "argument") == tmp_path / "argument"


def test_progress_is_told_while_decoding_and_not_from_the_cache(tmp_path: Path) -> None:
    WRITERS["notmnist"][0][1](tmp_path)
    reported: list[tuple[int, int, str]] = []
    for _ in range(2):
        module.read("notmnist", tmp_path, lambda *step: reported.append(step))
    assert reported == [(20, 20, "notMNIST (small), all")]
