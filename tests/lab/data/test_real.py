"""The real data sets, when they are beside the repository: published checksums, whole or subset."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from halrp.lab.data import read, status

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not (SHARED / "cifar100").is_dir(), reason="the real data are not in ../shared/data beside the repository"
)


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of the real data; decoded images are kept in pytest's own cache from run to run."""
    cache = request.config.cache if hasattr(request.config, "cache") else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.mkdir("data") if cache else tmp_path_factory.mktemp("cache")))
        yield SHARED


def sha(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_decoded_cifar100_has_the_published_checksums(real: Path) -> None:
    sums = [
        sum_
        for part in read("cifar100", real).parts.values()
        for sum_ in (sha(part.images), sha(part.labels.astype(np.uint8)))
    ]
    assert sums == [
        "2aa2e92a742ec0fbd361b0b1386394899dfac5a05c448330d3371fd9b63b3e87",
        "24e451cae1d0bb4af05bb556f43f7442043340bdc64d9e1896c2ad19efa810d1",
        "2716d826d85ee9ca7f948fb4dc3b3d7515225d1a436d1c4b7e6975855da3d9ee",
        "7335f3ca04ad4876c5479947470a13b869b8fe2143b1077bb51b95a0c23892b1",
    ]


@pytest.mark.parametrize(
    ("name", "complete"), [("cifar100", True), ("cifar10", False), ("mnist", True), ("svhn", False)]
)
def test_decoded_images_have_the_published_checksums(name: str, complete: bool, real: Path) -> None:
    result = status(name, real, verify=True)
    assert (result.verified, result.complete) == ("yes", complete)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "complete"), [("notmnist", True), ("omniglot", True), ("tinyimagenet", False)])
def test_decoded_pictures_of_archives_have_the_published_checksums(name: str, complete: bool, real: Path) -> None:
    result = status(name, real, verify=True)
    assert (result.verified, result.complete) == ("yes", complete)


@pytest.mark.slow
def test_tinyimagenets_classes_are_ranks_of_sorted_ids(real: Path) -> None:
    result = read("tinyimagenet", real)
    assert len(result.classes) == 200
    assert result.classes[0] == "goldfish"  # n01443537, the smallest id
    for part, count in (("train", 200), ("val", 50)):
        assert np.bincount(result.parts[part].labels).tolist() == [count] * 200
    assert result.parts["val"].labels[:3].tolist() != [0, 0, 0], "validation pictures are in the order of their numbers"


@pytest.mark.slow
def test_omniglots_characters_have_twenty_drawings_each(real: Path) -> None:
    result = read("omniglot", real)
    assert [len(result.part_classes[part]) for part in ("background", "evaluation")] == [964, 659]
    assert set(np.unique(result.parts["background"].images[:20]).tolist()) == {0, 255}
