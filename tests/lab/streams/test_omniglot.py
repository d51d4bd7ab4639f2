"""`omniglot-rotation`: characters, rotations, the two splits, and sizes on the real images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from halrp.lab.data import DataDamaged, LoadedDataSet
from halrp.lab.streams import load, omniglot
from halrp.lab.streams.pixels import normalised, resized
from tests.lab.streams.made import DRAWINGS, loaded, rows, sizes

BOTH = ["omniglot-rotation", "omniglot-rotation@drawings"]


def images_of(character: int, turns: range = range(4)) -> list[torch.Tensor]:
    """Make the images of a character of the made data, turned, with the label's drawings in file order."""
    part, label = ("background", character) if character < 964 else ("evaluation", character - 964)
    source = loaded("omniglot").parts[part]
    upright = resized(torch.from_numpy(source.images[source.labels == label]).permute(0, 3, 1, 2), 32)
    return [torch.rot90(normalised(upright, omniglot.NORMAL), turn, (2, 3)) for turn in turns]


def test_orders_are_the_published_ones_and_the_sequential_one(made: None) -> None:
    assert load(BOTH[0], order="sequential").identities == tuple(range(100))
    assert load(BOTH[0], order="B").identities[:4] == (80, 84, 33, 81)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("identity", [0, 80, 99])  # 80 has the last characters of one part and the first of the other
def test_a_task_has_twelve_characters_in_four_rotations(made: None, name: str, identity: int) -> None:
    task = load(name, order="sequential")[identity]
    assert sizes(task) == [12 * 3 * DRAWINGS, 12 * 3 * DRAWINGS, 12 * DRAWINGS]
    assert task.name == f"characters-{12 * identity:03d}-{12 * identity + 11:03d}"
    for label in range(12):
        character = 12 * identity + label
        expected = rows(torch.cat(images_of(character)))
        mine = [rows(split.x[split.y == label]) for split in (task.train, task.test)]
        assert mine[0] | mine[1] == expected
        assert (len(mine[0]), len(mine[1])) == (3 * DRAWINGS, DRAWINGS)
        part = ("background", character) if character < 964 else ("evaluation", character - 964)
        assert task.class_names[label] == f"{part[0]}-{part[1]}"


def test_images_are_grey_between_ink_and_paper_and_not_normalised(made: None) -> None:
    task = load(BOTH[0])[0]
    assert task.normal == ((0.0,), (1.0,))
    assert float(task.train.x.min()) >= 0.0
    assert 0.5 < float(task.train.x.max()) <= 1.0


def test_the_validation_images_are_the_training_images(made: None) -> None:
    task = load(BOTH[0], fraction=0.5)[0]
    assert task.val.x is task.train.x
    assert task.val.y is task.train.y


def test_by_image_a_character_is_split_by_one_generator_for_all_of_them() -> None:
    random = np.random.RandomState(0)
    for train, test in omniglot.by_image([20] * 1200):
        numbers = np.arange(80)
        random.shuffle(numbers)
        assert train.tolist() == numbers[:60].tolist()
        assert test.tolist() == numbers[60:].tolist()


def test_by_drawing_the_first_fifteen_train_in_all_rotations() -> None:
    train, test = omniglot.by_drawing([20] * 3)[2]
    assert set((train % 20).tolist()) == set(range(15))
    assert set((test % 20).tolist()) == set(range(15, 20))
    assert (len(train), len(test)) == (60, 20)


def test_by_drawing_no_rotation_of_a_tested_drawing_is_trained_on_and_by_image_some_are(made: None) -> None:
    def tested_drawings_seen(name: str) -> int:
        task = load(name, order="sequential")[3]
        turned = {row for turn in range(1, 4) for row in rows(torch.rot90(task.test.x, turn, (2, 3)).contiguous())}
        return len(turned & rows(task.train.x))

    assert tested_drawings_seen("omniglot-rotation@drawings") == 0
    assert tested_drawings_seen("omniglot-rotation") > 0


def test_the_split_is_the_same_for_every_seed_and_a_fraction_is_drawn_by_the_seed(made: None) -> None:
    first, second = (load(BOTH[0], seed=seed)[5] for seed in (0, 1))
    assert torch.equal(first.test.x, second.test.x)
    assert rows(first.train.x) == rows(second.train.x)
    parts = [load(BOTH[0], seed=seed, fraction=0.25)[5] for seed in (0, 1)]
    assert [len(part.train.y) for part in parts] == [36, 36]
    assert rows(parts[0].train.x) != rows(parts[1].train.x)


def test_too_few_characters_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_background(name: str, data: object = None) -> LoadedDataSet:
        whole = loaded(name)
        return whole._replace(parts=dict.fromkeys(whole.parts, whole.parts["evaluation"]))

    monkeypatch.setattr(omniglot, "read", only_background)
    with pytest.raises(DataDamaged, match=r"480 characters.*1200"):
        load(BOTH[0])


# --- The real data, when they are beside the repository ------------------------------------------------------

NEEDS = ("omniglot",)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_real_tasks_have_the_published_sizes(real: Path, name: str) -> None:
    stream = load(name, order="sequential", data=real)
    assert stream.name == name
    for task in (stream[0], stream[80], stream[99]):
        assert sizes(task) == [720, 720, 240]
        assert task.train.y.bincount().tolist() == [60] * 12
        assert not rows(task.train.x) & rows(task.test.x)
        assert float(task.train.x.median()) == 1.0  # paper
    assert sizes(load(name, fraction=0.05, data=real)[0]) == [36, 36, 240]
    assert stream[0].class_names[0] == "Alphabet_of_the_Magi/character01"
