"""The data sets: what they hold, whose they are, and the layouts in which they are recognised on disk."""

from collections.abc import Mapping
from dataclasses import dataclass

from halrp.lab.data.decoders import Decoder, idx, matlab, records, strips
from halrp.lab.data.image_files import notmnist, omniglot, tinyimagenet
from halrp.lab.data.layouts import Layout


@dataclass(frozen=True)
class DataSet:
    """A data set that can be read by name."""

    name: str
    title: str
    shape: tuple[int, int, int]
    """Height, width and channels of its images."""
    counts: Mapping[str, int]
    """Images in each part of the published set."""
    layouts: tuple[Layout, ...]
    """In the order in which they are tried."""
    terms: str
    citation: str
    balanced: bool = True
    """Whether all classes of a part have the same number of images, in the published set and in every subset."""
    hint: str = ""
    """One more way to get it."""


CIFAR_TERMS = "no formal licence; cite the report"
CIFAR_REPORT = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, 2009"


def _strips(folder: str, classes: int) -> Layout:
    return Layout(
        "strips",
        {part: (f"{folder}/{part}/[0-9]*_*.webp",) for part in ("train", "test")},
        strips(classes),
        f"{folder}/train and {folder}/test with lossless strips NN_name.webp of class NN",
    )


def _idx(name: str, folder: str, directory: str | None = None) -> Layout:
    ending = "ubyte{,.gz,.xz}"
    parts = {
        part: (f"{folder}/{stem}-images{{-,.}}idx3-{ending}", f"{folder}/{stem}-labels{{-,.}}idx1-{ending}")
        for part, stem in (("train", "train"), ("test", "t10k"))
    }
    root = f"{directory}/" if directory else ""
    shown = f"{root}{folder}/{{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte, plain, .gz or .xz"
    return Layout(name, parts, idx, shown, directory)


def _shared(name: str, pattern: str, parts: tuple[str, ...], decode: Decoder, shown: str) -> Layout:
    """A layout whose parts are in the same files."""
    return Layout(name, dict.fromkeys(parts, (pattern,)), decode, shown)


CIFAR100_RECORDS = records(100, {"train": r"train\.bin", "test": r"test\.bin"}, skipped=1)
CIFAR10_RECORDS = records(10, {"train": r"data_batch_[1-5]\.bin", "test": r"test_batch\.bin"})
TINY_LISTS = ("wnids.txt", "{words.txt,wnids.txt}")  # without the words, classes are called by their ids
BACKGROUND, EVALUATION = "background", "evaluation"

_ALL = (
    DataSet(
        "cifar100",
        "CIFAR-100",
        (32, 32, 3),
        {"train": 50_000, "test": 10_000},
        (
            _strips("cifar100", 100),
            Layout(
                "official binary files",
                {part: (f"{{cifar-100-binary,cifar100}}/{part}.bin",) for part in ("train", "test")},
                CIFAR100_RECORDS,
                "cifar-100-binary/train.bin and cifar-100-binary/test.bin",
            ),
            _shared(
                "official archive",
                "{,cifar100/}cifar-100-binary.tar.gz",
                ("train", "test"),
                CIFAR100_RECORDS,
                "cifar-100-binary.tar.gz",
            ),
        ),
        CIFAR_TERMS,
        CIFAR_REPORT,
    ),
    DataSet(
        "cifar10",
        "CIFAR-10",
        (32, 32, 3),
        {"train": 50_000, "test": 10_000},
        (
            Layout(
                "official binary files",
                {
                    "train": tuple(f"{{cifar-10-batches-bin,cifar10}}/data_batch_{i}.bin" for i in range(1, 6)),
                    "test": ("{cifar-10-batches-bin,cifar10}/test_batch.bin",),
                },
                CIFAR10_RECORDS,
                "cifar-10-batches-bin/data_batch_1.bin … data_batch_5.bin and test_batch.bin",
            ),
            _shared(
                "official archive",
                "{,cifar10/}cifar-10-binary.tar.gz",
                ("train", "test"),
                CIFAR10_RECORDS,
                "cifar-10-binary.tar.gz",
            ),
            _strips("cifar10", 10),
        ),
        CIFAR_TERMS,
        CIFAR_REPORT,
    ),
    DataSet(
        "mnist",
        "MNIST",
        (28, 28, 1),
        {"train": 60_000, "test": 10_000},
        (_idx("IDX files", "mnist"), _idx("torchvision's IDX files", "MNIST/raw")),
        "usually given as CC BY-SA 3.0",
        "Y. LeCun, C. Cortes, C. Burges. The MNIST database of handwritten digits, 1998",
        balanced=False,
    ),
    DataSet(
        "fashion-mnist",
        "Fashion-MNIST",
        (28, 28, 1),
        {"train": 60_000, "test": 10_000},
        (
            _idx("IDX files", "fashion-mnist"),
            _idx("torchvision's IDX files", "FashionMNIST/raw"),
            _idx("Debian's IDX files", "fashion-mnist", "/usr/share/datasets"),
        ),
        "MIT (Zalando)",
        "H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset. arXiv:1708.07747, 2017",
        hint="install the Debian package dataset-fashion-mnist",
    ),
    DataSet(
        "svhn",
        "SVHN, cropped digits",
        (32, 32, 3),
        {"train": 73_257, "test": 26_032},
        (
            Layout(
                "official MATLAB files",
                {part: (f"{{svhn/,SVHN/,}}{part}_32x32.mat",) for part in ("train", "test")},
                matlab,
                "svhn/train_32x32.mat and svhn/test_32x32.mat",
            ),
            _strips("svhn", 10),
        ),
        "non-commercial use only",
        "Y. Netzer et al. Reading Digits in Natural Images with Unsupervised Feature Learning, 2011",
        balanced=False,
    ),
    DataSet(
        "notmnist",
        "notMNIST (small)",
        (28, 28, 1),
        {"all": 18_724},
        (
            _shared(
                "archive",
                "{notmnist/,}notMNIST_small.{tar.xz,tar.gz,tar}",
                ("all",),
                notmnist,
                "notmnist/notMNIST_small.tar.xz or .tar.gz",
            ),
            _shared(
                "folder per class",
                "{,notmnist/}notMNIST_small/[A-J]/*.png",
                ("all",),
                notmnist,
                "notMNIST_small/A … J/*.png",
            ),
        ),
        "no formal licence; glyphs of public fonts",
        "Y. Bulatov. notMNIST dataset, 2011",
        balanced=False,
    ),
    DataSet(
        "omniglot",
        "Omniglot",
        (105, 105, 1),
        {BACKGROUND: 19_280, EVALUATION: 13_180},
        (
            Layout(
                "archives",
                {
                    part: (f"{{omniglot/,omniglot-py/,}}images_{part}.{{tar.xz,tar.gz,zip}}",)
                    for part in (BACKGROUND, EVALUATION)
                },
                omniglot,
                "omniglot/images_background and omniglot/images_evaluation, each .tar.xz, .tar.gz or .zip",
            ),
            Layout(
                "folders",
                {part: (f"{{omniglot/,omniglot-py/,}}images_{part}/*/*/*.png",) for part in (BACKGROUND, EVALUATION)},
                omniglot,
                "omniglot/images_{background,evaluation}/alphabet/characterNN/*.png",
            ),
        ),
        "MIT (Brenden Lake)",
        "B. Lake, R. Salakhutdinov, J. Tenenbaum. Human-level concept learning through probabilistic program "
        "induction. Science 350, 2015",
    ),
    DataSet(
        "tinyimagenet",
        "TinyImageNet-200",
        (64, 64, 3),
        {"train": 100_000, "val": 10_000},
        (
            _shared(
                "official archive",
                "{,tiny-imagenet-200/}tiny-imagenet-200.zip",
                ("train", "val"),
                tinyimagenet,
                "tiny-imagenet-200.zip",
            ),
            Layout(
                "folders",
                {
                    "train": (
                        "tiny-imagenet-200/train/*/images/*.JPEG",
                        *(f"tiny-imagenet-200/{name}" for name in TINY_LISTS),
                    ),
                    "val": (
                        "tiny-imagenet-200/val/images/*.JPEG",
                        "tiny-imagenet-200/val/val_annotations.txt",
                        *(f"tiny-imagenet-200/{name}" for name in TINY_LISTS),
                    ),
                },
                tinyimagenet,
                "tiny-imagenet-200/{train,val,wnids.txt,words.txt}, unpacked",
            ),
            Layout(
                "archives",
                {
                    "train": (
                        "{tiny-imagenet-200/,}tiny-imagenet-200_train{,_first200}.tar.{xz,gz}",
                        "{tiny-imagenet-200/,}tiny-imagenet-200_val.tar.{xz,gz}",
                    ),
                    "val": ("{tiny-imagenet-200/,}tiny-imagenet-200_val.tar.{xz,gz}",),
                },
                tinyimagenet,
                "tiny-imagenet-200/tiny-imagenet-200_{train,val}.tar.xz",
            ),
        ),
        "ImageNet's: non-commercial research and education only",
        "Stanford CS231N. Tiny ImageNet visual recognition challenge, 2015; J. Deng et al. ImageNet. CVPR 2009",
    ),
)

SETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _ALL}
"""Every data set by name."""
