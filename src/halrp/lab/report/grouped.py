"""What figures are built from: the runs of all records, measured once and grouped by place and by method.

A place is what runs have to share to be compared. A group is what is repeated there under other orders and seeds. All
numbers of runs and groups are those of `halrp.lab.records.aggregate`, so that figures and tables cannot differ.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halrp import Recipe
from halrp.lab import registry
from halrp.lab.methods import METHODS
from halrp.lab.records import metrics
from halrp.lab.records.aggregate import Row, runs_table, summary
from halrp.lab.records.schema import Record, Run, text
from halrp.lab.report import paper
from halrp.lab.report.figure import Figure, Plot
from halrp.lab.report.paper import Printed
from halrp.lab.report.usual import chosen
from halrp.lab.run.cell import describe_all
from halrp.provenance import describe

STREAMS = {name: entry.title for name, entry in registry.STREAMS.items()}
BACKBONES = {name: entry.title for name, entry in registry.BACKBONES.items()}
MAIN = " Of several settings of a method, those of the benchmark's preset are shown, or else those with the most runs."
"""Said of figures that show `Place.main`."""

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One run and what is measured on it."""

    run: Run
    row: Row
    """Its row of `halrp.lab.records.aggregate.runs_table`."""

    @cached_property
    def matrix(self) -> Array:
        """Accuracies in % by position after each position: (tasks, tasks), NaN where nothing was told."""
        return metrics.accuracy_matrix(self.run.rows)

    @property
    def pair(self) -> tuple[str, int]:
        """Its order and seed."""
        return self.run.order, self.run.seed

    def column(self, name: str) -> Array:
        """A number of every row of the record: (tasks,), NaN where the record does not say."""
        values = (self.run.number(position, name) for position in range(self.run.tasks))
        return np.array([np.nan if value is None else value for value in values])

    def names(self) -> tuple[str, ...]:
        """The tasks with their positions, counted from 1."""
        return tuple(f"{i + 1} {row.get('task') or row['identity']}" for i, row in enumerate(self.run.rows))


@dataclass(frozen=True)
class Group:
    """Runs of one method with the same settings at one place, which differ in order and seed."""

    method: str
    apart: str
    """The settings that tell it from other groups of the method at the place; empty if there is none."""
    values: Mapping[str, Any]
    """All settings of method and recipe that are known, those left at their defaults included."""
    runs: tuple[Measured, ...]
    row: Row
    """Its row of `halrp.lab.records.aggregate.summary`."""

    @property
    def name(self) -> str:
        """The method, and its settings where they are needed."""
        return f"{self.method} ({self.apart})" if self.apart else self.method

    @property
    def shows_first(self) -> bool:
        """Whether its orders are called first-K."""
        return self.runs[0].run.shows_first

    @property
    def repeats(self) -> str:
        """How many runs there are, in words."""
        return "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"

    def number(self, name: str) -> float | None:
        """A number of its row; None if it has no value."""
        value = self.row[name]
        return float(value) if isinstance(value, (int, float)) else None

    def mean(self, values: Iterable[Array]) -> Array:
        """The mean over runs of arrays by position; NaN where one of the runs has no value."""
        found: Array = np.mean(np.stack(list(values)), axis=0)
        return found


@dataclass(frozen=True)
class Place:
    """All groups of one stream, backbone, network, data fraction, number of tasks and epochs."""

    label: str
    groups: tuple[Group, ...]

    @property
    def run(self) -> Run:
        """One of its runs, to ask where it was."""
        return self.groups[0].runs[0].run

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions in the stream, counted from 1."""
        return tuple(range(1, self.run.tasks + 1))

    @cached_property
    def distinct(self) -> tuple[Group, ...]:
        """One group for each method and settings: that under orders first-K only where there is no other."""
        plain = {(group.method, group.apart) for group in self.groups if not group.shows_first}
        return tuple(g for g in self.groups if not g.shows_first or (g.method, g.apart) not in plain)

    @cached_property
    def main(self) -> tuple[Group, ...]:
        """One group for each method: see `halrp.lab.report.usual`."""
        methods: dict[str, list[Group]] = {}
        for group in self.distinct:
            methods.setdefault(group.method, []).append(group)
        return tuple(chosen(groups, lambda group: group.row) for groups in methods.values())

    @property
    def whole(self) -> bool:
        """Whether all tasks of a benchmark were learned, so that the paper's results may stand beside ours."""
        about = registry.STREAMS.get(self.run.stream)
        return about is not None and about.tasks == self.run.tasks

    def printed(self, method: str) -> Printed | None:
        """What the paper prints for a method here; None if nothing can be held against it."""
        run = self.run
        return paper.lookup(run.stream, run.backbone, run.fraction, method) if self.whole else None


@dataclass(frozen=True)
class Grouped:
    """All runs of some records, by place."""

    places: tuple[Place, ...]

    @staticmethod
    def of(records: Iterable[Record]) -> Grouped:
        """Measure records and group them; places, methods and runs are in the order of the tables."""
        records = list(records)
        runs = sorted(map(Run.of, records), key=Run.sorting)
        measured = [Measured(run, row) for run, row in zip(runs, runs_table(records), strict=True)]
        kinds: dict[tuple[Any, ...], list[Measured]] = {}
        for one in measured:
            kinds.setdefault(one.run.kind, []).append(one)
        by_place: dict[tuple[Any, ...], list[tuple[list[Measured], Row]]] = {}
        for members, row in zip(kinds.values(), summary(records), strict=True):
            by_place.setdefault(members[0].run.place, []).append((members, row))
        labels = place_labels([here[0][0][0].run for here in by_place.values()])
        return Grouped(
            tuple(Place(label, _groups(here)) for label, here in zip(labels, by_place.values(), strict=True))
        )

    def each(self) -> Iterator[tuple[Place, Group, Measured]]:
        """Every run, with its group and place."""
        for place in self.places:
            for group in place.groups:
                for one in group.runs:
                    yield place, group, one


def run_label(place: Place, group: Group, one: Measured) -> str:
    """A name for a run that no other has."""
    return f"{place.label} · {group.name} · order {one.run.order} · seed {one.run.seed}"


def stream_title(name: str) -> str:
    """A stream as it is written in a text; a variant is told in brackets."""
    plain, _, variant = name.partition("@")
    title = STREAMS.get(plain, plain)
    return f"{title} ({variant.replace('@', ', ')})" if variant else title


def place_labels(runs: Sequence[Run]) -> list[str]:
    """Names of places, given a run of each: longer where several would have the same."""
    labels = [
        f"{stream_title(run.stream)} · {BACKBONES.get(run.backbone, run.backbone)} · {100 * run.fraction:g} %"
        for run in runs
    ]
    details = [
        (
            text(run.network),
            f"{run.tasks} task{'s' * (run.tasks != 1)}",
            "epochs unknown" if run.epochs is None else f"{run.epochs} epoch{'s' * (run.epochs != 1)}",
        )
        for run in runs
    ]
    found = []
    for label, detail in zip(labels, details, strict=True):
        same = [other for name, other in zip(labels, details, strict=True) if name == label]
        needed = [one for i, one in enumerate(detail) if len({other[i] for other in same}) > 1]
        found.append(" · ".join([label, *filter(None, needed)]))
    return found


def rounded(values: Iterable[float | None], digits: int = 2) -> tuple[float | None, ...]:
    """Numbers with so many digits after the point; None for those that are missing or not finite."""
    return tuple(None if v is None or not math.isfinite(v) else round(float(v), digits) + 0.0 for v in values)


def significant(values: Iterable[float | None], digits: int = 4) -> tuple[float | None, ...]:
    """Numbers above zero with so many digits in all, for a logarithmic axis; None for all others."""
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


def default_values(method: str) -> dict[str, Any]:
    """The defaults of today of a method's settings and of the recipe; of an unknown method, of the recipe alone."""
    known = METHODS[method].settings() if method in METHODS else {}
    given = {name: value for name, value in known.items() if value is not inspect.Parameter.empty}
    return {**describe(Recipe()), **describe_all(given)}


def _groups(here: Sequence[tuple[list[Measured], Row]]) -> tuple[Group, ...]:
    """The groups of a place."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for members, _ in here:
        run = members[0].run
        by_method.setdefault(run.method, []).append({**run.recipe, **run.settings})
    found = []
    for members, row in here:
        run = members[0].run
        given, defaults = {**run.recipe, **run.settings}, default_values(run.method)
        others = by_method[run.method]
        names = {name for other in others for name in other}
        differing = {name for name in names if len({text({name: o[name]}) if name in o else "" for o in others}) > 1}
        found.append(Group(run.method, _apart(given, differing, defaults), {**defaults, **given}, tuple(members), row))
    return tuple(found)


def _apart(given: Mapping[str, Any], differing: set[str], defaults: Mapping[str, Any]) -> str:
    """What tells settings from others: those not left at their defaults, or else the defaults that others changed."""
    if not differing:
        return ""
    own = {name: value for name, value in given.items() if name in differing}
    usual = {name: defaults[name] for name in differing if defaults.get(name) is not None}
    return text(own or usual) or "defaults"
