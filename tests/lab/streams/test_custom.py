"""Streams of a user's own data: what is drawn, what is shown, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from halrp.errors import DataError, LabelError, SettingError
from halrp.lab import streams
from halrp.lab.data import DataDamaged, DataMissing, Images
from halrp.lab.registry import StreamEntry
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.streams import Stream, Task
from halrp.lab.streams.custom import permutation, permuted, rotate, rotated, split_by_class, stream_from_folder
from halrp.lab.streams.stream import Normal

PER_CLASS = 20


def numbered(classes: Sequence[int] = range(6), per_class: int = PER_CLASS) -> tuple[Tensor, Tensor]:
    """Float images of 1×4×4 that differ by their first pixel, their number, with the classes taking turns."""
    y = torch.tensor(list(classes)).repeat(per_class)
    x = torch.rand(len(y), 1, 4, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0] = torch.arange(len(y))
    return x, y


def noise(count: int = 60, classes: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    """Bytes of 3×side×side."""
    x = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(count) % classes


def numbers(task: Task) -> tuple[list[int], list[int], list[int]]:
    """The numbers of a task's images that train, validate and test."""
    train, val, test = (sorted(split.x[:, 0, 0, 0].int().tolist()) for split in (task.train, task.val, task.test))
    return train, val, test


def same(item: Task, other: Task) -> bool:
    pairs = zip((item.train, item.val, item.test), (other.train, other.val, other.test), strict=True)
    return all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in pairs)


# --- Split by class ------------------------------------------------------------------------------------------


def test_classes_are_dealt_by_label_with_local_labels_and_disjoint_parts() -> None:
    x, y = numbered([7, 3, -2, 40, 5, 9])
    stream = split_by_class((x, y), 2)
    assert stream.shape == (1, 4, 4)
    assert [task.name for task in stream] == ["task-0", "task-1", "task-2"]
    for task, classes in zip(stream, [[-2, 3], [5, 7], [9, 40]], strict=True):
        assert task.classes == 2
        for split in (task.train, task.val, task.test):
            original = y[split.x[:, 0, 0, 0].long()]
            assert torch.equal(original, torch.tensor(classes)[split.y])
            assert torch.equal(split.x, x[split.x[:, 0, 0, 0].long()])  # floats are taken as they are
        train, val, test = numbers(task)
        assert sorted(train + val + test) == [i for i, label in enumerate(y.tolist()) if label in classes]
        # Of 20 images of a class 4 test, 3 of the other 16 validate, and 13 train.
        assert [split.y.bincount().tolist() for split in (task.train, task.val, task.test)] == [
            [13] * 2,
            [3] * 2,
            [4] * 2,
        ]


def test_images_depend_on_the_seed_and_not_on_the_order() -> None:
    data = numbered()
    by_identity = split_by_class(data, 2)
    shuffled = split_by_class(data, 2, order=[2, 0])
    assert split_by_class(data, 2, order=shuffled.order).identities == shuffled.identities
    assert (shuffled.order, shuffled.identities) == ("2,0", (2, 0))
    assert all(same(task, by_identity[task.identity]) for task in shuffled)
    assert split_by_class(data, 2, order="C").identities == tuple(np.random.RandomState(2).permutation(3))
    assert numbers(split_by_class(data, 2, seed=1)[0]) != numbers(by_identity[0])


def test_a_fraction_keeps_some_of_the_training_images_and_all_that_test() -> None:
    data = numbered()
    whole, part = (numbers(split_by_class(data, 3, fraction=fraction)[1]) for fraction in (1.0, 0.5))
    assert (len(part[0]), len(part[1])) == (3 * 7, 3 * 1)  # 8 of 16 images of a class, a fifth of them, rounded down
    assert set(part[0] + part[1]) < set(whole[0] + whole[1])
    assert part[2] == whole[2]


def test_given_test_data_are_all_used() -> None:
    x, y = numbered()
    task = split_by_class((x, y), tasks=2, test=(x + 1000, y))[0]
    train, val, test = numbers(task)
    assert len(train) + len(val) == len(test) == 3 * PER_CLASS
    assert min(test) >= 1000


def test_classes_can_be_dealt_at_random_by_number_or_by_list() -> None:
    data = numbered(range(7))

    def classes(stream: Stream) -> list[list[int]]:
        return [sorted(set(data[1][numbers(task)[0]].tolist())) for task in stream]

    assert [len(mine) for mine in classes(split_by_class(data, 5))] == [5, 2]
    assert [len(mine) for mine in classes(split_by_class(data, tasks=3))] == [3, 2, 2]
    assert classes(split_by_class(data, tasks=[[6, 0], [2, 3]])) == [[0, 6], [2, 3]]
    drawn = np.random.RandomState(5).permutation(7)
    assert classes(split_by_class(data, 4, assign=5)) == [sorted(drawn[:4]), sorted(drawn[4:])]
    first = split_by_class(data, tasks=[[6, 0]], class_names="abcdefg")[0]
    assert first.class_names == ("g", "a")
    assert set(data[1][first.train.x[first.train.y == 0][:, 0, 0, 0].long()].tolist()) == {6}


def test_bytes_are_normalised_with_the_statistics_of_the_images_that_do_not_test() -> None:
    x, y = noise()
    stream = split_by_class((x, y), 3)
    task = stream[0]
    learned = torch.cat([task.train.x, task.val.x]).double()
    torch.testing.assert_close(learned.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(learned.std((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-6)
    mean, deviation = (torch.tensor(value).view(3, 1, 1) for value in task.normal)
    pixels = (task.test.x * deviation + mean) * 255
    assert {image.numpy().tobytes() for image in pixels.round().byte()} < {image.numpy().tobytes() for image in x}
    assert split_by_class((x, y), 3, fraction=0.5)[0].normal == task.normal
    given = split_by_class((x, y), 3, normal=Normal((0.5,), (0.25,)))[0]
    torch.testing.assert_close((given.train.x * 0.25 + 0.5) * 255, (task.train.x * deviation + mean) * 255)


# --- Kinds of data -------------------------------------------------------------------------------------------


class Pictures(Dataset[tuple[object, int]]):
    """A data set in the manner of torchvision's: `targets`, `classes`, and items read one at a time."""

    classes = ("ant", "bee", "cat")

    def __init__(self, images: Tensor, labels: Tensor, kind: Callable[[np.ndarray[Any, Any]], object]) -> None:
        self.images, self.targets, self.kind, self.read = images, labels.tolist(), kind, 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[object, int]:
        self.read += 1
        return self.kind(self.images[index].permute(1, 2, 0).numpy()), self.targets[index]


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "images": lambda x, y: Images(x.permute(0, 2, 3, 1).numpy(), y.numpy()),
    "arrays": lambda x, y: (x.permute(0, 2, 3, 1).numpy()[::-1], y.numpy()[::-1]),
    "tensor data set": TensorDataset,
    "list": lambda x, y: list(zip(x, y, strict=True)),
    "pil": lambda x, y: Pictures(x, y, Image.fromarray),
    "array items": lambda x, y: Pictures(x, y, np.array),
    "tensor items": lambda x, y: Pictures(x, y, lambda image: torch.from_numpy(image).permute(2, 0, 1)),
    "subset": lambda x, y: Subset(Pictures(x, y, Image.fromarray), range(len(x))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_stream(kind: str) -> None:
    x, y = noise()
    data = KINDS[kind](x, y)
    if kind == "arrays":
        x, y = x.flip(0), y.flip(0)
    expected, task = split_by_class((x, y), 3)[0], split_by_class(data, 3)[0]
    assert same(task, expected)
    assert task.train.x.is_contiguous()


def test_labels_and_names_of_a_data_set_are_found_without_reading_its_images() -> None:
    data = Pictures(*noise(), Image.fromarray)
    stream = split_by_class(data, 3, normal=Normal((0.5,), (0.5,)))
    assert data.read == 1  # for the shape
    assert stream[0].class_names == ("ant", "bee", "cat")
    assert data.read < 2 * len(data)


def test_labels_are_read_from_the_items_where_the_data_set_transforms_them() -> None:
    class Turned(Pictures):
        target_transform = staticmethod(int.__neg__)

        def __getitem__(self, index: int) -> tuple[object, int]:
            image, label = super().__getitem__(index)
            return image, -label

    task = split_by_class(Turned(*noise(), Image.fromarray), 3)[0]
    assert same(task, split_by_class((noise()[0], -noise()[1]), 3)[0])
    assert task.class_names == ()


def test_grey_images_and_arrays_need_no_channel() -> None:
    x, y = noise()
    for data in ((x[:, 0], y), (x[:, 0].numpy(), y), Pictures(x, y, lambda image: Image.fromarray(image[..., 0]))):
        assert same(split_by_class(data, 3)[0], split_by_class((x[:, :1], y), 3)[0])


# --- Folders -------------------------------------------------------------------------------------------------


def write(folder: Path, colours: dict[str, tuple[int, int, int]], count: int = 10, suffix: str = "png") -> None:
    """Write pictures of 12×8: grey, with a square of 8×8 in the middle that has the class's colour."""
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            picture = Image.new("RGB", (12, 8), (128, 128, 128))
            picture.paste((*colour[:2], number), (2, 0, 10, 8))
            picture.save(folder / name / f"{number}.{suffix}")


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "black": (0, 0, 0)}


def test_a_folder_of_pictures_is_cut_around_the_centre_and_named_by_its_folders(tmp_path: Path) -> None:
    write(tmp_path / "mine", COLOURS)
    (tmp_path / "mine" / "README.md").write_text("where these come from")
    (tmp_path / "mine" / "red" / ".hidden").write_text("")
    stream = stream_from_folder(tmp_path / "mine", 2, size=8, normal=Normal((0.0,), (1.0,)))
    assert (stream.name, stream.shape, len(stream)) == ("mine", (3, 8, 8), 2)
    assert [task.class_names for task in stream] == [("black", "blue"), ("green", "red")]
    red = stream[1].train.x[stream[1].train.y == 1]
    assert bool((red[:, 0] == 1).all())
    assert bool((red[:, 1] == 0).all())
    assert stream_from_folder(tmp_path / "mine", 2, size=4, grey=True).shape == (1, 4, 4)


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    write(tmp_path / "train", COLOURS, count=10)
    write(tmp_path / "val", COLOURS, count=3)
    task = stream_from_folder(tmp_path, tasks=2)[0]
    assert [len(split.y) for split in (task.train, task.val, task.test)] == [16, 4, 6]
    write(tmp_path / "test", COLOURS, count=2)
    task = stream_from_folder(tmp_path, tasks=2)[0]  # 13 pictures of a class to learn from
    assert [len(split.y) for split in (task.train, task.val, task.test)] == [22, 4, 4]


def test_a_folder_per_task(tmp_path: Path) -> None:
    write(tmp_path / "winter", {"day": (255, 0, 0), "night": (0, 0, 0)}, suffix="webp")
    write(tmp_path / "autumn", {"day": (0, 255, 0), "dusk": (9, 9, 0), "night": (0, 0, 0)}, suffix="bmp")
    stream = stream_from_folder(tmp_path, tasks="folders", size=8)
    assert [(task.name, task.class_names) for task in stream] == [
        ("autumn", ("day", "dusk", "night")),
        ("winter", ("day", "night")),
    ]
    with pytest.raises(SettingError, match="classes_per_task"):
        stream_from_folder(tmp_path, 2, tasks="folders")


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    write(tmp_path, COLOURS)
    picture, exif = Image.new("RGB", (8, 8), (0, 0, 0)), Image.Exif()
    picture.paste((255, 255, 255), (0, 0, 8, 4))
    exif[0x0112] = 3  # upside down
    for number in range(10):
        picture.save(tmp_path / "red" / f"{number}.png", exif=exif)
    task = stream_from_folder(tmp_path, 4, size=8, normal=Normal((0.0,), (1.0,)))[0]
    photographs = task.train.x[task.train.y == 3]
    assert bool((photographs[:, :, :4] == 0).all())
    assert bool((photographs[:, :, 4:] == 1).all())


# --- Permuted and rotated ------------------------------------------------------------------------------------


def test_a_permutation_moves_the_values_of_every_part_alike() -> None:
    data = noise()
    stream = permuted(data, tasks=3, seed=2)
    plain = split_by_class(data, 3, seed=2, normal=stream[0].normal)[0]
    assert len(stream[0].normal.mean) == 1
    assert same(stream[0], plain)
    for task in stream[1:]:
        positions = torch.from_numpy(permutation(task.identity, 3 * 8 * 8))
        assert sorted(positions.tolist()) == list(range(192))
        for split, source in zip((task.train, task.val, task.test), (plain.train, plain.val, plain.test), strict=True):
            assert torch.equal(split.x.flatten(1), source.x.flatten(1)[:, positions])
            assert torch.equal(split.y, source.y)
    assert not same(stream[1], stream[2])
    assert not same(permuted(data, seed=2, first_identity=False)[0], plain)


def test_quarter_turns_are_exact_and_counter_clockwise() -> None:
    data = noise()
    stream = rotated(data, class_names=["a", "b", "c"])
    plain = split_by_class(data, 3)[0]
    assert [task.name for task in stream] == ["rotated-0", "rotated-90", "rotated-180", "rotated-270"]
    for task in stream:
        assert task.class_names == ("a", "b", "c")
        assert torch.equal(task.test.x.rot90(-task.identity, (2, 3)), plain.test.x)
    corner = torch.zeros(1, 1, 4, 4)
    corner[0, 0, 0, 3] = 1  # top right goes to top left
    assert rotate(corner, 90)[0, 0, 0, 0] == 1


@pytest.mark.parametrize("quarters", range(4))
def test_other_angles_turn_the_same_way(quarters: int) -> None:
    x = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    # A millionth of a degree moves a pixel by less than 1e-7 of the side.
    torch.testing.assert_close(rotate(x, 90 * quarters + 1e-6), x.rot90(quarters, (2, 3)), rtol=0, atol=1e-5)


def test_images_that_are_not_square_keep_their_shape_and_their_right_angles() -> None:
    x = torch.zeros(1, 1, 5, 9)
    x[0, 0, 2, 5] = 1  # one to the right of the centre goes to one above it
    turned = rotate(x, 90)
    assert turned.shape == x.shape
    torch.testing.assert_close(turned[0, 0, 1, 4], torch.tensor(1.0), rtol=0, atol=1e-5)
    assert torch.equal(rotate(x, 180), x.rot90(2, (2, 3)))


def test_corners_take_the_fill_before_normalising_or_are_black_or_the_least_float() -> None:
    x, y = noise()
    task = rotated((x, y), angles=(45,), fill=0.25)[0]
    mean, deviation = (torch.tensor(value) for value in task.normal)
    torch.testing.assert_close(task.test.x[:, :, 0, 0], ((0.25 - mean) / deviation).expand(len(task.test.x), 3))
    black = rotated((x, y), angles=(45,))[0].test.x[:, :, 0, 0]
    torch.testing.assert_close(black, (-mean / deviation).expand(len(black), 3))
    least = rotated((x.float(), y), angles=(45,))[0].test.x[:, :, 0, 0]
    torch.testing.assert_close(least, split_by_class((x.float(), y), 3)[0].test.x.amin((2, 3)))


# --- In experiments ------------------------------------------------------------------------------------------


def test_a_registered_stream_runs_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    x = torch.randn(4, 1, 8, 8, generator=random)[y] + 0.1 * torch.randn(200, 1, 8, 8, generator=random)

    def load_mine(order: str, seed: int, fraction: float, data: object) -> Stream:
        return split_by_class((x, y), 2, name="mine", order=order, seed=seed, fraction=fraction)

    monkeypatch.setitem(streams.STREAMS, "mine", StreamEntry(load_mine, "Mine"))
    before = torch.get_rng_state()
    cell = Cell("stl", "mine", "digits-net", order="B", recipe={"epochs": 5, "batch": 16})
    rows = list(runner.run(cell))
    assert [row["identity"] for row in rows] == np.random.RandomState(1).permutation(2).tolist()
    assert min(rows[-1]["test"]) > 0.9
    assert torch.equal(torch.get_rng_state(), before)


# --- Refusals ------------------------------------------------------------------------------------------------

X, Y = numbered()
REFUSED: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (SettingError, "either classes_per_task or tasks", lambda: split_by_class((X, Y))),
    (SettingError, "either classes_per_task or tasks", lambda: split_by_class((X, Y), 2, tasks=3)),
    (SettingError, "6 classes do not make 7 tasks", lambda: split_by_class((X, Y), tasks=7)),
    (DataError, "'task-0' has 1 classes", lambda: split_by_class((X, Y), tasks=6)),
    (DataError, "'task-1' has 1 classes", lambda: split_by_class((X, Y), 5)),
    (SettingError, r"unknown: \[9\]", lambda: split_by_class((X, Y), tasks=[[0, 9]])),
    (SettingError, "order='b'", lambda: split_by_class((X, Y), 2, order="b")),
    (SettingError, "must name tasks 0 … 2", lambda: split_by_class((X, Y), 2, order=[0, 3])),
    (SettingError, "seed=-1", lambda: split_by_class((X, Y), 2, seed=-1)),
    (SettingError, "fraction=0.0", lambda: split_by_class((X, Y), 2, fraction=0.0)),
    (SettingError, "class 0' has 2 of 16 images", lambda: split_by_class((X, Y), 2, fraction=0.1)),
    (SettingError, "validation=1.0", lambda: split_by_class((X, Y), 2, validation=1.0)),
    (SettingError, "4 class_names for 6 classes", lambda: split_by_class((X, Y), 2, class_names="abcd")),
    (SettingError, "one positive deviation", lambda: split_by_class((X, Y), 2, normal=Normal((0.0,), (0.0,)))),
    (DataError, "class '0' has 5 images.*needs 6", lambda: split_by_class(numbered(per_class=5), 2)),
    (DataError, "needs many more", lambda: split_by_class((X, Y), 2, validation=1e-6)),
    (DataError, "120 images but 119 labels", lambda: split_by_class((X, Y[:-1]), 2)),
    (DataError, "NaN or infinity", lambda: split_by_class((X.log10().sub(9).sqrt(), Y), 2)),
    (DataError, "got torch.int64", lambda: split_by_class((X.long(), Y), 2)),
    (DataError, "5, 3", lambda: split_by_class((torch.zeros(120, 5, 3), Y), 2, test=(X, Y))),
    (DataError, r"got \(120, 16\)", lambda: split_by_class((X.flatten(1), Y), 2)),
    (DataError, "channels come before", lambda: split_by_class((torch.zeros(120, 8, 8, 3), Y), 2)),
    (DataError, r"only one has \[5\]", lambda: split_by_class((X, Y), 2, test=(X[Y < 5], Y[Y < 5]))),
    (LabelError, "integers, got float", lambda: split_by_class((X, Y.float()), 2)),
    (DataError, "cannot read images and labels from Tensor", lambda: split_by_class(X, 2)),  # type: ignore[arg-type]
    (DataError, r"\(1, 8, 8\) of torch", lambda: split_by_class([(X[0], 0), (torch.zeros(8, 8), 1)] * 10, 2)[0]),
    (DataError, "expected a pair", lambda: split_by_class([X[0]] * 10, 2)),  # type: ignore[list-item]
    (DataError, "more than 8 bits", lambda: permuted([(Image.new("I;16", (4, 4)), i % 2) for i in range(20)])),
    (SettingError, "tasks=0", lambda: permuted((X, Y), tasks=0)),
    (SettingError, "angles=", lambda: rotated((X, Y), angles=(10, 10))),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_cannot_be_a_stream_is_refused(error: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=message):
        call()


def test_folders_that_are_no_stream_are_refused_by_name(tmp_path: Path) -> None:
    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            stream_from_folder(tmp_path / "mine", 2)

    refused(DataMissing, "mine is not a folder")
    (tmp_path / "mine").mkdir()
    refused(DataDamaged, "mine has no folders")
    write(tmp_path / "mine", {"red": (255, 0, 0)})
    refused(SettingError, "1 classes")
    empty = tmp_path / "mine" / "a"
    empty.mkdir()
    refused(DataDamaged, "a has no pictures")
    for number in range(5):
        Image.new("RGB", (4, 4)).save(empty / f"{number}.png")
    refused(DataError, "class 'a' has 5 images")
    for stray, message in (("a/notes.txt", "is none"), ("a/9.png", "cannot be read"), ("A.png", "belongs to no class")):
        (tmp_path / "mine" / stray).write_bytes(b"not a picture")
        refused(DataDamaged, f"{stray}.*{message}")
        (tmp_path / "mine" / stray).unlink()
    whole = (tmp_path / "mine" / "red" / "0.png").read_bytes()
    (empty / "cut.png").write_bytes(whole[: len(whole) // 2])
    refused(DataDamaged, "cut.png cannot be read")
    Image.new("RGB", (4, 4)).save(empty / "cut.png", format="EPS")  # which Pillow would hand to an interpreter
    refused(DataDamaged, "cut.png cannot be read")


def test_a_class_without_test_pictures_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train", COLOURS)
    write(tmp_path / "test", {"red": (255, 0, 0)})
    with pytest.raises(DataDamaged, match="black is only in one of train and test"):
        stream_from_folder(tmp_path, 2)
