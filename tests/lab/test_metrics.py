"""The metrics, against examples worked by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike

from halrp.lab.metrics import (
    UndefinedMetric,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    order_disparity,
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
