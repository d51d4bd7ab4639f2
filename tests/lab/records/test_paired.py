"""Paired tests between methods, and accuracy at equal bytes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from halrp.lab.records import by_size, paired
from halrp.lab.records.by_size import Point
from halrp.lab.records.metrics import UndefinedMetric


def finals(values: list[float], seeds: int = 1) -> dict[tuple[Any, Any], float]:
    return {(task, ("A", seed)): value for task, value in enumerate(values) for seed in range(seeds)}


def test_all_sign_flips_of_few_tasks_are_counted() -> None:
    differences = [1.0, 2.0, -0.5, 3.0]
    flips = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=4)]
    expected = np.mean([flip >= abs(sum(differences)) - 1e-9 for flip in flips])
    assert paired.sign_flips(differences) == expected == 4 / 16


def test_many_tasks_are_sampled_with_the_same_result_every_time() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1, 30)
    assert paired.sign_flips(differences) == paired.sign_flips(differences)
    assert paired.sign_flips(np.ones(30)) == pytest.approx(1 / (paired.FLIPS + 1))


def test_seeds_of_a_task_are_one_observation() -> None:
    single, many = (paired.compare(finals([60, 70, 80], n), finals([50, 69, 81], n)) for n in (1, 9))
    assert single == many
    assert single.difference == pytest.approx(10 / 3)
    assert single.tasks == 3


def test_only_what_both_methods_have_is_compared() -> None:
    assert paired.compare(finals([60, 70]), finals([50]))[:1] == (10.0,)
    with pytest.raises(UndefinedMetric, match="tasks that both methods learned"):
        paired.compare(finals([60]), {(5, ("A", 0)): 1.0})


def test_holms_correction_is_the_published_one() -> None:
    assert paired.corrected([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert paired.corrected([0.9, 0.8]) == [1.0, 1.0]


def test_a_verdict_needs_a_small_probability() -> None:
    assert [paired.verdict(d, p) for d, p in ((1, 0.01), (-1, 0.01), (5, 0.05))] == [
        "better",
        "worse",
        "not distinguishable",
    ]


def point(size: float, accuracy: float, validation: float | None = None, **others: Any) -> Point:
    values: dict[str, Any] = {"method": "m", "title": "m", "variant": "", "guess": 20.0, "finals": {}}
    values |= dict.fromkeys(("seconds", "peak", "inferred", "identified"), math.nan) | others
    return Point(bytes=size, accuracy=accuracy, validation=accuracy if validation is None else validation, **values)


def test_validation_data_choose_among_what_fits() -> None:
    candidates = [point(1000, 70, 60), point(2000, 65, 75), point(9000, 90)]
    assert by_size.chosen(candidates, 500) is None
    assert by_size.chosen(candidates, 1500) is candidates[0]
    assert by_size.chosen(candidates, 5000) is candidates[1]  # though its test accuracy is lower


def test_the_area_is_a_mean_over_the_logarithm_of_bytes() -> None:
    assert by_size.area([point(10, 80)], 10, 1000) == pytest.approx(80)
    assert by_size.area([point(100, 80)], 10, 1000) == pytest.approx((20 + 80) / 2)
    assert by_size.area([point(10, 60), point(100, 80)], 10, 1000) == pytest.approx(70)
    assert by_size.area([point(10**6, 80)], 10, 1000) == pytest.approx(20)
