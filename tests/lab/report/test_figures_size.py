"""Figures of size, against values worked by hand."""

from __future__ import annotations

import pytest

from halrp.lab.report import figures_size as built
from tests.lab.made_records import made, older
from tests.lab.report.made import joint, steady, with_facts
from tests.lab.report.test_figures_accuracy import HERE, chart, heat_map, series, study_of

RUN = f"{HERE} · halrp-budget · order A · seed 0"


def test_growth_is_beyond_the_single_task_model() -> None:
    records = [
        steady(0.5, bytes=[1000.0, 1100.0, 1250.0]),
        steady(0.5, bytes=[1000.0, 1300.0, 1350.0], seed=1),
        steady(0.5, method="stl", bytes=[1000.0, 2000.0, 3000.0]),
        joint([0.5, 0.5, 0.5], size=1200.0),
    ]
    figure = built.growth(study_of(*records))
    label = f"{HERE} · bytes"
    assert chart(figure, label).y.log
    assert series(figure, "halrp-budget", label).x == (2, 3)
    assert series(figure, "halrp-budget", label).y == pytest.approx((20.0, 30.0))
    assert series(figure, "stl", label).y == pytest.approx((100.0, 200.0))
    assert series(figure, "mtl", label).y == pytest.approx((None, 20.0))
    assert series(figure, "mtl", f"{HERE} · parameters").y == pytest.approx((None, 20.0))


def test_growth_by_the_papers_count_where_a_record_has_it() -> None:
    record = steady(0.5, bytes=[1000.0, 1100.0, 1250.0])
    assert series(built.growth(study_of(record)), "halrp-budget", f"{HERE} · the paper's count").y == (10.0, 25.0)
    old = older(record)
    assert built.growth(study_of(old)) is not None
    assert f"{HERE} · the paper's count" not in built.growth(study_of(old)).plots  # type: ignore[union-attr]


def test_a_joint_run_alone_has_no_growth() -> None:
    assert built.growth(study_of(joint([0.5, 0.5]))) is None


def test_one_task_does_not_grow() -> None:
    single = study_of(steady(0.5, tasks=1))
    assert built.growth(single) is None
    assert built.frontier(single) is None


def test_the_frontier_has_a_point_for_all_settings_of_a_method() -> None:
    records = [
        steady(0.6, bytes=[1000.0, 1100.0, 1300.0], settings={"growth_per_task": 0.2}),
        steady(0.5, bytes=[1000.0, 1100.0, 1300.0], settings={"growth_per_task": 0.2}, order="B"),
        steady(0.4, bytes=[1000.0, 1050.0, 1100.0], settings={"growth_per_task": 0.1}),
        steady(0.7, method="stl", bytes=[1000.0, 2000.0, 3000.0]),
        steady(0.3, method="be", bytes=[1000.0] * 3),
        joint([0.5, 0.5, 0.5]),
    ]
    figure = built.frontier(study_of(*records))
    ours = series(figure, "halrp-budget")
    assert ours.x == (50, 150)
    assert ours.y == (40.0, 55.0)
    assert ours.error == (None, 5.0)
    assert ours.notes == ("growth_per_task=0.1, 1 run", "growth_per_task=0.2, 2 runs")
    assert series(figure, "stl").x == (1000,)
    assert {entry.name for entry in chart(figure).series} == {"halrp-budget", "stl"}, (
        "a zero has no place on a log axis"
    )


def test_the_frontier_leaves_out_orders_that_show_the_first_task_where_there_are_others() -> None:
    records = [steady(0.5), steady(0.6, order="first-0")]
    assert series(built.frontier(study_of(*records)), "halrp-budget").y == (50.0,)
    assert series(built.frontier(study_of(records[1])), "halrp-budget").y == (60.0,)


def test_ranks_by_layer_and_task() -> None:
    record = with_facts(
        steady(0.5),
        {"ranks": {}, "view": ""},
        {"ranks": {"b": 5}, "view": "full"},
        {"ranks": {"a": 2, "b": 7}, "view": "mean"},
    )
    figure = heat_map(built.ranks(study_of(record, steady(0.5, method="stl"))), RUN)
    assert figure.rows == ("a", "b")
    assert figure.columns == ("1 task 0", "2 task 1 · full", "3 task 2 · mean")
    assert figure.values == ((None, None, 2), (None, 5, 7)), "what is owned densely has no rank"


def test_one_view_is_not_told_and_methods_without_ranks_are_not_drawn() -> None:
    facts = {"ranks": {"a": 2}, "view": "mean"}
    figure = built.ranks(study_of(with_facts(steady(0.5, 2), facts, facts), steady(0.5, 2, method="stl")))
    assert figure is not None
    assert list(figure.plots) == [RUN]
    assert heat_map(figure, RUN).columns == ("1 task 0", "2 task 1")
    assert heat_map(figure, RUN).values == ((2, 2),)
    assert built.ranks(study_of(steady(0.5), with_facts(steady(0.5, 2), {"ranks": {}}, {"ranks": None}))) is None


def test_importance_is_told_in_powers_of_ten_above_the_least() -> None:
    record = with_facts(
        steady(0.5), {}, {"importance": {"a": 0.02, "b": 2e-4}}, {"importance": {"a": 0.2, "b": 0.0, "c": "?"}}
    )
    figure = heat_map(built.importance(study_of(record)), RUN)
    assert figure.rows == ("a", "b")
    assert figure.values == ((None, 2.0, 3.0), (None, 0.0, None))


def test_the_spectrum_is_cut_at_the_rank() -> None:
    scores = {"a": [0.5, 0.25, 0.1234, 0.0], "b": [0.4, 0.3], "c": [0.2]}
    record = with_facts(steady(0.5, 2), {}, {"scores": scores, "ranks": {"a": 2, "b": 90}})
    label = f"{RUN} · task 2 task 1"
    figure = built.spectra(study_of(record))
    assert chart(figure, label).y.log
    assert [entry.name for entry in chart(figure, label).series] == [
        "a: retained",
        "a: cut",
        "b: retained",
        "c: retained",
    ]
    retained, cut = series(figure, "a: retained", label), series(figure, "a: cut", label)
    assert (retained.x, retained.y, retained.dashed) == ((1, 2), (0.5, 0.25), False)
    assert (cut.x, cut.y, cut.dashed) == ((3, 4), (0.123, None), True)
    assert retained.method == cut.method
    assert series(figure, "b: retained", label).x == (1, 2)


def test_spectra_are_those_of_three_tasks_of_one_run_of_each_group() -> None:
    facts = {"scores": {"a": [0.5, 0.25]}, "ranks": {"a": 1}}
    runs = [with_facts(steady(0.5, 6, order=order), {}, *[facts] * 5) for order in "AB"]
    figure = built.spectra(study_of(*runs))
    assert figure is not None
    assert list(figure.plots) == [f"{RUN} · task {i + 1} task {i}" for i in (1, 3, 5)]


def test_there_is_a_bound_on_spectra_and_it_is_told() -> None:
    facts = {"scores": {"a": [0.5]}, "ranks": {"a": 1}}
    settings = [{"growth_per_task": 0.01 * (i + 1)} for i in range(built.SPECTRA + 5)]
    figure = built.spectra(study_of(*(with_facts(steady(0.5, 1, settings=entry), facts) for entry in settings)))
    assert figure is not None
    assert len(figure.plots) == built.SPECTRA
    assert f"of {built.SPECTRA + 5} plots the first {built.SPECTRA}" in figure.about


@pytest.mark.parametrize("scores", [None, [], {"a": "?"}, {"a": [None]}, {"a": 0.5}, {"a": []}])
def test_records_that_do_not_tell_scores_have_no_spectra(scores: object) -> None:
    assert built.spectra(study_of(with_facts(steady(0.5, 1), {"scores": scores}))) is None


def test_records_of_today_without_facts_have_sizes_alone() -> None:
    runs = study_of(made([[0.5], [0.5, 0.5]]))
    assert [figure.key for figure in built.figures(runs)] == ["frontier", "growth"]
