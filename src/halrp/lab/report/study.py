"""All records of a report as frames: `runs`, `steps`, and `groups`, one row per method and settings in a setup.

The frames are those of `halrp.lab.records`, with labels for readers; tables and figures are selections of their rows,
so that they cannot disagree. Groups and runs are in the order of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from halrp.lab import registry
from halrp.lab.records import frames
from halrp.lab.records.frames import Frame
from halrp.lab.records.schema import Record, Setup, as_text
from halrp.lab.records.summary import group_numbers, summarise
from halrp.lab.report import paper
from halrp.lab.report.paper import Printed
from halrp.lab.report.representative import DECISIVE, representative


@dataclass(frozen=True)
class Study:
    """The frames of a report."""

    runs: Frame
    """`frames.runs` with `group`, the index in `groups`, and `label`, which no other run has."""
    groups: Frame
    """`summarise(runs)` with the columns

    - `setup`: the name of the experimental setup, such as "CIFAR100-Split · LeNet · 25 %";
    - `variant`: the settings that distinguish the group from others of the method in the setup, or empty;
    - `title`: the method's name, or the title of a method that is not the package's;
    - `name`: the title, with the variant in brackets;
    - `repeats`: the number of runs, in words;
    - `printed`: what the paper prints for the method; None if nothing can be compared with it;
    - `values`: all known settings of method and recipe, defaults included;
    - `distinct`: False for runs under orders first-K of a variant that was also run under other orders;
    - `representative`: whether it represents its method in the setup.
    """

    @staticmethod
    def of(records: Iterable[Record]) -> Study:
        """Measure all records, then group and label them."""
        runs = frames.runs(records)
        groups = summarise(runs)
        runs["group"] = group_numbers(runs)
        groups["setup"] = _labels(groups)
        groups["values"] = [record.values for record in groups["record"]]
        methods = groups.groupby(["setup", "method"], sort=False).groups.values()
        variants: dict[int, str] = {}
        for same in methods:
            variants |= zip(same, _variants([groups["record"][i] for i in same]), strict=True)
        groups["variant"] = pd.Series(variants, groups.index, dtype=object)
        groups["title"] = _titles(groups)
        groups["name"] = groups["title"] + groups["variant"].map(lambda text: f" ({text})" if text else "")
        groups["repeats"] = [f"{n} run{'s' * (n != 1)}" for n in groups["runs"]]
        groups["printed"] = pd.Series([_printed(record) for record in groups["record"]], groups.index, dtype=object)
        repeated = groups.loc[~groups["first_order"].astype(bool), ["setup", "name"]]
        named = {*repeated.itertuples(index=False, name=None)}
        keys = zip(groups["setup"], groups["name"], groups["first_order"], strict=True)
        groups["distinct"] = [not first or (setup, name) not in named for setup, name, first in keys]
        rows = groups[[*DECISIVE, "distinct"]].to_dict("index")
        distinct = [[i for i in same if rows[i]["distinct"]] for same in methods]
        chosen = [same[representative([rows[i] for i in same])] for same in distinct]
        groups["representative"] = groups.index.isin(chosen)
        members = groups.loc[runs["group"]]
        runs["label"] = [
            f"{setup} · {name} · order {order} · seed {seed}"
            for setup, name, order, seed in zip(
                members["setup"], members["name"], runs["order"], runs["seed"], strict=True
            )
        ]
        return Study(runs, groups)

    @cached_property
    def steps(self) -> Frame:
        """One row per run and task: see `halrp.lab.records.frames.steps`."""
        return frames.steps(self.runs)

    @cached_property
    def steps_by_run(self) -> dict[int, Frame]:
        """The rows of `steps` by run, in the order of tables."""
        return dict([*self.steps.groupby("run", sort=False)])

    @cached_property
    def representatives(self) -> dict[str, Frame]:
        """The groups that represent their methods, by the name of their setup."""
        return {label: groups[groups["representative"]] for label, groups in self.setups.items()}

    @cached_property
    def setups(self) -> dict[str, Frame]:
        """The groups by the name of their setup, in the order of tables."""
        return dict([*self.groups.groupby("setup", sort=False)])


def stream_title(name: str) -> str:
    """A stream as it is written in a text, with its variant in brackets."""
    benchmark, _, variant = name.partition("@")
    entry = registry.STREAMS.get(benchmark)
    title = entry.title if entry else benchmark
    return f"{title} ({variant.replace('@', ', ')})" if variant else title


def backbone_title(name: str) -> str:
    """A backbone as it is written in a text."""
    entry = registry.BACKBONES.get(name)
    return entry.title if entry else name


def is_whole(record: Record) -> bool:
    """Whether all tasks of a benchmark were learned, so that the paper's results can be compared with ours."""
    entry = registry.STREAMS.get(record.stream)
    return entry is not None and entry.tasks == record.tasks


def _printed(record: Record) -> Printed | None:
    return paper.lookup(record.stream, record.backbone, record.fraction, record.method) if is_whole(record) else None


def _titles(groups: Frame) -> list[str]:
    """Titles of methods; one that is another method's title or name, too, is followed by its own name in brackets."""
    titles = dict(zip(groups["method"], (record.title for record in groups["record"]), strict=True))
    count = Counter(titles.values())
    ambiguous = {m for m, title in titles.items() if m != title and (count[title] > 1 or title in registry.METHODS)}
    return [f"{titles[m]} [{m}]" if m in ambiguous else titles[m] for m in groups["method"]]


def _labels(groups: Frame) -> list[str]:
    """A name of each group's setup: longer where several setups would have the same."""
    rows: list[Setup] = [record.setup for record in groups["record"]]
    labels = _setup_labels([*dict.fromkeys(rows)])
    return [labels[setup] for setup in rows]


def _setup_labels(setups: Sequence[Setup]) -> dict[Setup, str]:
    brief = {s: f"{stream_title(s.stream)} · {backbone_title(s.backbone)} · {100 * s.fraction:g} %" for s in setups}
    details = {
        s: (
            s.network,
            f"{s.tasks} task{'s' * (s.tasks != 1)}",
            "epochs unknown" if s.epochs is None else f"{s.epochs} epoch{'s' * (s.epochs != 1)}",
        )
        for s in setups
    }
    labels = {}
    for setup in setups:
        same = [details[other] for other in setups if brief[other] == brief[setup]]
        needed = [text for i, text in enumerate(details[setup]) if len({other[i] for other in same}) > 1]
        labels[setup] = " · ".join([brief[setup], *filter(None, needed)])
    return labels


def _variants(records: Sequence[Record]) -> list[str]:
    """The settings that distinguish groups of one method in one setup, given a record of each."""
    given = [{**record.recipe, **record.settings} for record in records]
    names = {name for values in given for name in values}
    differing = {n for n in names if len({as_text({n: values[n]}) if n in values else "" for values in given}) > 1}
    return [_variant(values, differing, record.values) for values, record in zip(given, records, strict=True)]


def _variant(given: Mapping[str, Any], differing: set[str], values: Mapping[str, Any]) -> str:
    """The settings that are not defaults, or else the defaults that other groups changed."""
    if not differing:
        return ""
    changed = {name: value for name, value in given.items() if name in differing}
    defaults = {name: values[name] for name in differing if values.get(name) is not None}
    return as_text(changed or defaults) or "defaults"
