"""The numbers of the paper's tables, under our names of benchmarks, backbones and methods.

The numbers are those of `reference/paper_results.json`: accuracies, errors and disparities in %. A variant of a
benchmark, such as `five@subset`, is another benchmark than the paper's, and has no numbers here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from halrp.lab import registry
from halrp.lab.reference import load_reference

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


class Benchmark(NamedTuple):
    """What the paper prints results for."""

    stream: str
    backbone: str
    fraction: float
    """The share of the training and validation data."""


@dataclass(frozen=True)
class Printed:
    """A row of the paper's tables; None is what is not printed."""

    benchmark: Benchmark
    method: str
    """As the paper calls it; `ours` are the names of our methods that it is compared with."""
    accuracy: float
    std: float | None
    """The number after ±, which the paper calls the standard error over five seeds."""
    mopd: float | None
    aopd: float | None
    table: str
    note: str = ""

    @property
    def ours(self) -> tuple[str, ...]:
        """Our methods that are compared with this row."""
        return tuple(name for name, theirs in NAMES.items() if theirs == self.method)


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
    """All results of the paper that have a benchmark and a method of ours, in its order, each once."""
    reference = load_reference("paper_results")
    rows: dict[tuple[Benchmark, str], Printed] = {}
    for row in map(_printed, (*reference["records"], *reference["iru_table"])):
        rows.setdefault((row.benchmark, row.method), row)  # the paper prints some HALRP rows again beside IBPWF
    return tuple(rows.values())


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
def benchmarks() -> tuple[Benchmark, ...]:
    """What the paper prints results for, in its order."""
    return tuple(dict.fromkeys(row.benchmark for row in printed()))


def benchmark_of(stream: str, backbone: str, fraction: float) -> Benchmark:
    """The key of results; the fraction is rounded, so that 0.05 is found however it was computed."""
    return Benchmark(stream, backbone, round(fraction, 6))


def at(benchmark: Benchmark) -> tuple[Printed, ...]:
    """What the paper prints for a benchmark, in its order."""
    return _by_benchmark().get(benchmark_of(*benchmark), ())


def lookup(stream: str, backbone: str, fraction: float, method: str) -> Printed | None:
    """What the paper prints for a method of ours; None if it prints nothing that can be compared with it."""
    name = NAMES.get(method)
    return next((row for row in at(Benchmark(stream, backbone, fraction)) if row.method == name), None)


@cache
def schedule(stream: str, backbone: str) -> Schedule | None:
    """How the paper trains there; None if it is not documented, as for the comparison with incremental rank updates."""
    for name, row in load_reference("paper_results")["hyperparameters_table"]["settings"].items():
        dataset, _, network = name.partition("/")
        if (STREAMS[dataset], BACKBONES[network]) == (stream, backbone):
            return Schedule(row["n_epochs"], row["lr"], row["batch_size"])
    return None


@cache
def _by_benchmark() -> dict[Benchmark, tuple[Printed, ...]]:
    return {benchmark: tuple(row for row in printed() if row.benchmark == benchmark) for benchmark in benchmarks()}


def _printed(row: dict[str, Any]) -> Printed:
    quoted = row.get("reported_in", "HALRP paper") != "HALRP paper"
    return Printed(
        benchmark=Benchmark(STREAMS[row["dataset"]], BACKBONES[row["backbone"]], row.get("data_fraction", 1.0)),
        method=ALIASES.get(row["method"], row["method"]),
        accuracy=row["accuracy"],
        std=row["std"],
        mopd=row.get("mopd"),
        aopd=row.get("aopd"),
        table=row["table"],
        note=f"quoted from the {row['reported_in']}" if quoted else row.get("note", ""),
    )
