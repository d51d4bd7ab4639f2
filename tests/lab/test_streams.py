"""The streams: sizes, disjoint splits, local labels, orders, and readers of the data files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from examples import cifar100_split
from halrp.errors import HalrpError, SettingError
from halrp.lab.streams import DataDamaged, DataMissing, Split, Stream, Task, cifar100, data, digits, load
from halrp.lab.streams.stream import shares

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
ORDERS = "ABCDE"


def rows(x: torch.Tensor) -> set[bytes]:
    """Return the images as a set, to ask whether two splits share one."""
    return {row.numpy().tobytes() for row in x}


def splits(task: Task) -> tuple[Split, Split, Split]:
    return task.train, task.val, task.test


# --- What holds for any stream -------------------------------------------------------------------------------


def test_an_unknown_stream_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"'digit'.*nearest name is 'digits'"):
        load("digit")


def test_an_unknown_order_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match=r"no order 'b'.*A, B, C, D, E"):
        load("digits", order="b")


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(SettingError, match="fraction"):
        load("digits", fraction=fraction)


@pytest.mark.parametrize(
    ("fraction", "kept", "held"), [(1.0, 5000, 1000), (0.5, 2500, 500), (0.25, 1250, 250), (0.05, 250, 50)]
)
def test_shares_are_those_of_the_protocol(fraction: float, kept: int, held: int) -> None:
    assert shares("any", 5000, fraction, 0.2) == (kept, held)


def test_shares_round_up_what_is_kept_and_down_what_validates() -> None:
    assert shares("any", 101, 0.5, 0.2) == (51, 10)
    assert shares("any", 5000, 0.07, 0.2) == (350, 70)  # 0.07 · 5000 > 350 in binary


def test_a_fraction_that_leaves_nothing_to_validate_is_refused_with_the_least_that_does() -> None:
    with pytest.raises(SettingError, match=r"use at least 0\.0500"):
        shares("any", 100, 0.04, 0.2)
    assert shares("any", 100, 0.05, 0.2) == (5, 1)


# --- digits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_digits_orders_are_different_permutations_of_the_same_tasks(order: str) -> None:
    known = digits.orders()
    assert sorted(known[order]) == list(range(10))
    assert len({tuple(known[each]) for each in ORDERS}) == 5
    assert known["A"] == list(range(10))


def test_digits_tasks_have_float_images_and_all_local_labels() -> None:
    for task in load("digits"):
        assert task.classes == 5
        for x, y in (task.train, task.val, task.test):
            assert x.dtype == torch.float32
            assert x.shape == (len(y), 1, 8, 8)
            assert x.is_contiguous()
            assert y.dtype == torch.int64
            assert y.unique().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 1])
def test_digits_have_the_stated_number_of_images_of_every_class(seed: int) -> None:
    low, high = load("digits", seed=seed)[:2]
    for task in (low, high):
        assert task.train.y.bincount().tolist() == [88] * 5
        assert task.val.y.bincount().tolist() == [26] * 5
        assert min(task.test.y.bincount().tolist()) >= 60
    assert sum(len(split.y) for task in (low, high) for split in splits(task)) == 1797


def test_digits_train_val_and_test_hold_different_images() -> None:
    parts = digits.draw(np.arange(1797) % 10, seed=0, fraction=1.0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1797))


def test_digits_tasks_are_the_upright_images_transformed_the_same_way_in_every_split() -> None:
    stream = load("digits", seed=1)
    assert not torch.equal(stream[6].train.x, stream[8].train.x)  # the two permutations differ
    for identity in range(10):
        upright, task = stream[identity % 2], stream[identity]
        for source, image in zip(splits(upright), splits(task), strict=True):
            if "permuted" in task.name:
                pixels = np.random.RandomState(int(task.name[-1])).permutation(64)
                inverse = torch.from_numpy(np.argsort(pixels))
                back = image.x.flatten(1)[:, inverse].view(-1, 1, 8, 8)
            else:
                quarters = {"upright": 0, "quarter-turn": 1, "half-turn": 2}[task.name.split("-", 2)[2]]
                back = torch.rot90(image.x, -quarters, dims=(2, 3))
            assert torch.equal(back, source.x)
            assert torch.equal(image.y, source.y)


def test_digits_are_normalised() -> None:
    low, high = load("digits")[:2]
    x = torch.cat([split.x for task in (low, high) for split in splits(task)])
    # The constants have four digits.
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


def test_digits_are_a_function_of_the_seed_and_not_of_the_order() -> None:
    by_identity = load("digits", order="A", seed=2)
    for task in load("digits", order="B", seed=2):
        same = by_identity[task.identity]
        assert same.name == task.name
        for one, other in zip(splits(same), splits(task), strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
    assert not torch.equal(load("digits", seed=3)[0].train.x, by_identity[0].train.x)


def test_a_fraction_of_digits_keeps_a_part_of_training_and_validation_and_all_of_the_test() -> None:
    whole, part = load("digits")[0], load("digits", fraction=0.25)[0]
    assert rows(part.train.x) | rows(part.val.x) < rows(whole.train.x) | rows(whole.val.x)
    assert (len(part.train.y), len(part.val.y)) == (5 * 23, 5 * 6)  # 29 of 114 images of a class, 26/114 of them
    assert torch.equal(part.test.x, whole.test.x)


def test_loading_leaves_the_global_generators_as_they_were() -> None:
    before, before_numpy = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002  (read, not used)
    list(load("digits"))
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(np.random.get_state()) == before_numpy  # noqa: NPY002


def test_a_stream_is_a_sequence() -> None:
    stream = load("digits", order="C")
    assert len(stream) == 10
    assert [task.identity for task in stream] == list(stream.identities)
    assert stream[-1].identity == stream.identities[-1]
    assert [task.identity for task in stream[2:4]] == list(stream.identities[2:4])
    assert len({task.name for task in stream}) == 10
    with pytest.raises(IndexError):
        stream[10]


# --- CIFAR-100, with files made here -------------------------------------------------------------------------


def pictures(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Make `count` random images of each class, in random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
    return random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), labels


def write_binary(root: Path, part: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True, exist_ok=True)
    coarse = np.zeros_like(labels)
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    (folder / f"{part}.bin").write_bytes(np.column_stack([coarse, labels, planes]).tobytes())
    return folder / f"{part}.bin"


def write_strips(root: Path, part: str, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    from PIL import Image

    folder = root / "cifar100" / part
    folder.mkdir(parents=True)
    for label in range(100):
        strip = Image.fromarray(images[labels == label].reshape(-1, 32, 3))
        strip.save(folder / f"{label:02d}_some_name.webp", lossless=True)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HALRP_DATA", raising=False)
    return tmp_path / "cache" / "halrp"


@pytest.fixture
def made(tmp_path: Path, own_cache: Path) -> Path:
    """Return a data directory with ten training images and two test images of each class."""
    write_binary(tmp_path / "made", "train", *pictures(10, seed=0))
    write_binary(tmp_path / "made", "test", *pictures(2, seed=1))
    return tmp_path / "made"


def test_the_binary_reader_gives_back_what_was_written(made: Path) -> None:
    for found, (images, labels) in zip(data.cifar100(made), (pictures(10, seed=0), pictures(2, seed=1)), strict=True):
        assert np.array_equal(found.images, images)
        assert np.array_equal(found.labels, labels)


def test_the_strip_reader_gives_back_what_was_written_class_by_class(tmp_path: Path, own_cache: Path) -> None:
    images, labels = pictures(2, seed=0)
    write_strips(tmp_path / "strips", "train", images, labels)
    write_strips(tmp_path / "strips", "test", images, labels)
    train, _ = data.cifar100(tmp_path / "strips")
    order = np.argsort(labels, kind="stable")
    assert np.array_equal(train.images, images[order])
    assert np.array_equal(train.labels, labels[order])


def test_a_second_read_maps_the_kept_arrays(made: Path, own_cache: Path) -> None:
    first, second = data.cifar100(made)[0], data.cifar100(made)[0]
    assert isinstance(second.images, np.memmap)
    assert np.array_equal(first.images, second.images)
    assert len(list((own_cache / "decoded").iterdir())) == 2  # train and test, and nothing unfinished


def test_changed_files_are_decoded_anew(made: Path) -> None:
    data.cifar100(made)
    images, labels = pictures(10, seed=5)
    write_binary(made, "train", images, labels)
    assert np.array_equal(data.cifar100(made)[0].images, images)


def test_damaged_kept_arrays_are_replaced(made: Path, own_cache: Path) -> None:
    whole = data.cifar100(made)[0].images.copy()
    for kept in own_cache.glob("decoded/*/images.npy"):
        kept.write_bytes(kept.read_bytes()[:1000])
    assert np.array_equal(data.cifar100(made)[0].images, whole)
    assert isinstance(data.cifar100(made)[0].images, np.memmap)


def test_a_kept_array_with_pickled_objects_is_never_unpickled(made: Path, own_cache: Path) -> None:
    data.cifar100(made)
    for kept in own_cache.glob("decoded/*/labels.npy"):
        np.save(kept, np.array([print], dtype=object), allow_pickle=True)
    assert data.cifar100(made)[0].labels.dtype == np.uint8


def test_a_cache_that_cannot_be_written_is_only_a_warning(made: Path, own_cache: Path) -> None:
    own_cache.parent.write_text("a file where the directory should be")
    with pytest.warns(UserWarning, match="XDG_CACHE_HOME"):
        train, _ = data.cifar100(made)
    assert len(train.labels) == 1000


def test_missing_data_names_the_set_the_directory_the_layout_and_the_remedy(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        load("cifar100-split", data=tmp_path)
    assert isinstance(caught.value, HalrpError)
    for part in ("CIFAR-100", str(tmp_path), "NN_name.webp", "cifar-100-binary/train.bin", "data=", "HALRP_DATA"):
        assert part in str(caught.value)


def test_the_data_directory_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.data_directory() == own_cache / "data"
    monkeypatch.setenv("HALRP_DATA", str(tmp_path / "environment"))
    assert data.data_directory() == tmp_path / "environment"
    assert data.data_directory(tmp_path / "argument") == tmp_path / "argument"


def test_a_truncated_binary_file_is_damaged(made: Path) -> None:
    path = made / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataDamaged, match=r"train\.bin has 3073999 bytes"):
        data.cifar100(made)


def test_a_data_set_that_lost_images_is_damaged(made: Path) -> None:
    path = made / "cifar-100-binary" / "train.bin"
    path.write_bytes(path.read_bytes()[:-3074])
    with pytest.raises(DataDamaged, match=r"has 9 images of class \d+ and 10 of class \d+"):
        data.cifar100(made)


def test_a_strip_that_is_no_picture_is_damaged(tmp_path: Path, own_cache: Path) -> None:
    for part in ("train", "test"):
        write_strips(tmp_path, part, *pictures(1, seed=0))
    (tmp_path / "cifar100" / "train" / "03_some_name.webp").write_bytes(b"not a picture")
    with pytest.raises(DataDamaged, match="03_some_name"):
        data.cifar100(tmp_path)


# --- cifar100-split ------------------------------------------------------------------------------------------


def test_cifar_orders_and_class_lists_are_permutations_and_a_partition() -> None:
    known = data.facts("task_orders")
    orders, classes = known["orders"]["cifar100_split"], known["classes"]["cifar100_split"]
    assert "".join(orders) == ORDERS
    assert all(sorted(order) == list(range(10)) for order in orders.values())
    assert sorted(one for task in classes.values() for one in task) == list(range(100))


def test_cifar_split_seeds_are_the_first_draws_from_the_papers_master_seed() -> None:
    drawn = np.random.RandomState(111111).randint(1, 10000, size=5)
    assert drawn.tolist() == list(cifar100.SPLIT_SEEDS)


def test_a_cifar_seed_that_is_no_repeat_is_refused(made: Path) -> None:
    with pytest.raises(SettingError, match=r"seed=5.*0 to 4"):
        load("cifar100-split", seed=5, data=made)


def test_cifar_tasks_follow_the_protocol_step_by_step(made: Path) -> None:
    train, test = pictures(10, seed=0), pictures(2, seed=1)
    random = np.random.RandomState(3254)
    chosen = []
    for identity in range(10):
        fine = range(10 * identity, 10 * identity + 10)
        pool, tested = (np.concatenate([np.flatnonzero(part[1] == label) for label in fine]) for part in (train, test))
        random.shuffle(pool)
        chosen.append((pool[10:50], pool[:10], tested))  # half of 100 images, a fifth of them for validation
    stream = load("cifar100-split", order="D", seed=2, fraction=0.5, data=made)
    assert stream.identities == (5, 8, 2, 9, 0, 4, 3, 7, 6, 1)
    mean, deviation = np.array([0.507, 0.487, 0.441]), np.array([0.267, 0.256, 0.276])
    for task in stream:
        for split, mine, (images, labels) in zip(
            splits(task), chosen[task.identity], (train, train, test), strict=True
        ):
            expected = ((images[mine] / 255 - mean) / deviation).transpose(0, 3, 1, 2)
            # float32 against float64: values up to 2.2, a few roundings of 6e-8 each.
            np.testing.assert_allclose(split.x.numpy(), expected, atol=2e-6)
            assert split.y.tolist() == (labels[mine] - 10 * task.identity).tolist()


def test_cifar_splits_are_contiguous_float_images_with_local_labels(made: Path) -> None:
    task = load("cifar100-split", data=made)[3]
    assert (task.name, task.identity, task.classes) == ("classes-30-39", 3, 10)
    for x, y in splits(task):
        assert x.dtype == torch.float32
        assert x.shape == (len(y), 3, 32, 32)
        assert x.is_contiguous()
        assert y.dtype == torch.int64


# --- The real data, when they are beside the repository ------------------------------------------------------


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of the real data; decoded images are kept in pytest's own cache from run to run."""
    if not (SHARED / "cifar100" / "train").is_dir():
        pytest.skip("the real CIFAR-100 is not in ../shared/data beside the repository")
    cache = request.config.cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.mkdir("data") if cache else tmp_path_factory.mktemp("cache")))
        yield SHARED


def test_decoded_cifar_has_the_published_checksums(real: Path) -> None:
    sums = [hashlib.sha256(array.tobytes()).hexdigest() for part in data.cifar100(real) for array in part]
    assert sums == [
        "2aa2e92a742ec0fbd361b0b1386394899dfac5a05c448330d3371fd9b63b3e87",
        "24e451cae1d0bb4af05bb556f43f7442043340bdc64d9e1896c2ad19efa810d1",
        "2716d826d85ee9ca7f948fb4dc3b3d7515225d1a436d1c4b7e6975855da3d9ee",
        "7335f3ca04ad4876c5479947470a13b869b8fe2143b1077bb51b95a0c23892b1",
    ]


@pytest.mark.parametrize(
    ("fraction", "train", "val"), [(1.0, 4000, 1000), (0.5, 2000, 500), (0.25, 1000, 250), (0.05, 200, 50)]
)
def test_real_cifar_tasks_have_the_published_sizes(real: Path, fraction: float, train: int, val: int) -> None:
    task = load("cifar100-split", fraction=fraction, data=real)[0]
    assert [len(split.y) for split in splits(task)] == [train, val, 1000]


def test_real_cifar_splits_share_no_image_and_small_fractions_are_part_of_large_ones(real: Path) -> None:
    whole, part = (load("cifar100-split", seed=1, fraction=fraction, data=real)[6] for fraction in (1.0, 0.05))
    train, val, test = (rows(split.x) for split in (whole.train, whole.val, whole.test))
    assert not train & val
    assert not train & test
    assert not val & test
    assert rows(part.train.x) | rows(part.val.x) <= train | val


def test_real_cifar_is_the_same_for_every_order_and_differs_between_repeats(real: Path) -> None:
    def task_three(stream: Stream) -> torch.Tensor:
        return stream[stream.identities.index(3)].train.x

    first = task_three(load("cifar100-split", fraction=0.05, data=real))
    assert torch.equal(first, task_three(load("cifar100-split", order="E", fraction=0.05, data=real)))
    assert not torch.equal(first, task_three(load("cifar100-split", seed=1, fraction=0.05, data=real)))


def test_the_example_run_on_real_images_learns_and_skips_what_has_a_record(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--data", str(real), "--results", str(tmp_path), "--only", "budget", "--fractions", "0.05"]
    command += ["--tasks", "2", "--epochs", "2"]
    cifar100_split.main(command)
    assert len(list(tmp_path.glob("*.json"))) == 1
    first = capsys.readouterr().out
    cifar100_split.main(command)
    second = capsys.readouterr().out
    assert "classes-10-19" in first
    assert "classes-10-19" not in second, "a finished cell is not run again"
    assert second.strip() == first.splitlines()[-1]
