"""Ablations that are found in records, against values worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from halrp.lab.methods import METHODS
from halrp.lab.report import figures_ablation as built
from halrp.lab.report import paper
from halrp.lab.report.figure import Figure
from tests.lab.made_records import older
from tests.lab.report.made import steady, with_validation
from tests.lab.report.test_figures_accuracy import HERE, chart, heat_map, series, study_of

SPLIT = {"stream": "cifar100-split", "backbone": "lenet"}


def rates(values: dict[float, float], method: str = "halrp-paper", **more: Any) -> list[dict[str, Any]]:
    return [steady(share, method=method, settings={"rate": rate}, **more) for rate, share in values.items()]


def only(figure: Figure | None) -> str:
    assert figure is not None
    [label] = figure.plots
    return label


def test_a_number_is_found_with_its_default_and_drawn_in_order() -> None:
    assert METHODS["halrp-paper"].settings()["rate"] == 0.9
    records = [*rates({0.99: 0.7, 0.5: 0.4}), with_validation(steady(0.6, method="halrp-paper"), 0.55)]
    figure = built.numbers(study_of(*records))
    label = f"{HERE} · halrp-paper · rate"
    assert only(figure) == label
    assert not chart(figure, label).x.log
    assert chart(figure, label).x.title == "rate"
    assert series(figure, "test", label).x == (0.5, 0.9, 0.99)
    assert series(figure, "test", label).y == pytest.approx((40.0, 60.0, 70.0))
    assert series(figure, "validation", label).y == pytest.approx((40.0, 55.0, 70.0))
    assert series(figure, "validation", label).dashed


def test_numbers_far_apart_have_a_logarithmic_axis() -> None:
    records = [steady(0.5, method="l2", settings={"strength": s}) for s in (0.01, 1.0, 100.0)]
    figure = built.numbers(study_of(*records))
    assert chart(figure, only(figure)).x.log


def test_two_values_are_not_enough() -> None:
    assert built.figures(study_of(*rates({0.5: 0.4, 0.7: 0.5}))) == ()


def test_settings_that_change_together_are_no_ablation() -> None:
    values = [(0.5, 0.1), (0.6, 0.2), (0.7, 0.3)]
    records = [steady(0.5, method="halrp-paper", settings={"rate": r, "growth": g}) for r, g in values]
    assert built.figures(study_of(*records)) == ()


def test_values_are_compared_on_the_orders_and_seeds_that_all_have() -> None:
    records = [
        *rates({0.5: 0.4, 0.6: 0.5, 0.7: 0.6}, order="A"),
        *rates({0.5: 0.6, 0.6: 0.7, 0.7: 0.6}, order="B"),
        *rates({0.5: 0.99}, order="C"),
        *rates({0.6: 0.99}, order="A", seed=1),
    ]
    figure = built.numbers(study_of(*records))
    line = series(figure, "test", only(figure))
    assert line.y == pytest.approx((50.0, 60.0, 60.0))
    assert line.error == pytest.approx((10.0, 10.0, 0.0))
    assert line.notes == ("2 runs",) * 3


def test_values_that_share_no_order_with_the_others_are_left_out() -> None:
    records = [*rates({0.5: 0.4, 0.6: 0.5, 0.7: 0.6}), *rates({0.8: 0.9}, order="B")]
    figure = built.numbers(study_of(*records))
    assert series(figure, "test", only(figure)).x == (0.5, 0.6, 0.7)
    apart = [rates({0.5 + 0.1 * i: 0.5}, order=order)[0] for i, order in enumerate("ABC")]
    assert built.numbers(study_of(*apart)) is None


def test_ablations_with_other_settings_are_told_apart() -> None:
    records = rates({0.5: 0.4, 0.6: 0.5, 0.7: 0.6})
    records += [steady(0.3, method="halrp-paper", settings={"rate": r, "growth": 0.5}) for r in (0.5, 0.6, 0.7)]
    figure = built.numbers(study_of(*records))
    assert figure is not None
    label = f"{HERE} · halrp-paper · rate"
    assert set(figure.plots) == {f"{label} (all else default)", f"{label} (growth=0.5)"}
    assert series(figure, "test", f"{label} (growth=0.5)").y == (30.0, 30.0, 30.0)


def test_a_setting_of_the_recipe_is_one_too() -> None:
    records = [steady(0.1 * i, method="stl", recipe={"batch": 8 * i}) for i in (1, 2, 3)]
    figure = built.numbers(study_of(*records))
    assert only(figure) == f"{HERE} · stl · batch"
    assert series(figure, "test", only(figure)).x == (8.0, 16.0, 24.0)


def test_a_choice_is_drawn_as_bars() -> None:
    shares = {"int8": 0.5, "bfloat16": 0.4}
    records = [steady(share, settings={"precision": name}) for name, share in shares.items()] + [steady(0.6)]
    figure = built.names(study_of(*records))
    label = f"{HERE} · halrp-budget · precision"
    assert only(figure) == label
    assert chart(figure, label).kind == "bars"
    test = series(figure, "test", label)
    assert dict(zip(test.x, test.y, strict=True)) == {"none": 60.0, "int8": 50.0, "bfloat16": 40.0}
    assert built.numbers(study_of(*records)) is None


def test_records_without_validation_data_have_no_such_series() -> None:
    figure = built.numbers(study_of(*map(older, rates({0.5: 0.4, 0.6: 0.5, 0.7: 0.6}))))
    assert [entry.name for entry in chart(figure, only(figure)).series] == ["test"]


def test_a_line_leaves_out_what_is_no_number() -> None:
    records = [steady(0.5, settings={"growth_per_task": g}) for g in (0.1, 0.2, 0.3)] + [steady(0.9)]
    figure = built.numbers(study_of(*records))
    assert series(figure, "test", only(figure)).x == (0.1, 0.2, 0.3)
    assert built.names(study_of(*records)) is None


def test_two_settings_make_a_grid() -> None:
    pairs = [(l1, l2) for l1 in (1e-3, 1e-5) for l2 in (1e-2, 1e-3, 1e-6)]
    records = [
        steady(0.1 * (i + 1), method="halrp-paper", settings={"l1": l1, "l2": l2})
        for i, (l1, l2) in enumerate(pairs)
    ]  # fmt: skip
    figure = built.grids(study_of(*records[:-1]))
    label = f"{HERE} · halrp-paper · l1 × l2"
    assert only(figure) == label
    grid = heat_map(figure, label)
    assert (grid.y.title, grid.rows) == ("l1", ("1e-05", "0.001"))
    assert (grid.x.title, grid.columns) == ("l2", ("1e-06", "0.001", "0.01"))
    assert grid.values == ((None, 50.0, 40.0), (30.0, 20.0, 10.0))


def test_a_grid_that_is_mostly_empty_is_none() -> None:
    cross = [{"l1": 10.0**-i} for i in (5, 6, 7)] + [{"l2": 10.0**-i} for i in (5, 6, 7)]
    figure = study_of(*(steady(0.5, method="halrp-paper", settings=entry) for entry in cross))
    assert built.grids(figure) is None
    assert built.numbers(figure) is not None


def test_the_parts_of_halrp_are_compared() -> None:
    shares = {"halrp-official": 0.5, "lrp": 0.4, "random-lrp": 0.3, "stl": 0.9}
    records = [steady(share, method=method) for method, share in shares.items()]
    figure = built.parts(study_of(*records))
    test = series(figure, "test")
    assert (test.x, test.y) == (("halrp-official", "lrp", "random-lrp"), (50.0, 40.0, 30.0))
    assert [entry.name for entry in chart(figure).series] == ["test"]
    assert built.parts(study_of(*records[1:])) is None
    assert built.parts(study_of(records[0], records[-1])) is None


def test_the_papers_ablation_stands_beside_ours_on_all_data() -> None:
    shares = {"halrp-official": 0.5, "lrp": 0.4, "random-lrp": 0.3}
    records = [steady(share, 10, method, **SPLIT) for method, share in shares.items()]
    figure = series(built.parts(study_of(*records)), "paper", "CIFAR100-Split · LeNet · 100 %")
    halrp = paper.lookup("cifar100-split", "lenet", 1.0, "halrp-official")
    assert halrp is not None
    printed = [row.accuracy for row in paper.ablation() for name in ("lrp", "random-lrp") if row.ours == (name,)]
    assert figure.y == (halrp.accuracy, *printed)
    assert figure.dashed


@pytest.mark.parametrize(("key", "values", "fixed"), [("rate", (0.5, 0.6, 0.9), 1), ("warm_up", (1, 2, 3), 0.9)])
def test_the_papers_ablation_of_a_number(key: str, values: tuple[float, ...], fixed: float) -> None:
    records = [steady(0.5, 10, "halrp-official", settings={key: value}, **SPLIT) for value in values]
    figure = built.numbers(study_of(*records))
    line = series(figure, "paper", only(figure))
    rows = [row for row in paper.ablation() if (row.n_r if key == "rate" else row.alpha) == fixed]
    expected = sorted((row.alpha if key == "rate" else row.n_r, row.accuracy) for row in rows)
    assert list(zip(line.x, line.y, strict=True)) == expected
    partly = [steady(0.5, 10, "halrp-official", settings={key: v}, fraction=0.5, **SPLIT) for v in values]
    figure = built.numbers(study_of(*partly))
    assert "paper" not in {entry.name for entry in chart(figure, only(figure)).series}
