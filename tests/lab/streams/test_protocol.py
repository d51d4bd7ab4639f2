"""What all benchmarks share: shares, seeds, orders, draws, and the order of test images."""

import numpy as np
import pytest

from halrp import Recipe
from halrp.errors import SettingError
from halrp.lab.data import DataDamaged, Images
from halrp.lab.reference import load_reference
from halrp.lab.streams.protocol import (
    carve,
    drawn_orders,
    identities_of,
    in_file_order,
    members,
    mixed,
    published_orders,
    shares,
    split_seed,
)

TASKS: dict[str, int] = load_reference("task_orders")["n_tasks"]


@pytest.mark.parametrize(
    ("fraction", "selected", "held"), [(1.0, 5000, 1000), (0.5, 2500, 500), (0.25, 1250, 250), (0.05, 250, 50)]
)
def test_shares_are_those_of_the_protocol(fraction: float, selected: int, held: int) -> None:
    assert shares("any", 5000, fraction, 0.2) == (selected, held)


def test_shares_round_up_what_is_kept_and_down_what_validates() -> None:
    assert shares("any", 101, 0.5, 0.2) == (51, 10)
    assert shares("any", 5000, 0.07, 0.2) == (350, 70)  # 0.07 · 5000 > 350 in binary
    assert shares("any", 73257, 1.0, 0.2) == (73257, 14651)


def test_a_fraction_that_leaves_nothing_to_validate_is_refused_with_the_least_that_does() -> None:
    with pytest.raises(SettingError, match=r"use at least 0\.0500"):
        shares("any", 100, 0.04, 0.2)
    assert shares("any", 100, 0.05, 0.2) == (5, 1)


def test_the_seeds_of_repeats_are_the_numbers_drawn_from_the_papers_master_seed() -> None:
    assert [split_seed(repeat) for repeat in range(5)] == [7690, 1304, 3254, 8140, 7444]
    drawn = np.random.RandomState(111111).randint(1, 10000, size=200_001)
    for repeat in (9, 65_535, 65_536, 131_072, 200_000):
        assert split_seed(repeat) == drawn[repeat]


@pytest.mark.parametrize("benchmark", TASKS)
def test_published_orders_are_five_different_permutations(benchmark: str) -> None:
    orders = published_orders(benchmark)
    assert list(orders) == ["A", "B", "C", "D", "E"]
    assert all(sorted(order) == list(range(TASKS[benchmark])) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 5


def test_orders_printed_under_seeds_keep_their_sequence() -> None:
    printed = load_reference("task_orders")["orders"]["five_dataset"]
    assert list(published_orders("five_dataset").values()) == [printed[str(seed)] for seed in range(5)]
    assert published_orders("cifar100_split") == load_reference("task_orders")["orders"]["cifar100_split"]


@pytest.mark.parametrize("benchmark", ["omniglot_rotation", "tinyimagenet_40"])
def test_some_published_orders_are_numpy_shuffles(benchmark: str) -> None:
    for seed, order in enumerate(published_orders(benchmark).values()):
        assert order == np.random.RandomState(seed).permutation(TASKS[benchmark]).tolist()


def test_drawn_orders_are_the_identity_and_four_other_permutations() -> None:
    orders = drawn_orders(20)
    assert orders["A"] == list(range(20))
    assert all(sorted(order) == list(range(20)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 5


@pytest.mark.parametrize("order", ["a", "F", "", "0"])
def test_an_unknown_order_is_answered_with_the_nearest_name_and_all_of_them(order: str) -> None:
    with pytest.raises(SettingError, match=rf"'digits'.*'{order}'.*nearest.*A, B, C, D, E"):
        identities_of("digits", drawn_orders(10), order)


@pytest.mark.parametrize("draw", ["shuffled", "in file order"])
def test_a_draw_is_disjoint_nested_and_a_function_of_the_seed(draw: str) -> None:
    def drawn(seed: int, fraction: float) -> tuple[set[int], set[int], list[int]]:
        random = np.random.RandomState(seed)
        if draw == "shuffled":
            train, val = carve("any", np.arange(100, 300), random, fraction, 0.2)
        else:
            train, val = (part + 100 for part in in_file_order("any", 200, random, fraction, 0.2))
        return set(train.tolist()), set(val.tolist()), [*train.tolist(), *val.tolist()]

    train, val, listed = drawn(1, 1.0)
    assert (len(train), len(val)) == (160, 40)
    assert train | val == set(range(100, 300))
    small_train, small_val, small = drawn(1, 0.25)
    assert (len(small_train), len(small_val)) == (40, 10)
    assert not small_train & small_val
    assert small_train | small_val <= set(drawn(1, 0.5)[2])
    assert small == drawn(1, 0.25)[2]
    assert set(small) != set(drawn(2, 0.25)[2])
    if draw == "in file order":
        assert max(val) < min(train)
        assert listed == drawn(2, 1.0)[2]


def test_mixing_is_a_permutation_that_is_always_the_same_and_mixes_sorted_classes() -> None:
    chosen = np.arange(1000, 2000)
    assert sorted(mixed(chosen).tolist()) == chosen.tolist()
    assert np.array_equal(mixed(chosen), mixed(chosen))
    classes = (mixed(chosen) - 1000) // 100
    assert all(len(set(classes[start : start + 100].tolist())) == 10 for start in range(0, 1000, 100))


def test_members_are_listed_class_by_class_and_in_file_order_and_every_class_has_one() -> None:
    source = Images(np.zeros((6, 1, 1, 1), np.uint8), np.array([2, 0, 2, 1, 0, 2]))
    assert members(source, [2, 0]).tolist() == [0, 2, 5, 1, 4]
    with pytest.raises(DataDamaged, match="class 3"):
        members(source, [0, 3])


@pytest.mark.parametrize(("fraction", "batch"), [(1.0, 125), (0.25, 125), (0.05, 100)])
def test_the_rate_falls_by_a_twentieth_per_epoch_of_cifar(fraction: float, batch: int) -> None:
    selected, held = shares("any", 5000, fraction, 0.2)
    steps, rest = divmod(selected - held, batch)
    assert rest == 0
    recipe = Recipe(lr=1e-3, batch=batch, decay_examples=50000 / 10 * fraction * (1 - 0.2))
    assert recipe.rate(0, 20 * steps, batch, selected - held) == 1e-3
    assert recipe.rate(steps, 20 * steps, batch, selected - held) == pytest.approx(0.95e-3, rel=1e-12)
