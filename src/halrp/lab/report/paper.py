"""What the paper's tables say, under our names of benchmarks, backbones and methods.

The numbers are those of `reference/paper_results.json`: accuracies, errors and disparities in %. A variant of a
benchmark, such as `five@subset`, is another benchmark than the paper's, and nothing is found for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from halrp.lab import registry
from halrp.lab.reference import load_reference

Place: TypeAlias = tuple[str, str, float]
"""Where the paper prints results: stream, backbone, fraction."""

NAMES = {name: entry.paper_name for name, entry in registry.METHODS.items() if entry.paper_name}
"""What our methods are called in the paper's tables. Three of ours are compared with HALRP."""
STREAMS = {entry.paper_name: name for name, entry in registry.STREAMS.items() if entry.paper_name}
BACKBONES = {entry.paper_name: name for name, entry in registry.BACKBONES.items() if entry.paper_name}
ALIASES = {
    alias: entry.paper_name for entry in registry.METHODS.values() for alias in entry.paper_aliases if entry.paper_name
}
"""Methods with two names in the paper."""
VARIANTS = {
    row: tuple(name for name, entry in registry.METHODS.items() if entry.paper_ablation == row)
    for row in dict.fromkeys(entry.paper_ablation for entry in registry.METHODS.values())
    if row
}
"""Which of our methods the rows of the paper's ablation are compared with: those that have its settings."""


@dataclass(frozen=True)
class Printed:
    """A row of the paper's tables; None is what is not printed."""

    stream: str
    backbone: str
    fraction: float
    method: str
    """As the paper calls it; `ours` are the names of our methods that it is held against."""
    accuracy: float
    std: float | None
    """The number after ±, which the paper calls the standard error over five seeds."""
    mopd: float | None
    aopd: float | None
    table: str
    note: str = ""

    @property
    def ours(self) -> tuple[str, ...]:
        """Our methods that are held against this row."""
        return tuple(name for name, theirs in NAMES.items() if theirs == self.method)

    @property
    def place(self) -> Place:
        """Where it is printed."""
        return self.stream, self.backbone, self.fraction


@dataclass(frozen=True)
class Ablated:
    """A row of the paper's ablation: `alpha` is the rate, `n_r` the epochs of warm-up, `size` the growth."""

    stream: str
    backbone: str
    variant: str
    ours: tuple[str, ...]
    alpha: float | None
    n_r: int | None
    accuracy: float
    std: float
    size: float


class Schedule(NamedTuple):
    """How the paper trains on a benchmark."""

    epochs: int
    lr: float
    batch: int


@cache
def printed() -> tuple[Printed, ...]:
    """All results of the paper that have a benchmark and a method of ours, in its order; each is there once."""
    everything = load_reference("paper_results")
    found: dict[tuple[Place, str], Printed] = {}
    for row in (*everything["records"], *everything["iru_table"]):
        one = _printed(row)
        found.setdefault((one.place, one.method), one)  # the paper prints some HALRP rows again beside IBPWF
    return tuple(found.values())


@cache
def iru() -> tuple[Printed, ...]:
    """The paper's comparison with incremental rank updates."""
    return tuple(map(_printed, load_reference("paper_results")["iru_table"]))


@cache
def ablation() -> tuple[Ablated, ...]:
    """The paper's ablation."""
    return tuple(
        Ablated(
            stream=STREAMS[row["dataset"]],
            backbone=BACKBONES[row["backbone"]],
            variant=row["variant"],
            ours=VARIANTS[row["variant"]],
            alpha=row["alpha"],
            n_r=row["n_r"],
            accuracy=row["accuracy"],
            std=row["std"],
            size=row["relative_size"],
        )
        for row in load_reference("paper_results")["ablation_table"]
    )


@cache
def places() -> tuple[Place, ...]:
    """Where the paper prints results, in its order."""
    return tuple(dict.fromkeys(one.place for one in printed()))


def place_of(stream: str, backbone: str, fraction: float) -> Place:
    """A place under which results are found; the fraction is rounded, so that 0.05 is found however it was computed."""
    return stream, backbone, round(fraction, 6)


def at(place: Place) -> tuple[Printed, ...]:
    """What the paper prints at a place, in its order."""
    return _by_place().get(place_of(*place), ())


def lookup(stream: str, backbone: str, fraction: float, method: str) -> Printed | None:
    """What the paper prints for a method of ours; None if it prints nothing that can be held against it."""
    name = NAMES.get(method)
    return next((one for one in at((stream, backbone, fraction)) if one.method == name), None)


@cache
def schedule(stream: str, backbone: str) -> Schedule | None:
    """How the paper trains there; None if it does not say, as for the comparison with incremental rank updates."""
    for name, row in load_reference("paper_results")["hyperparameters_table"]["settings"].items():
        dataset, _, network = name.partition("/")
        if (STREAMS[dataset], BACKBONES[network]) == (stream, backbone):
            return Schedule(row["n_epochs"], row["lr"], row["batch_size"])
    return None


@cache
def _by_place() -> dict[Place, tuple[Printed, ...]]:
    return {place: tuple(one for one in printed() if one.place == place) for place in places()}


def _printed(row: dict[str, Any]) -> Printed:
    quoted = row.get("reported_in", "HALRP paper") != "HALRP paper"
    return Printed(
        stream=STREAMS[row["dataset"]],
        backbone=BACKBONES[row["backbone"]],
        fraction=row.get("data_fraction", 1.0),
        method=ALIASES.get(row["method"], row["method"]),
        accuracy=row["accuracy"],
        std=row["std"],
        mopd=row.get("mopd"),
        aopd=row.get("aopd"),
        table=row["table"],
        note=f"quoted from the {row['reported_in']}" if quoted else row.get("note", ""),
    )
