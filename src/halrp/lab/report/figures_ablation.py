"""Figures of ablations: the effect of changing one setting, or two, with all else equal. Records show which there are.

Groups of a method in a setup are compared on the orders and seeds that all of them were run with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from halrp.checks import is_number
from halrp.lab.records.frames import Frame
from halrp.lab.records.schema import Record, as_text
from halrp.lab.report import paper
from halrp.lab.report.chart import Series
from halrp.lab.report.figure import Axis, Figure, Plot
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.paper import Ablated
from halrp.lab.report.shapes import chart, figure_of, present, rounded
from halrp.lab.report.study import Study, is_whole

FEWEST = 3
"""Fewest values of a setting that are shown."""
FILLED = 2 / 3
"""Smallest share of a grid of two settings that is shown."""
WIDE = 30
"""How far apart values have to be, as a ratio, for a logarithmic axis."""
PARTS = ("halrp-official", "lrp", "random-lrp")
SHARED = " All values are compared on the same orders and seeds."
UNKNOWN = "unknown"


def figures(study: Study) -> tuple[Figure, ...]:
    """All ablations for which there are records."""
    return present(numbers(study), names(study), grids(study), parts(study))


def numbers(study: Study) -> Figure | None:
    """Accuracy against one numeric setting."""
    plots: dict[str, Plot | None] = {}
    for ablation in _ablations(study, 1):
        [key] = ablation.keys
        numeric = [is_number(values.get(key)) for values in ablation.groups["values"]]
        groups = compared(study, ablation.groups[numeric])
        if len(groups) >= FEWEST:
            groups = groups.assign(x=[float(f"{values[key]:.6g}") for values in groups["values"]])
            groups = groups.sort_values("x", kind="stable")
            x = tuple(groups["x"].tolist())
            log = x[0] > 0 and x[-1] / x[0] >= WIDE
            series = *_test_and_validation(groups, x), *_printed_values(key, groups.iloc[0])
            plots[ablation.label] = chart("lines", Axis(key, log=log), Axis("average accuracy in %"), series)
    return figure_of(
        "ablation-numbers",
        "One setting, a number",
        "The average accuracy at the end of the stream with different values of one setting and all else equal; "
        "dashed is the accuracy on validation data, by which a setting may be chosen. Where the paper "
        "has an ablation, its values are shown too." + SHARED,
        plots,
    )


def names(study: Study) -> Figure | None:
    """Accuracy for every value of one setting that is not a number."""
    plots: dict[str, Plot | None] = {}
    for ablation in _ablations(study, 1):
        [key] = ablation.keys
        known = ablation.groups[ablation.texts[key] != UNKNOWN]
        if sum(is_number(values[key]) for values in known["values"]) >= FEWEST:
            continue  # shown as a line
        groups = compared(study, known)
        if len(groups) >= FEWEST:
            series = _test_and_validation(groups, tuple(ablation.texts.loc[groups.index, key]))
            plots[ablation.label] = chart("bars", Axis(key), Axis("average accuracy in %", zero=True), series)
    return figure_of(
        "ablation-names",
        "One setting, a choice",
        "The average accuracy at the end of the stream for every choice of one setting, with all else equal; dashed "
        "is the accuracy on validation data." + SHARED,
        plots,
    )


def grids(study: Study) -> Figure | None:
    """Accuracy over two settings."""
    plots: dict[str, Plot | None] = {}
    for ablation in _ablations(study, 2):
        down, across = ablation.keys
        groups = compared(study, ablation.groups[(ablation.texts[[down, across]] != UNKNOWN).all(axis=1)])
        texts = ablation.texts.loc[groups.index]
        rows, columns = _sorted(texts[down], groups), _sorted(texts[across], groups)
        enough = min(len(rows), len(columns)) >= 2 and max(len(rows), len(columns)) >= FEWEST
        if enough and len(groups) >= FILLED * len(rows) * len(columns) and groups["accuracy"].notna().any():
            known = dict(zip(zip(texts[down], texts[across], strict=True), groups["accuracy"], strict=True))
            values = tuple(rounded(known.get((row, column)) for column in columns) for row in rows)
            plots[ablation.label] = HeatMap(Axis(across), Axis(down), columns, rows, values, "average accuracy in %")
    return figure_of(
        "ablation-grids",
        "Two settings",
        "The average accuracy at the end of the stream over two settings, with all else equal." + SHARED,
        plots,
    )


def parts(study: Study) -> Figure | None:
    """HALRP as released beside LRP and Random LRP, each of which leaves out one of its parts."""
    plots: dict[str, Plot | None] = {}
    for label, representatives in study.representatives.items():
        groups = compared(study, representatives[representatives["method"].isin(PARTS)])
        if PARTS[0] in {*groups["method"]} and len(groups) > 1:
            x = tuple(groups["name"])
            test, _ = _test_and_validation(groups, x, method="")
            beside = rounded(map(_printed_part, groups["record"], groups["printed"]))
            axes = Axis("method"), Axis("average accuracy in %", zero=True)
            plots[label] = chart("bars", *axes, (test, Series("paper", x, beside, dashed=True)))
    return figure_of(
        "ablation-parts",
        "Without importance, without the SVD",
        "LRP gives every layer the same rank, Random LRP begins with random factors; all else is as in halrp-official. "
        "Dashed is the paper's result." + SHARED,
        plots,
    )


# ---- what is compared ---------------------------------------------------------------------------------------------


class Ablation(NamedTuple):
    """Groups of a method in a setup that differ in the settings `keys` and in nothing else."""

    label: str
    keys: tuple[str, ...]
    groups: Frame
    """Rows of `Study.groups`."""
    texts: Frame
    """Their settings that vary, a column each."""


def _ablations(study: Study, free: int) -> Iterator[Ablation]:
    """All ablations of a number of settings."""
    for (setup, title, first), groups in study.groups.groupby(["setup", "title", "first_order"], sort=False):
        if len(groups) < FEWEST:
            continue
        texts = pd.DataFrame([{k: _text(v) for k, v in values.items()} for values in groups["values"]], groups.index)
        texts = texts.fillna(UNKNOWN)
        varied = [key for key in sorted(texts) if texts[key].nunique() > 1]
        for keys in combinations(varied, free):
            others = [key for key in varied if key not in keys]
            label = f"{setup} · {title} · {' × '.join(keys)}" + " · orders first-K" * int(first)
            buckets = [same for _, same in texts.groupby(others, sort=False)] if others else [texts]
            for same in buckets:
                if len(same) >= FEWEST:
                    record = groups["record"][same.index[0]]
                    changed = f" ({_changed(record, others)})" if len(buckets) > 1 else ""
                    yield Ablation(label + changed, keys, groups.loc[same.index], same)


def _changed(record: Record, keys: Iterable[str]) -> str:
    """Those of some settings that are not the defaults of today."""
    given = {**record.recipe, **record.settings}
    return as_text({key: given[key] for key in keys if key in given}) or "all else default"


def compared(study: Study, groups: Frame) -> Frame:
    """As many groups as possible that share an order and seed; their metrics are those of the runs that all have."""
    if groups.empty:
        return groups
    columns = ["group", "order", "seed", "accuracy", "validation"]
    runs = study.runs.loc[study.runs["group"].isin(groups.index), columns]
    members = runs.groupby(["order", "seed"], sort=False)["group"].agg(frozenset)
    chosen = max(members, key=len)
    shared = {pair for pair, having in members.items() if having >= chosen}
    keys = zip(runs["order"], runs["seed"], runs["group"], strict=True)
    by_group = runs[[(order, seed) in shared and group in chosen for order, seed, group in keys]].groupby("group")
    means = {
        name: by_group[name].mean().where(by_group[name].count() == by_group.size())  # all runs have to have a value
        for name in ("accuracy", "validation")
    }
    return groups.loc[sorted(chosen)].assign(**means, error=by_group["accuracy"].sem(), runs=by_group.size())


def _test_and_validation(groups: Frame, x: tuple[Any, ...], method: str | None = None) -> tuple[Series, Series]:
    """The series of a chart, in the colour of their method."""
    method = groups["method"].iloc[0] if method is None else method
    notes = tuple(f"{n} run{'s' * (n > 1)}" for n in groups["runs"])
    return (
        Series("test", x, rounded(groups["accuracy"]), rounded(groups["error"]), notes, method),
        Series("validation", x, rounded(groups["validation"]), (), notes, method, True),
    )


def _text(value: Any) -> str:
    """A setting as a text that is equal when the values are."""
    return "none" if value is None else as_text({"": float(value) if is_number(value) else value}).removeprefix("=")


def _sorted(texts: pd.Series, groups: Frame) -> tuple[str, ...]:
    """Texts of a setting of groups: numbers first, by size, then the others as they came."""
    values = {text: row[texts.name] for text, row in zip(texts, groups["values"], strict=True)}
    return tuple(sorted(values, key=lambda text: (0, float(values[text])) if is_number(values[text]) else (1, 0.0)))


# ---- the paper's ablation -----------------------------------------------------------------------------------------


def _ablated(record: Record) -> list[Ablated]:
    """The rows of the paper's ablation, which is on all data, that can be compared with a run of ours."""
    if not is_whole(record) or record.fraction != 1:
        return []
    here = record.stream, record.backbone
    return [row for row in paper.ablation() if (row.stream, row.backbone) == here and record.method in row.ours]


def _printed_values(key: str, group: Any) -> tuple[Series, ...]:
    """The paper's ablation of one setting, where the other is that of a group."""
    fields = {"rate": ("alpha", "n_r", "warm_up"), "warm_up": ("n_r", "alpha", "rate")}
    if key not in fields:
        return ()
    varied, fixed, other = fields[key]
    rows = [row for row in _ablated(group["record"]) if getattr(row, fixed) == group["values"].get(other)]
    rows = sorted(
        (row for row in rows if getattr(row, varied) is not None), key=lambda row: float(getattr(row, varied))
    )
    x = tuple(getattr(row, varied) for row in rows)
    y, error = rounded(row.accuracy for row in rows), rounded(row.std for row in rows)
    return (Series("paper", x, y, error, dashed=True),)


def _printed_part(record: Record, printed: Any) -> float | None:
    """What the paper prints for HALRP, or for one of its ablations."""
    if printed is not None:
        return float(printed.accuracy)
    return next((row.accuracy for row in _ablated(record) if row.alpha is None), None)
