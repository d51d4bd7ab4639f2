"""Figures of time and memory, against values worked by hand."""

from __future__ import annotations

import pytest

from halrp.lab.report import figures_time as built
from tests.lab.made_records import older
from tests.lab.report.made import joint, steady, with_facts
from tests.lab.report.test_figures_accuracy import HERE, chart, series, study_of

EACH, ALL = f"{HERE} · each task", f"{HERE} · all tasks so far"


def test_time_is_told_in_first_tasks_of_separate_networks() -> None:
    records = [
        steady(0.5, method="stl", seconds=[4.0, 3.0, 3.0]),
        steady(0.5, method="stl", seconds=[6.0, 3.0, 3.0], seed=1),
        steady(0.5, seconds=[5.0, 10.0, 2.0]),
        steady(0.5, seconds=[5.0, 20.0, 4.0], order="B"),
        joint([0.5, 0.5, 0.5]),
    ]
    figure = built.time(study_of(*records))
    assert series(figure, "halrp-budget", EACH).y == pytest.approx((1.0, 3.0, 0.6))
    assert series(figure, "halrp-budget", ALL).y == pytest.approx((1.0, 4.0, 4.6))
    assert series(figure, "halrp-budget", ALL).x == (1, 2, 3)
    assert series(figure, "stl", EACH).y == pytest.approx((1.0, 0.6, 0.6))
    assert series(figure, "mtl", ALL).y == pytest.approx((0.0, 0.0, 1.2))


def test_time_needs_separate_networks_on_such_a_machine_with_as_many_epochs() -> None:
    ours = steady(0.5)
    assert built.time(study_of(ours)) is None
    assert built.time(study_of(ours, steady(0.5, method="stl", threads=4))) is not None
    lines = chart(built.time(study_of(ours, steady(0.5, method="stl", threads=4))), EACH).series
    assert [entry.name for entry in lines] == ["stl"]
    other = study_of(ours, steady(0.5, method="stl", recipe={"epochs": 9}))
    assert [entry.name for entry in chart(built.time(other), f"{HERE} · 9 epochs · each task").series] == ["stl"]
    assert len(built.time(other).plots) == 2  # type: ignore[union-attr]


def test_a_run_that_does_not_tell_its_seconds_has_no_line() -> None:
    lacking = with_facts(steady(0.5, 2), {}, {"seconds": None})
    figure = built.time(study_of(lacking, steady(0.5, 2, method="stl")))
    assert [entry.name for entry in chart(figure, EACH).series] == ["stl"]


def test_a_reference_of_other_length_counts_for_the_same_machine() -> None:
    short = steady(0.5, 1, method="stl", seconds=[4.0])
    figure = built.time(study_of(short, steady(0.5, 2, seconds=[2.0, 8.0])))
    assert series(figure, "halrp-budget", f"{HERE} · 2 tasks · each task").y == (0.5, 2.0)


def test_memory_is_the_highest_of_all_runs() -> None:
    first = with_facts(steady(0.5, 2), {"peak_bytes": 3_000_000}, {"peak_bytes": 5_250_000})
    second = with_facts(steady(0.5, 2, seed=1), {"peak_bytes": 4_000_000}, {"peak_bytes": 1_000_000})
    assert series(built.memory(study_of(first, second)), "halrp-budget").y == pytest.approx((4.0, 5.2))


def test_older_records_tell_time_and_no_memory() -> None:
    old = study_of(older(steady(0.5)), older(steady(0.5, method="stl")))
    assert [figure.key for figure in built.figures(old)] == ["time"]
