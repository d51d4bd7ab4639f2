"""Which of several settings of a method represents it, where only one can be shown.

Those of the benchmark's preset, or else those with the most runs. Runs that show the effect of each first task (orders
first-K) represent a method only where it has no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from halrp.lab import presets
from halrp.lab.presets import sweep_file
from halrp.lab.records.schema import Record, as_text

DECISIVE = ("stream", "backbone", "fraction", "method", "settings", "recipe", "first_order", "runs")
"""The columns that decide it."""


def representative(groups: Sequence[Mapping[str, Any]]) -> int:
    """The position of the row, among rows of `summarise` of one method, that represents it; of equals, the first."""
    return max(range(len(groups)), key=lambda i: _weight(groups[i]))


def _weight(row: Mapping[str, Any]) -> tuple[bool, bool, int]:
    preset = settings_of_preset(row["stream"], row["backbone"], row["fraction"]).get(row["method"])
    return not row["first_order"], (row["settings"], row["recipe"]) == preset, row["runs"]


@cache
def settings_of_preset(stream: str, backbone: str, fraction: float) -> dict[str, tuple[str, str]]:
    """By method, the texts of its settings and recipe in the benchmark's preset; empty if there is no preset."""
    benchmark = stream.partition("@")[0]
    over = {"order": "A", "seed": 0, "fraction": fraction}
    settings = {}
    for name in (benchmark, f"{benchmark}-{backbone}"):
        if name not in presets.names():
            continue
        for _, cell in sweep_file.entries(sweep_file.read(name)[1], over, name):
            record = Record.of({"cell": cell, "rows": []})
            settings[record.method] = as_text(record.settings), as_text(record.recipe)
    return settings
