"""Which of several runs of one method stands for it, where only one can be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

from halrp.lab import presets
from halrp.lab.records.aggregate import Row
from halrp.lab.records.schema import Run, text
from halrp.lab.run import sweep

T = TypeVar("T")


def chosen(groups: Iterable[T], row: Callable[[T], Row]) -> T:
    """The group that stands for a method: that with the settings of the benchmark's preset, or else with the most runs.

    Runs that show what comes of each first task are taken only where there is nothing else. `row` gives a group's row
    of `halrp.lab.records.aggregate.summary`. Of equals the first is taken.
    """
    return max(groups, key=lambda group: _weight(row(group)))


def _weight(row: Row) -> tuple[bool, bool, int]:
    place = str(row["stream"]), str(row["backbone"]), float(row["fraction"])  # type: ignore[arg-type]
    usual = settings_of_preset(*place).get(str(row["method"]))
    shows_first = str(row["orders"]).startswith(("first-", "all "))
    return not shows_first, (row["settings"], row["recipe"]) == usual, int(row["runs"])  # type: ignore[arg-type]


@cache
def settings_of_preset(stream: str, backbone: str, fraction: float) -> dict[str, tuple[str, str]]:
    """By method, its settings and recipe in the benchmark's preset, as tables write them; empty without a preset."""
    plain = stream.partition("@")[0]
    names = [name for name in (plain, f"{plain}-{backbone}") if name in presets.names()]
    cells = [
        c for n in names for c in sweep.expand(sweep.read(n)[1], {"order": "A", "seed": 0, "fraction": fraction}, n)
    ]
    found = {}
    for cell in cells:
        run = Run.of({"cell": cell.canonical(), "resolved": cell.resolved(), "rows": []})
        found[cell.method] = text(run.settings), text(run.recipe)
    return found
