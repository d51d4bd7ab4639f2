"""Records of folders as frames, and the columns that tables of documents share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from halrp.lab.records.frames import Frame
from halrp.lab.records.loading import load
from halrp.lab.records.schema import Record, as_text
from halrp.lab.report.pairing import Pair
from halrp.lab.report.paper import Benchmark, lookup
from halrp.lab.report.study import Study
from halrp.lab.report.table import Column, Markdown, Table, Value, plain_rows
from halrp.lab.report.table_writers import markdown_rows


def grouped_digits(value: float) -> str:
    """A large number without digits after the point."""
    return f"{value:,.0f}"


ACCURACY = (Column("accuracy", "accuracy (%)", 2), Column("accuracy_error", "±", 2))
TEST = Column("accuracy", "test (%)", 2)
BWT = Column("bwt", "BWT", 2)
DISPARITY = Column("mopd", "MOPD / AOPD", 1, others=("aopd",), separator=" / ")
GROWTH = Column("growth_counted", "growth", 3)
LATER_BYTES = Column("later_bytes", "bytes per further task", format=grouped_digits)
PAPER = (Column("paper", "paper"), Column("difference", "difference"))
BEYOND_PAPER = ("average", "dropout", "exact_statistics")
"""Settings of training that no run of the paper's has."""


@cache
def records(folder: Path) -> tuple[Record, ...]:
    """The usable records of a folder."""
    return tuple(load([folder]).records)


def records_of(folders: Iterable[Path]) -> list[Record]:
    """The usable records of some folders."""
    return [record for folder in folders for record in records(folder)]


@cache
def groups(folder: Path) -> Frame:
    """One row per method and settings: see `Study.groups`."""
    return Study.of(records(folder)).groups


def markdown(columns: Iterable[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    """A table for a document."""
    return markdown_rows(Table("", "", "", tuple(columns), plain_rows(rows)))


def described(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a frame with columns for readers: the method as code, the error, and what the paper prints beside it."""
    name = f"`{row['method']}`"
    settings = ", ".join(filter(None, (row["settings"], trained_by(row["record"]))))
    full = Markdown(f"{name} ({settings})" if settings else name)
    labels: dict[str, Value] = {"method": Markdown(name), "run": full, "stream": Markdown(f"`{row['stream']}`")}
    share = {"data": f"{100 * row['fraction']:g} %", "accuracy_error": row.get("error_usual")}
    return {**row, **labels, **share, **_paper(row)}


def trained_by(record: Record) -> str:
    """What a run's recipe has beyond the paper's, in words; empty if it has nothing."""
    if {*record.recipe.get("automatic", ())} & {*BEYOND_PAPER}:
        return "default recipe"
    return as_text({name: record.recipe[name] for name in BEYOND_PAPER if name in record.recipe})


def _paper(row: Mapping[str, Any]) -> dict[str, str]:
    """The paper's accuracy, ours less the paper's where they can be compared, and the paper's disparities."""
    benchmark, method = Benchmark(row["stream"], row["backbone"], row["fraction"]), row["method"]
    printed = lookup(*benchmark, method)
    if printed is None:
        return dict.fromkeys(("paper", "difference", "paper_disparity"), "")
    comparable = not Pair(benchmark, method, printed, dict(row)).obstacles and not math.isnan(row["accuracy"])
    return {
        "paper": f"{printed.accuracy:.2f}",
        "difference": f"{row['accuracy'] - printed.accuracy:+.2f}" if comparable else "",
        "paper_disparity": f"{printed.mopd:.1f} / {printed.aopd:.1f}" if printed.mopd and printed.aopd else "",
    }
