"""Two sets of records side by side: what both have run, with paired tests.

Within an experimental setup, runs of the same method and settings belong together. Then, if each set has one group of a
method left, or one group at all, these two are compared, so that a set may hold one method and the other its rival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from halrp.lab.records import metrics, paired
from halrp.lab.records.metrics import UndefinedMetric
from halrp.lab.records.paired import Finals
from halrp.lab.records.schema import Record, Setup, as_text
from halrp.lab.report.study import Study
from halrp.lab.report.table import Column, Table, plain_rows


def _grouped(value: float) -> str:
    return f"{value:,.0f}"


COLUMNS = (
    Column("setup", "setup"),
    Column("method", "method"),
    Column("first", "A %", 2, about="mean accuracy over what both have"),
    Column("second", "B %", 2, about="mean accuracy over what both have"),
    Column("difference", "B − A", 2, signed=True, about="mean over tasks"),
    Column("difference_error", "±", 2, about="its standard error over tasks"),
    Column("p", "p", 3, about="sign flips of the tasks' mean differences, corrected by Holm's rule"),
    Column("verdict", "B is"),
    Column("first_bytes", "bytes A", about="what a later task takes", format=_grouped),
    Column("second_bytes", "bytes B", about="what a later task takes", format=_grouped),
    Column("pairs", "pairs", about="tasks × orders × seeds that both have"),
    Column("details", "settings", about="those that are not the defaults"),
)
ABOUT = (
    "Mean final accuracy over the tasks, orders and seeds that both sets have. p: the probability of a difference as "
    "large if the signs of the tasks' mean differences were arbitrary, corrected by Holm's rule for the number of "
    "rows. Identical: every accuracy is the same number."
)


@dataclass(frozen=True)
class Group:
    """Runs of one method and settings in a setup."""

    runs: tuple[Record, ...]
    bytes: float
    """What a later task takes, on average."""

    @property
    def method(self) -> str:
        """The title of the method."""
        return self.runs[0].title

    @property
    def settings(self) -> str:
        """Settings of the method and of training that are not their defaults."""
        return ", ".join(filter(None, (as_text(self.runs[0].settings), as_text(self.runs[0].recipe))))

    @property
    def key(self) -> Hashable:
        """What the runs are repetitions of."""
        return self.runs[0].repetition

    @property
    def finals(self) -> Finals:
        """Final accuracies in %, of those runs that have them."""
        finals: dict[tuple[int, tuple[str, int]], float] = {}
        for record in self.runs:
            try:
                accuracies = metrics.by_identity(record.rows)
            except UndefinedMetric:
                continue
            finals |= {(identity, (record.order, record.seed)): value for identity, value in accuracies.items()}
        return finals

    def __str__(self) -> str:
        """The method, with its settings."""
        return f"{self.method} ({self.settings})" if self.settings else self.method


@dataclass(frozen=True)
class SetsCompared:
    """What two sets of records have in common, and what one of them has alone."""

    table: Table
    only_first: Mapping[str, Sequence[str]]
    """Methods with their settings, by setup."""
    only_second: Mapping[str, Sequence[str]]
    unpaired: Mapping[str, Sequence[str]]
    """What both have, without a common task, order and seed."""


def compare(first: Iterable[Record], second: Iterable[Record]) -> SetsCompared:
    """Compare two sets of records, setup by setup."""
    ours, theirs = _groups(first), _groups(second)
    rows: list[dict[str, Any]] = []
    alone: tuple[dict[str, list[str]], ...] = {}, {}, {}
    for setup in dict.fromkeys((*ours, *theirs)):
        left = ours.get(setup, []), theirs.get(setup, [])
        label = _label(setup)
        for a, b in _matches(*left):
            row = _row(a, b)
            if row is None:
                alone[2].setdefault(label, []).append(str(a))
            else:
                rows.append({"setup": label} | row)
        for names, groups in zip(alone, left, strict=False):
            if groups:
                names[label] = [*map(str, groups)]
    for row, p in zip(rows, paired.corrected([row["p"] for row in rows]), strict=True):
        row["p"] = p
        row["verdict"] = row["verdict"] or paired.verdict(row["difference"], p)
    return SetsCompared(Table("versus", "Two sets of records", ABOUT, COLUMNS, plain_rows(rows)), *alone)


def _groups(records: Iterable[Record]) -> dict[Setup, list[Group]]:
    """The groups of each setup, in the order of tables."""
    study = Study.of(records)
    setups: dict[Setup, list[Group]] = {}
    for index, group in study.groups.iterrows():
        runs = tuple(study.runs.loc[study.runs["group"] == index, "record"])
        setups.setdefault(runs[0].setup, []).append(Group(runs, float(group["later_bytes"])))
    return setups


def _matches(first: list[Group], second: list[Group]) -> Iterator[tuple[Group, Group]]:
    """Pairs of groups, which are taken out of both lists."""
    keys: tuple[Callable[[Group], Hashable], ...] = (lambda g: g.key, lambda g: g.method, lambda g: None)
    for key in keys:
        for group in [*first]:
            here = [other for other in first if key(other) == key(group)]
            there = [other for other in second if key(other) == key(group)]
            if len(here) == len(there) == 1:
                first.remove(group)
                second.remove(there[0])
                yield group, there[0]


def _row(first: Group, second: Group) -> dict[str, Any] | None:
    finals = first.finals, second.finals
    shared = finals[0].keys() & finals[1].keys()
    if not shared:
        return None
    test = paired.compare(finals[1], finals[0])
    same = all(finals[0][key] == finals[1][key] for key in shared)
    means = [fmean(values[key] for key in shared) for values in finals]
    alike = first.settings == second.settings
    return {
        "method": first.method if first.method == second.method else f"{first.method} → {second.method}",
        "details": first.settings
        if alike
        else f"A: {first.settings or 'defaults'}; B: {second.settings or 'defaults'}",
        "first": means[0],
        "second": means[1],
        "difference": test.difference,
        "difference_error": None if math.isnan(test.error) else test.error,
        "p": test.p,
        "verdict": "identical" if same else "",
        "first_bytes": first.bytes,
        "second_bytes": second.bytes,
        "pairs": len(shared),
    }


def _label(setup: Setup) -> str:
    network = f" ({setup.network})" if setup.network else ""
    epochs = "epochs unknown" if setup.epochs is None else f"{setup.epochs} epochs"
    return f"{setup.stream}, {setup.backbone}{network}, {100 * setup.fraction:g} %, {setup.tasks} tasks, {epochs}"
