"""Figures of accuracy: final, over the stream, by task, forgetting, and disparity between orders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from halrp.lab.records.frames import Frame
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.shapes import (
    REPRESENTED,
    bars_of,
    bars_of_paper,
    by_run,
    chart,
    figure_of,
    lines_over_stream,
    present,
    rounded,
)
from halrp.lab.report.study import Study

DISPARITIES = {"mopd": "MOPD in points: the largest over tasks", "aopd": "AOPD in points: the mean over tasks"}


def figures(study: Study) -> tuple[Figure, ...]:
    """All figures of accuracy for which there are records."""
    return present(
        final_accuracy(study), over_stream(study), forgetting(study), order_disparity(study), accuracy_matrix(study)
    )


def accuracy_matrix(study: Study) -> Figure | None:
    """The accuracy of every task after each task, a heat map for each run."""

    def draw(steps: Frame) -> HeatMap | None:
        names = tuple(steps["label"])
        rows = [(name, test) for name, test in zip(names, steps["test"], strict=True) if np.isfinite(test).any()]
        values = tuple(rounded([*test] + [None] * (len(names) - len(test))) for _, test in rows)
        axes = Axis("task"), Axis("after task")
        return HeatMap(*axes, names, tuple(name for name, _ in rows), values, "accuracy in %") if rows else None

    return figure_of(
        "accuracy-matrix",
        "Accuracy of every task after each task",
        "A row is a point of the stream, a column a task: where the values of a column fall from top to bottom, the "
        "task was forgotten. Methods that learn all tasks at once have only the last row.",
        by_run(study, draw),
    )


def over_stream(study: Study) -> Figure | None:
    """The average accuracy of the tasks seen so far, after each task."""
    axes = Axis("tasks learned"), Axis("average accuracy in %")
    return figure_of(
        "accuracy-over-stream",
        "Accuracy over the stream",
        "The average test accuracy of the tasks seen so far after each task, a mean over orders and seeds."
        + REPRESENTED,
        lines_over_stream(study, study.steps["average"], axes, rounded, with_range=True),
    )


def forgetting(study: Study) -> Figure | None:
    """Backward transfer by order and method."""
    axes = Axis("order"), Axis("backward transfer in points", zero=True)

    def draw(groups: Frame) -> Chart | None:
        runs = study.runs[study.runs["group"].isin(groups.index)]
        orders = tuple(runs["order"].unique().tolist())
        means = runs.pivot_table("bwt", "group", "order", lambda values: values.mean(skipna=False), dropna=False)
        by_order = means.reindex(index=groups.index, columns=orders).to_numpy()
        columns = zip(groups["name"], groups["method"], by_order, strict=True)
        bars = [Series(name, orders, rounded(values), method=method) for name, method, values in columns]
        return chart("bars", *axes, bars)

    return figure_of(
        "forgetting",
        "Forgetting",
        "Backward transfer: how much the accuracy of a task has changed, on average, from when it was learned to the "
        "end of the stream. Below zero is forgotten; exactly zero means that learned tasks never change. A mean over "
        "seeds for each order." + REPRESENTED,
        {label: draw(groups) for label, groups in study.representatives.items()},
    )


def order_disparity(study: Study) -> Figure | None:
    """Disparity between orders by method, beside the noise of training alone, all orders and the paper's."""
    return figure_of(
        "order-disparity",
        "Disparity between orders",
        "How far a task's final accuracy differs between orders (OPD): MOPD is the largest over tasks, AOPD "
        "the mean. The noise floor is that of separate networks that differ in their random seeding alone, "
        "under the same orders and seeds. Where every task came first once, and results depend on the first "
        "task alone, the value is exact for all orders." + REPRESENTED,
        {
            f"{label} · {name.upper()}": chart(
                "bars", Axis("method"), Axis(title, zero=True), _disparities(groups, name)
            )
            for label, groups in study.setups.items()
            for name, title in DISPARITIES.items()
        },
    )


def _disparities(groups: Frame, name: str) -> Iterator[Series]:
    """The bars of one of the two disparities, where any of our runs has one."""
    exact = groups["every_order"].astype(bool)
    runs = {"orders run": groups[groups["representative"] & ~exact], "all orders": groups[exact]}
    known = {method for some in runs.values() for method in some.loc[some[name].notna(), "name"]}
    if not known:
        return
    first = groups[groups["name"].isin(known)].drop_duplicates("name")
    for title, some in runs.items():
        columns = some[["name", "repeats", name, f"stl_{name}"]]
        rows = columns.set_index("name").reindex(first["name"]).reset_index()
        notes = [*rows["repeats"].fillna("")]
        yield bars_of(title, rows, name, notes=notes)
        yield bars_of(f"{title}: noise floor", rows, f"stl_{name}", notes=notes, dashed=True)
    yield bars_of_paper(first, name)


def final_accuracy(study: Study) -> Figure | None:
    """Accuracy at the end of the stream by method, beside the paper's."""

    def draw(groups: Frame) -> Chart | None:
        known = groups[groups["accuracy"].notna()]
        notes = [
            f"{repeats}, standard error over {over}" if isinstance(over, str) else repeats
            for repeats, over in zip(known["repeats"], known["spread_over"], strict=True)
        ]
        bars = bars_of("ours", known, "accuracy", "error_usual", notes), bars_of_paper(known, "accuracy", "std")
        return chart("bars", Axis("method"), Axis("average accuracy in %", zero=True), bars)

    return figure_of(
        "final-accuracy",
        "Accuracy at the end of the stream",
        "The average test accuracy of all tasks after the last one, a mean over orders and seeds with its standard "
        "error; dashed is the paper's result." + REPRESENTED,
        {label: draw(groups) for label, groups in study.representatives.items()},
    )
