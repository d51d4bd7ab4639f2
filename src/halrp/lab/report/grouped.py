"""The frames of a study as objects, for the builders of figures: setups, their groups, and the runs of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halrp.lab import registry
from halrp.lab.records import metrics
from halrp.lab.records.schema import Record
from halrp.lab.report import paper
from halrp.lab.report.figure import Figure, Plot
from halrp.lab.report.paper import Printed
from halrp.lab.report.study import Study

MAIN = " Of several settings of a method, those of the benchmark's preset are shown, or else those with the most runs."
"""Part of the text of figures that show representatives of methods."""

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One run and its metrics."""

    run: Record
    row: Mapping[str, Any]
    """Its row of `Study.runs`."""

    @cached_property
    def matrix(self) -> Array:
        """Accuracies in % by position after each position: (tasks, tasks), NaN where one was not measured."""
        return metrics.accuracy_matrix(self.run.rows)

    @property
    def pair(self) -> tuple[str, int]:
        """Its order and seed."""
        return self.run.order, self.run.seed

    def column(self, name: str) -> Array:
        """A number of every row of the record: (tasks,), NaN where the record lacks it."""
        values = (self.run.number(position, name) for position in range(self.run.tasks))
        return np.array([np.nan if value is None else value for value in values])

    def names(self) -> tuple[str, ...]:
        """The tasks with their positions, counted from 1."""
        return tuple(f"{i + 1} {row.get('task') or row['identity']}" for i, row in enumerate(self.run.rows))


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same settings in one setup, which differ in order and seed."""

    runs: tuple[Measured, ...]
    row: Mapping[str, Any]
    """Its row of `Study.groups`."""

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.row["method"])

    @property
    def variant(self) -> str:
        """The settings that distinguish it from other groups of the method in the setup; empty if there are none."""
        return str(self.row["variant"])

    @property
    def name(self) -> str:
        """The method, and its settings where they are needed."""
        return str(self.row["name"])

    @property
    def values(self) -> Mapping[str, Any]:
        """All known settings of method and recipe, defaults included."""
        return dict(self.row["values"])

    @property
    def shows_first(self) -> bool:
        """Whether its orders are called first-K."""
        return bool(self.row["first_order"])

    @property
    def repeats(self) -> str:
        """The number of runs, in words."""
        return "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"

    def number(self, name: str) -> float | None:
        """A number of its row; None if it has no value."""
        value = self.row[name]
        return float(value) if isinstance(value, (int, float)) and not math.isnan(value) else None

    def mean(self, values: Iterable[Array]) -> Array:
        """The mean over runs of arrays by position; NaN where one of the runs has no value."""
        mean: Array = np.mean(np.stack(list(values)), axis=0)
        return mean


@dataclass(frozen=True)
class SetupGroups:
    """All groups of one setup."""

    label: str
    groups: tuple[Group, ...]

    @property
    def run(self) -> Record:
        """One of its runs, for what all of them share."""
        return self.groups[0].runs[0].run

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions in the stream, counted from 1."""
        return tuple(range(1, self.run.tasks + 1))

    @property
    def distinct(self) -> tuple[Group, ...]:
        """One group for each method and settings: that under orders first-K only where there is no other."""
        return tuple(group for group in self.groups if group.row["distinct"])

    @property
    def main(self) -> tuple[Group, ...]:
        """One group for each method: see `halrp.lab.report.representative`."""
        return tuple(group for group in self.groups if group.row["representative"])

    @property
    def whole(self) -> bool:
        """Whether all tasks of a benchmark were learned, so that the paper's results can be compared with ours."""
        entry = registry.STREAMS.get(self.run.stream)
        return entry is not None and entry.tasks == self.run.tasks

    def printed(self, method: str) -> Printed | None:
        """What the paper prints for a method here; None if nothing can be compared with it."""
        run = self.run
        return paper.lookup(run.stream, run.backbone, run.fraction, method) if self.whole else None


@dataclass(frozen=True)
class Grouped:
    """All runs of a study, by setup."""

    setups: tuple[SetupGroups, ...]

    @staticmethod
    def of(study: Study) -> Grouped:
        """The rows of a study's frames."""
        members: dict[int, list[Measured]] = {}
        for row in study.runs.to_dict("records"):
            members.setdefault(row["group"], []).append(Measured(row["record"], row))
        rows = dict(zip(study.groups.index, study.groups.to_dict("records"), strict=True))
        return Grouped(
            tuple(
                SetupGroups(label, tuple(Group(tuple(members[i]), rows[i]) for i in groups.index))
                for label, groups in study.setups.items()
            )
        )

    def each(self) -> Iterator[tuple[SetupGroups, Group, Measured]]:
        """Every run, with its group and setup."""
        for setup in self.setups:
            for group in setup.groups:
                for run in group.runs:
                    yield setup, group, run


def run_label(setup: SetupGroups, group: Group, run: Measured) -> str:
    """A name for a run that no other has."""
    return str(run.row["label"])


def rounded(values: Iterable[float | None], digits: int = 2) -> tuple[float | None, ...]:
    """Numbers with a number of digits after the point; None for those that are missing or not finite."""
    return tuple(None if v is None or not math.isfinite(v) else round(float(v), digits) + 0.0 for v in values)


def significant(values: Iterable[float | None], digits: int = 4) -> tuple[float | None, ...]:
    """Numbers above zero with a number of significant digits, for a logarithmic axis; None for all others."""
    return tuple(
        None if v is None or not math.isfinite(v) or v <= 0 else float(f"{float(v):.{digits}g}") for v in values
    )


def figure_of(key: str, title: str, about: str, plots: Mapping[str, Plot]) -> Figure | None:
    """A figure, unless there is nothing to draw."""
    return Figure(key, title, about, plots) if plots else None


def is_number(value: object) -> bool:
    """Whether a value read from a record is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def any_known(values: Iterable[float | None]) -> bool:
    """Whether there is a value at all."""
    return any(value is not None for value in values)
