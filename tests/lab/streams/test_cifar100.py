"""CIFAR-100's three streams: protocol, classes and names, and sizes on the real images."""

from pathlib import Path

import numpy as np
import pytest

from halrp.lab.reference import load_reference
from halrp.lab.streams import Normal, cifar100, load
from halrp.lab.streams.protocol import mixed
from tests.lab.streams.made import loaded, normal, rows, sizes, splits

MEAN, DEVIATION = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)
SUPERCLASSES = {item["task"]: item for item in load_reference("task_orders")["cifar100_superclass"]}


def test_class_lists_are_partitions_of_the_fine_classes() -> None:
    known = load_reference("task_orders")
    for lists in (
        list(known["cifar100_split_classes"].values()),
        [item["fine_ids"] for item in known["cifar100_superclass"]],
        list(cifar100.random_classes().values()),
    ):
        assert sorted(item for task in lists for item in task) == list(range(100))
    assert {task: list(range(10 * task, 10 * task + 10)) for task in range(10)} == {
        int(task): ids for task, ids in known["cifar100_split_classes"].items()
    }


def test_random_classes_are_those_of_the_recorded_seed() -> None:
    classes = cifar100.random_classes()
    assert [len(mine) for mine in classes.values()] == [5] * 20
    assert classes[0] == sorted(np.random.RandomState(0).permutation(100)[:5].tolist())
    superclasses = {tuple(item["fine_ids"]) for item in SUPERCLASSES.values()}
    assert not superclasses & {tuple(mine) for mine in classes.values()}


@pytest.mark.parametrize(
    ("name", "selected", "held"), [("cifar100-split", 100, 20), ("cifar100-superclass", 50, 10), ("cifar100-20", 50, 5)]
)
def test_tasks_follow_the_protocol_step_by_step(made: None, name: str, selected: int, held: int) -> None:
    train, test = (loaded("cifar100").parts[part] for part in ("train", "test"))
    fine = {
        "cifar100-split": {task: range(10 * task, 10 * task + 10) for task in range(10)},
        "cifar100-superclass": {task: item["fine_ids"] for task, item in SUPERCLASSES.items()},
        "cifar100-20": cifar100.random_classes(),
    }[name]
    random = np.random.RandomState(3254)
    chosen = {}
    for identity, mine in fine.items():
        pool, tested = (
            np.concatenate([np.flatnonzero(part.labels == item) for item in mine]) for part in (train, test)
        )
        random.shuffle(pool)
        chosen[identity] = (pool[held:selected], pool[:held], mixed(tested))
    stream = load(name, order="D", seed=2, fraction=0.5)
    for task in stream:
        mine = list(fine[task.identity])
        for split, images, source in zip(splits(task), chosen[task.identity], (train, train, test), strict=True):
            # float32 against float64: values up to 2.2, a few roundings of 6e-8 each.
            np.testing.assert_allclose(split.x.numpy(), normal(source.images[images], MEAN, DEVIATION), atol=2e-6)
            assert split.y.tolist() == [mine.index(item) for item in source.labels[images]]
        assert task.class_names == tuple(f"cifar100-{item}" for item in mine)
        assert task.normal == Normal(MEAN, DEVIATION)


def test_orders_are_the_published_ones(made: None) -> None:
    assert load("cifar100-split", order="D").identities == (5, 8, 2, 9, 0, 4, 3, 7, 6, 1)
    assert load("cifar100-superclass", order="E").identities[:5] == (6, 14, 0, 11, 12)
    assert load("cifar100-20").identities == tuple(range(20))


def test_tasks_are_named_by_their_classes(made: None) -> None:
    assert load("cifar100-split")[3].name == "classes-30-39"
    superclass = load("cifar100-superclass")
    assert [superclass[task].name for task in (0, 9, 18)] == [
        "aquatic-mammals",
        "large-man-made-outdoor-things",
        "vehicles-1",
    ]
    assert load("cifar100-20")[0].name == "classes-" + "-".join(f"{item:02d}" for item in cifar100.random_classes()[0])


# --- The real data, when they are beside the repository ------------------------------------------------------

NEEDS = ("cifar100",)


@pytest.mark.parametrize(
    ("name", "fraction", "expected"),
    [
        ("cifar100-split", 1.0, [4000, 1000, 1000]),
        ("cifar100-split", 0.5, [2000, 500, 1000]),
        ("cifar100-split", 0.25, [1000, 250, 1000]),
        ("cifar100-split", 0.05, [200, 50, 1000]),
        ("cifar100-superclass", 1.0, [2000, 500, 500]),
        ("cifar100-superclass", 0.5, [1000, 250, 500]),
        ("cifar100-superclass", 0.25, [500, 125, 500]),
        ("cifar100-superclass", 0.05, [100, 25, 500]),
        ("cifar100-20", 1.0, [2250, 250, 500]),
    ],
)
def test_real_tasks_have_the_published_sizes(real: Path, name: str, fraction: float, expected: list[int]) -> None:
    assert sizes(load(name, fraction=fraction, data=real)[0]) == expected


def test_real_splits_share_no_image_and_small_fractions_are_part_of_large_ones(real: Path) -> None:
    whole, part = (load("cifar100-split", seed=1, fraction=fraction, data=real)[6] for fraction in (1.0, 0.05))
    train, val, test = (rows(split.x) for split in splits(whole))
    assert not train & val
    assert not train & test
    assert not val & test
    assert rows(part.train.x) | rows(part.val.x) <= train | val


def test_real_fine_classes_have_the_names_that_the_superclasses_list(real: Path) -> None:
    for task in load("cifar100-superclass", fraction=0.05, data=real):
        assert list(task.class_names) == SUPERCLASSES[task.identity]["fine_classes"]
        assert task.name.replace("-", " ") == SUPERCLASSES[task.identity]["name"].replace("-", " ")
