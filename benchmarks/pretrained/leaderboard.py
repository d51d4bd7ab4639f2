"""The leaderboard of the README: accuracy within a number of bytes for each task, and the commit that reached it.

Beside the pretrained networks it has a row for the paper's benchmark, a LeNet that learns from scratch, as soon as
there are records of the library's default method on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.pretrained import commits, records
from benchmarks.pretrained.records import Row
from benchmarks.pretrained.table import Estimate, Line, difference, lines
from halrp.lab.records import by_size, paired
from halrp.lab.records.by_size import Point
from halrp.lab.records.loading import load
from halrp.lab.records.schema import Record
from halrp.lab.registry import METHODS
from halrp.lab.report.documents import filled
from halrp.lab.report.study import Study

SHOTS = {"vision": 30, "text": 60}
TITLES = {
    "vision": "EfficientNet-Lite0, 16 tasks of CIFAR-100, 30 images a class",
    "text": "MiniLM-L6, texts of Debian's packages, 60 texts a class",
}
HERE = {"halrp": 0, "lora": 1, "probe": 2, "finetune": 3}
"""The kinds of methods, by the beginning of their names."""
BOUNDS = (50_000, 100_000, 200_000)
PAPER, PAPER_TITLE = "cifar100-split-25", "LeNet from scratch, CIFAR100-Split, 25 % of the data"
"""The folder of the paper's benchmark, below that of all results, and its title."""
OURS = "halrp"
DOCUMENTS = ("README.md", "docs/comparison.md")
"""Documents with the leaderboard."""
HEADER = (
    "| benchmark | KB per task | `halrp` | best of the others | difference, points | commit |",
    "| --- | ---: | --- | --- | ---: | --- |",
)


class Best(NamedTuple):
    """The most accurate of some methods within a bound."""

    accuracy: float
    bytes: float
    label: str = ""


def held_out(rows: Sequence[Row], dev: Sequence[str], shots: int) -> list[Line]:
    """The methods on the tasks that nothing was chosen on; those with fewer fits than the probe are left out."""
    tasks = sorted({row["task"] for row in records.fits(rows)} - set(dev))
    methods = lines(rows, shots, tasks)
    most = max((len(line.accuracy) for line in methods), default=0)
    return [line for line in methods if len(line.accuracy) >= most / 2]


def kind_of(line: Line) -> int | None:
    """Which of the kinds a method is; None for variants that the tables alone show."""
    name = line.method.split("-")[0]
    plain = name != "halrp" or line.method.removeprefix("halrp-").isdigit()
    return HERE.get(name) if plain else None


def leaderboard(
    rows: Mapping[str, Sequence[Row]], dev: Mapping[str, Sequence[str]], known: commits.Known, paper: Path
) -> str:
    """The best accuracy within each bound, of `halrp` and of everything else, with the paired difference."""
    shown = [*HEADER]
    for name in rows:
        methods = [line for line in held_out(rows[name], dev[name], SHOTS[name]) if kind_of(line) is not None]
        for bound in BOUNDS:
            shown += _pretrained(name, bound, methods, known.get(name, {}))
    return "\n".join([*shown, *_from_scratch(paper)])


# ---- pretrained networks ------------------------------------------------------------------------------------------


def _pretrained(name: str, bound: int, methods: Sequence[Line], known: Mapping[str, str]) -> Iterator[str]:
    within = [line for line in methods if line.bytes <= bound and _bound(line) <= bound]
    ours = max((line for line in within if kind_of(line) == 0), key=_mean, default=None)
    rival = max((line for line in within if kind_of(line) != 0), key=_mean, default=None)
    if ours is not None and rival is not None:
        others = Best(_mean(rival), rival.bytes, f"`{rival.method}`, {rival.form}")
        reached = [commits.commit_of(ours.last, known)]
        yield _row(TITLES[name], bound, Best(_mean(ours), ours.bytes), others, difference(ours, rival), reached)


def _bound(line: Line) -> int:
    """The bound that a file of `halrp` was given."""
    return int(line.method.removeprefix("halrp-")) * 1000 if kind_of(line) == 0 else 0


def _mean(line: Line) -> float:
    return statistics.fmean(line.accuracy.values())


def _row(
    title: str, bound: int, ours: Best, others: Best, paired: Estimate | None, reached: Iterable[str | None]
) -> str:
    cells = (
        title,
        bound // 1000,
        f"**{ours.accuracy:.1f} %** ({ours.bytes / 1000:.0f} KB)",
        f"{others.accuracy:.1f} % ({others.label}, {others.bytes / 1000:.0f} KB)",
        "" if paired is None else paired.signed,
        ", ".join(f"`{commit[:7]}`" for commit in dict.fromkeys(reached) if commit) or "unknown",
    )
    return f"| {' | '.join(map(str, cells))} |"


# ---- the paper's benchmark ----------------------------------------------------------------------------------------


def _from_scratch(folder: Path) -> Iterator[str]:
    """Rows of the paper's benchmark: none before there are records of ours."""
    raw = load([folder]).records if folder.exists() else []
    study = Study.of(raw)
    for groups in study.setups.values():
        if OURS not in set(groups["method"]):
            continue
        points = by_size.points(groups, study.runs)
        for bound in BOUNDS:
            within = [point for point in points if point.bytes <= bound]
            ours = _most([point for point in within if point.method == OURS])
            rival = _most([point for point in within if not _is_ours(point.method)])
            if ours is not None and rival is not None:
                yield _against(bound, ours, rival, raw)


def _against(bound: int, ours: Point, rival: Point, raw: Iterable[Record]) -> str:
    test = paired.compare(ours.finals, rival.finals)
    runs = {run for _, run in ours.finals}
    mine = [record for record in raw if record.method == OURS and (record.order, record.seed) in runs]
    reached = [record.environment.get("commit") for record in mine]
    others = Best(rival.accuracy, rival.bytes, f"`{rival.method}`")
    estimated = Estimate(test.difference, test.error)
    return _row(PAPER_TITLE, bound, Best(ours.accuracy, ours.bytes), others, estimated, reached)


def _is_ours(method: str) -> bool:
    """Whether a method is what the paper calls HALRP."""
    entry = METHODS.get(method)
    return entry is not None and entry.paper_name == METHODS[OURS].paper_name


def _most(points: Sequence[Point]) -> Point | None:
    return max(points, key=lambda point: point.accuracy, default=None)


# ---- documents ----------------------------------------------------------------------------------------------------


def inputs(results: Path) -> tuple[dict[str, list[Row]], dict[str, Sequence[str]]]:
    """The rows of each domain, and its dev tasks."""
    from benchmarks.pretrained.text import Text
    from benchmarks.pretrained.vision import Vision

    names = {"vision": Vision.dev, "text": Text.dev}
    return {name: records.read(results / f"{name}.jsonl") for name in names}, dict(names)


def parts(results: Path) -> dict[str, Callable[[], str]]:
    """The writer of the generated part, by its name."""
    return {"leaderboard": partial(leaderboard, *inputs(results), commits.read(results), results.parent / PAPER)}


def write(results: Path, root: Path) -> None:
    """Write the leaderboard into the documents that have it."""
    made = parts(results)
    for document in (root / name for name in DOCUMENTS if (root / name).exists()):
        document.write_text(filled(document.read_text("utf-8"), made), "utf-8")
