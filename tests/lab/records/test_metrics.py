"""The metrics, against examples worked by hand."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike

from halrp.errors import SettingError
from halrp.lab.records.metrics import (
    UndefinedMetric,
    accuracy_matrix,
    all_orders,
    average_accuracy,
    backward_transfer,
    bootstrap,
    by_identity,
    forgetting,
    forward_transfer,
    growth,
    mean,
    order_disparity,
    standard_error,
    time_ratios,
)

NAN = math.nan
# Three tasks: the first falls from 80 to 70, the second rises from 60 to 65, the third is learned last.
A = [[80.0, NAN, NAN], [75.0, 60.0, NAN], [70.0, 65.0, 90.0]]


def test_average_accuracy_is_the_mean_of_the_last_row() -> None:
    assert average_accuracy(A) == 75.0  # (70 + 65 + 90) / 3


def test_average_accuracy_needs_only_the_last_row() -> None:
    assert average_accuracy([[NAN, NAN], [40.0, 50.0]]) == 45.0


def test_backward_transfer_leaves_out_the_last_task() -> None:
    assert backward_transfer(A) == -2.5  # ((70 − 80) + (65 − 60)) / 2


def test_backward_transfer_is_exactly_zero_when_nothing_changes() -> None:
    assert backward_transfer([[0.1, NAN], [0.1, 0.7]]) == 0.0


def test_forgetting_is_the_negative_of_backward_transfer() -> None:
    assert forgetting(A) == 2.5
    assert math.copysign(1.0, forgetting([[0.1, NAN], [0.1, 0.7]])) == 1.0  # 0.0, never -0.0


def test_forward_transfer_compares_with_networks_of_their_own_and_leaves_out_the_first_task() -> None:
    assert forward_transfer(A, [NAN, 58.0, 84.0]) == 4.0  # ((60 − 58) + (90 − 84)) / 2


def test_order_disparity_takes_each_tasks_range_over_orders() -> None:
    p = [[70.0, 50.0, 90.0], [74.0, 49.0, 90.0], [71.0, 51.0, 90.0]]
    assert order_disparity(p) == (4.0, 2.0)  # ranges 4, 2, 0


def test_order_disparity_of_re_indexed_rows_vanishes_for_a_method_that_ignores_the_order() -> None:
    accuracy = np.array([10.0, 20.0, 30.0])
    orders = [[0, 1, 2], [2, 0, 1]]
    p = np.empty((2, 3))
    for row, identities in zip(p, orders, strict=True):
        by_position = accuracy[identities]
        row[identities] = by_position
    assert order_disparity(p) == (0.0, 0.0)


def test_metrics_do_not_change_their_input() -> None:
    a = np.array(A)
    before = a.copy()
    average_accuracy(a), backward_transfer(a), forward_transfer(a, [1.0, 2.0, 3.0])
    assert np.array_equal(a, before, equal_nan=True)


def test_an_unfinished_run_has_no_average_accuracy() -> None:
    with pytest.raises(UndefinedMetric, match=r"last row of a.*2 of 3 values are not finite, the first at index 1"):
        average_accuracy([[80.0, NAN, NAN], [75.0, 60.0, NAN], [70.0, NAN, NAN]])


def test_a_missing_diagonal_leaves_backward_transfer_undefined() -> None:
    with pytest.raises(UndefinedMetric, match="diagonal of a"):
        backward_transfer([[NAN, NAN], [40.0, 50.0]])


@pytest.mark.parametrize("metric", [backward_transfer, forgetting])
def test_one_task_has_no_transfer(metric: Callable[[ArrayLike], float]) -> None:
    with pytest.raises(UndefinedMetric, match="at least 2 tasks; a has 1"):
        metric([[50.0]])
    with pytest.raises(UndefinedMetric, match="at least 2 tasks; a has 1"):
        forward_transfer([[50.0]], [50.0])


def test_forward_transfer_needs_one_single_task_accuracy_per_task() -> None:
    with pytest.raises(UndefinedMetric, match=r"each of the 3 tasks.*\(2,\)"):
        forward_transfer(A, [50.0, 60.0])
    with pytest.raises(UndefinedMetric, match="single, after its first entry"):
        forward_transfer(A, [50.0, NAN, 60.0])


def test_order_disparity_needs_two_orders_and_every_accuracy() -> None:
    with pytest.raises(UndefinedMetric, match="at least two; p has 1"):
        order_disparity([[70.0, 50.0]])
    with pytest.raises(UndefinedMetric, match="first at index 1, 0"):
        order_disparity([[70.0, 50.0], [NAN, 50.0]])


@pytest.mark.parametrize("a", [[1.0, 2.0], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], np.empty((0, 0))])
def test_a_matrix_that_is_not_tasks_by_tasks_is_refused(a: ArrayLike) -> None:
    with pytest.raises(UndefinedMetric):
        average_accuracy(a)


# ---- all orders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [2, 3, 4, 5])
def test_all_orders_is_what_every_permutation_one_by_one_gives(tasks: int) -> None:
    p = np.random.default_rng(tasks).uniform(0, 100, (tasks, tasks))
    # A task's accuracy depends on the first task alone, so an order's row by identity is the row of its first task.
    by_order = np.array([[p[order[0], t] for t in range(tasks)] for order in itertools.permutations(range(tasks))])
    averages = by_order.mean(axis=1)
    result = all_orders(p)
    assert result.orders == len(by_order) == math.factorial(tasks)
    assert result.accuracy == pytest.approx(averages.mean(), rel=1e-12)
    assert (result.mopd, result.aopd) == order_disparity(by_order)
    assert (result.lowest, result.highest) == (averages.min(), averages.max())
    assert p[result.lowest_first].mean() == result.lowest
    assert p[result.highest_first].mean() == result.highest


def test_all_orders_by_hand() -> None:
    result = all_orders([[90.0, 50.0, 70.0], [84.0, 60.0, 66.0], [87.0, 55.0, 80.0]])
    assert result == (71.33333333333333, 14.0, 10.0, 70.0, 74.0, 0, 2, 6)  # averages 70, 70, 74; ranges 6, 10, 14


def test_all_orders_needs_every_task_to_come_first() -> None:
    with pytest.raises(UndefinedMetric, match=r"every identity to come first once; p has shape \(2, 3\)"):
        all_orders([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    with pytest.raises(UndefinedMetric, match="index 1, 0"):
        all_orders([[1.0, 2.0], [NAN, 2.0]])
    with pytest.raises(UndefinedMetric, match="at least two"):
        all_orders([[1.0]])


# ---- rows -------------------------------------------------------------------------------------------------------

ROWS = [{"identity": 2, "test": [0.8]}, {"identity": 0, "test": [0.75, 0.5]}, {"identity": 1, "test": [0.5, 0.25, 1.0]}]


def test_the_accuracy_matrix_is_in_per_cent_with_nan_above_the_diagonal() -> None:
    expected = [[80.0, NAN, NAN], [75.0, 50.0, NAN], [50.0, 25.0, 100.0]]
    assert np.array_equal(accuracy_matrix(ROWS), expected, equal_nan=True)


def test_the_accuracy_matrix_has_nan_where_a_joint_method_tells_nothing() -> None:
    a = accuracy_matrix([{"test": [None]}, {"test": [0.5, 0.7]}])
    assert np.isnan(a[0]).all()
    assert average_accuracy(a) == pytest.approx(60.0)
    with pytest.raises(UndefinedMetric, match="diagonal"):
        backward_transfer(a)


def test_rows_that_do_not_follow_each_other_are_refused() -> None:
    with pytest.raises(UndefinedMetric, match="2 accuracies at position 1; the row has 1"):
        accuracy_matrix([{"test": [0.5]}, {"test": [0.5]}])


def test_final_accuracies_are_told_by_identity() -> None:
    assert by_identity(ROWS) == {0: 25.0, 1: 100.0, 2: 50.0}
    assert list(by_identity(ROWS)) == [0, 1, 2]
    with pytest.raises(UndefinedMetric, match=r"identity for each task; the rows have \[1, 1\]"):
        by_identity([{"identity": 1, "test": [0.5]}, {"identity": 1, "test": [0.5, 0.5]}])
    with pytest.raises(UndefinedMetric, match="none"):
        by_identity([])


# ---- sizes and times --------------------------------------------------------------------------------------------


def test_growth_is_relative_to_the_first_task_or_to_a_given_base() -> None:
    assert growth([200.0, 220.0, 250.0]) == 0.25
    assert growth([NAN, NAN, 250.0], base=100.0) == 1.5
    assert growth([100.0]) == 0.0


@pytest.mark.parametrize("sizes", [[], [1.0, NAN], [NAN, 1.0], [0.0, 1.0], [[1.0]]])
def test_growth_without_a_base_or_an_end_is_undefined(sizes: ArrayLike) -> None:
    with pytest.raises(UndefinedMetric, match="growth"):
        growth(sizes)


def test_time_ratios_are_multiples_of_the_first_task_of_stl() -> None:
    assert time_ratios([4.0, 1.0, 3.0], 2.0) == ((2.0, 0.5, 1.5), (2.0, 2.5, 4.0))
    for seconds, first in (([1.0], 0.0), ([1.0], NAN), ([], 1.0), ([1.0, NAN], 1.0)):
        with pytest.raises(UndefinedMetric, match="time ratios"):
            time_ratios(seconds, first)


# ---- spread -----------------------------------------------------------------------------------------------------


def test_the_two_conventions_of_the_standard_error() -> None:
    values = [1.0, 3.0, 5.0, 7.0]  # mean 4, squared deviations 9 + 1 + 1 + 9 = 20
    assert mean(values) == 4.0
    assert standard_error(values, "paper") == pytest.approx(math.sqrt(20 / 4) / 2)
    assert standard_error(values, "usual") == standard_error(values) == pytest.approx(math.sqrt(20 / 3) / 2)
    with pytest.raises(SettingError, match="'paper' or 'usual'"):
        standard_error(values, "sample")  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [standard_error, bootstrap])
def test_one_value_has_no_spread(spread: Callable[[ArrayLike], object]) -> None:
    with pytest.raises(UndefinedMetric, match="at least 2 values; there are 1"):
        spread([1.0])
    with pytest.raises(UndefinedMetric, match="index 1"):
        spread([1.0, NAN])
    with pytest.raises(UndefinedMetric, match="at least 1 value; there are 0"):
        mean([])


def test_the_bootstrap_depends_on_the_values_and_the_seed_alone() -> None:
    values = np.random.default_rng(0).normal(10, 2, 40)
    assert bootstrap(values, seed=1) == bootstrap(values[::-1], seed=1)
    assert bootstrap(values, seed=1) != bootstrap(values, seed=2)


def test_the_bootstrap_agrees_with_the_normal_interval_on_a_large_sample() -> None:
    values = np.random.default_rng(0).normal(10, 2, 400)
    lower, upper = bootstrap(values)
    error = standard_error(values)
    # 10 000 resamples know a 2.5 % tail to about 0.03 errors; the sample's skew shifts it by less than that.
    assert lower == pytest.approx(mean(values) - 1.96 * error, abs=0.1 * error)
    assert upper == pytest.approx(mean(values) + 1.96 * error, abs=0.1 * error)
    narrow = bootstrap(values, share=0.5)
    assert lower < narrow.lower < mean(values) < narrow.upper < upper


def test_the_bootstrap_of_two_values_is_exact() -> None:
    # The mean of a resample is 0, 1/2 or 1 with probabilities 1/4, 1/2, 1/4.
    assert bootstrap([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap([0.0, 1.0], share=0.4) == (0.5, 0.5)


@pytest.mark.parametrize("setting", [{"share": 0.0}, {"share": 1.0}, {"resamples": 0}])
def test_a_bootstrap_that_cannot_be_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        bootstrap([1.0, 2.0], **setting)  # type: ignore[arg-type]
