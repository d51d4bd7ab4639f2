"""Figures of accuracy, against values worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halrp.lab.report import figures_accuracy as built
from halrp.lab.report import paper
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Figure
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.study import Study
from tests.lab.made_records import made, older, parsed, stable
from tests.lab.report.made import joint, steady

HERE = "Digits · MLP · 100 %"
FORGETS = [[0.8], [0.75, 0.6], [0.7, 0.65, 0.9]]


def chart(figure: Figure | None, label: str = HERE) -> Chart:
    assert figure is not None
    plot = figure.plots[label]
    assert isinstance(plot, Chart)
    for series in plot.series:
        assert len(series.x) == len(series.y)
        assert not series.error or len(series.error) == len(series.x)
        assert not series.notes or len(series.notes) == len(series.x)
    return plot


def series(figure: Figure | None, name: str, label: str = HERE) -> Series:
    [plot] = [entry for entry in chart(figure, label).series if entry.name == name]
    return plot


def heat_map(figure: Figure | None, label: str) -> HeatMap:
    assert figure is not None
    plot = figure.plots[label]
    assert isinstance(plot, HeatMap)
    assert len(plot.values) == len(plot.rows)
    assert all(len(row) == len(plot.columns) for row in plot.values)
    return plot


def study_of(*records: dict[str, Any]) -> Study:
    return Study.of(parsed(records))


def test_the_matrix_of_a_run() -> None:
    figure = built.accuracy_matrix(study_of(made(FORGETS, [2, 0, 1], order="B", seed=4)))
    matrix = heat_map(figure, f"{HERE} · halrp-budget · order B · seed 4")
    assert matrix.columns == matrix.rows == ("1 task 2", "2 task 0", "3 task 1")
    assert matrix.values == ((80.0, None, None), (75.0, 60.0, None), (70.0, 65.0, 90.0))


def test_methods_that_learn_at_once_have_the_last_row_alone() -> None:
    matrix = heat_map(built.accuracy_matrix(study_of(joint([0.5, 0.25]))), f"{HERE} · mtl · order A · seed 0")
    assert matrix.rows == ("2 task 1",)
    assert matrix.values == ((50.0, 25.0),)


def test_a_matrix_of_one_task_and_of_tasks_without_names() -> None:
    record = made([[0.5]], [7])
    del record["rows"][0]["task"]
    matrix = heat_map(built.accuracy_matrix(study_of(record)), f"{HERE} · halrp-budget · order A · seed 0")
    assert (matrix.columns, matrix.values) == (("1 7",), ((50.0,),))


def test_a_run_without_any_accuracy_is_not_drawn() -> None:
    empty = study_of(made([[None], [None, None]]))
    assert built.figures(empty) == ()


def test_over_the_stream_is_the_mean_of_the_tasks_seen_over_runs() -> None:
    figure = built.over_stream(study_of(made(FORGETS), steady(0.5, seed=1)))
    line = series(figure, "halrp-budget")
    assert line.x == (1, 2, 3)
    assert line.y == pytest.approx((65.0, round((67.5 + 50) / 2, 2), 62.5))
    assert line.notes[0] == "2 runs, 50.0 to 80.0"
    assert line.method == "halrp-budget"


def test_over_the_stream_a_joint_method_has_the_last_point_alone() -> None:
    line = series(built.over_stream(study_of(joint([0.5, 0.25]), steady(0.5, 2))), "mtl")
    assert line.y == (None, 37.5)


def test_forgetting_is_backward_transfer_by_order() -> None:
    runs = [made(FORGETS, order="A"), made(FORGETS, order="B"), steady(0.5, order="B", seed=1)]
    figure = built.forgetting(study_of(*runs, steady(0.4, method="stl", order="C"), joint([0.5, 0.5, 0.5])))
    transfer = 100 * ((0.7 - 0.8) + (0.65 - 0.6)) / 2
    assert series(figure, "halrp-budget").x == ("A", "B", "C")
    assert series(figure, "halrp-budget").y == pytest.approx((transfer, transfer / 2, None))
    assert series(figure, "stl").y == (None, None, 0.0)
    assert "mtl" not in {entry.name for entry in chart(figure).series}


def test_one_task_cannot_be_forgotten() -> None:
    assert built.forgetting(study_of(steady(0.5, tasks=1))) is None


def test_disparity_beside_the_noise_floor() -> None:
    first, second = {0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.65}
    noise = {0: 0.51, 1: 0.62}, {0: 0.5, 1: 0.6}
    floor: list[dict[str, Any]] = [
        stable(noise[i], [0, 1], "stl", settings={"redraw": True}, order=order) for i, order in enumerate("AB")
    ]
    ours = [stable(first, [0, 1], order="A"), stable(second, [1, 0], order="B")]
    figure = built.order_disparity(study_of(*ours, *floor))
    run = series(figure, "orders run", f"{HERE} · MOPD")
    assert run.x == ("halrp-budget", "stl")
    assert run.y == (10.0, 2.0)
    assert series(figure, "orders run: noise floor", f"{HERE} · MOPD").y == (2.0, 2.0)
    assert series(figure, "orders run: noise floor", f"{HERE} · MOPD").dashed
    assert series(figure, "orders run", f"{HERE} · AOPD").y == (7.5, 1.5)
    assert {entry.name for entry in chart(figure, f"{HERE} · AOPD").series} == {"orders run", "orders run: noise floor"}


def test_all_orders_stand_beside_the_orders_run() -> None:
    """Runs with every task first give the exact value, for the same bar of the same method."""
    firsts = [stable({0: 0.1 * k, 1: 0.5, 2: 0.5}, [k, *({0, 1, 2} - {k})], order=f"first-{k}") for k in range(3)]
    default = [stable({0: 0.1, 1: 0.5, 2: 0.5}, [0, 1, 2], order=order) for order in "AB"]
    figure = built.order_disparity(study_of(*firsts, *default))
    assert series(figure, "orders run", f"{HERE} · MOPD").y == (0.0,)
    assert series(figure, "all orders", f"{HERE} · MOPD").y == (20.0,)
    alone = built.order_disparity(study_of(*firsts))
    assert [entry.name for entry in chart(alone, f"{HERE} · MOPD").series] == ["all orders"]


def test_one_order_has_no_disparity() -> None:
    assert built.order_disparity(study_of(steady(0.5), steady(0.6, seed=1))) is None


def test_final_accuracy_with_its_error_beside_the_paper() -> None:
    here = {"stream": "cifar100-split", "backbone": "lenet", "fraction": 0.05}
    shares = {"A": 0.40, "B": 0.43, "C": 0.45}
    records = [steady(share, 10, "stl", order=order, **here) for order, share in shares.items()]
    records += [steady(0.2, 10, "finetune", **here)]
    figure = built.final_accuracy(study_of(*records))
    label = "CIFAR100-Split · LeNet · 5 %"
    ours, theirs = series(figure, "ours", label), series(figure, "paper", label)
    assert ours.x == theirs.x == ("stl", "finetune")
    assert ours.y == pytest.approx((100 * np.mean(list(shares.values())), 20.0), abs=0.005)
    error = 100 * np.std(list(shares.values()), ddof=1) / np.sqrt(3)
    assert ours.error == pytest.approx((error, None), abs=0.005)
    assert ours.notes == ("3 runs, standard error over orders", "1 run")
    printed = paper.lookup("cifar100-split", "lenet", 0.05, "stl")
    assert printed is not None
    assert theirs.y == (printed.accuracy, None)
    assert theirs.error == (printed.std, None)
    assert theirs.dashed


def test_final_accuracy_where_the_paper_says_nothing() -> None:
    figure = built.final_accuracy(study_of(steady(0.5), joint([0.5, 0.5, 0.2])))
    assert [entry.name for entry in chart(figure).series] == ["ours"]
    assert series(figure, "ours").y == (50.0, 40.0)


def test_older_records_have_all_figures_of_accuracy() -> None:
    runs = [older(made(FORGETS, order="A")), older(made(FORGETS, order="B"))]
    assert [figure.key for figure in built.figures(study_of(*runs))] == [
        "final-accuracy",
        "accuracy-over-stream",
        "forgetting",
        "order-disparity",
        "accuracy-matrix",
    ]
