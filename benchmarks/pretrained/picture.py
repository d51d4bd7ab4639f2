"""Accuracy against the bytes of a task on a pretrained base: the picture and the leaderboard of the README."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.drawing import COLOURS, INK, SOFT, Panel, legend, svg, text
from benchmarks.pretrained import records
from benchmarks.pretrained.records import Row
from benchmarks.pretrained.table import Line, difference, estimate, lines
from halrp.lab.report.documents import filled
from halrp.store import atomic

SHOTS = {"vision": 30, "text": 60}
TITLES = {
    "vision": "EfficientNet-Lite0, 16 tasks of CIFAR-100, 30 images a class",
    "text": "MiniLM-L6, texts of Debian's packages, 60 texts a class",
}
KINDS = ("halrp", "LoRA (PEFT)", "probe", "fine-tuned copy")
HERE = {"halrp": 0, "lora": 1, "probe": 2, "finetune": 3}
BOUNDS = (50_000, 100_000, 200_000)
DOCUMENTS = ("README.md", "docs/comparison.md")
"""Documents with the leaderboard."""


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


def picture(rows: Mapping[str, Sequence[Row]], dev: Mapping[str, Sequence[str]]) -> str:
    """A panel for each domain that has `halrp` on held-out tasks; bytes on a logarithmic axis."""
    domains = {name: held_out(rows[name], dev[name], SHOTS[name]) for name in rows}
    shown = {name: rows for name, rows in domains.items() if any(kind_of(line) == 0 for line in rows)}
    height = 250
    parts = []
    for number, kind in enumerate(KINDS):
        parts += legend(50 + 130 * number, 18, [kind], [COLOURS[number]])
    for number, (name, methods) in enumerate(shown.items()):
        parts += _panel(60 + height * number, TITLES[name], methods)
    return svg(620, 50 + height * max(1, len(shown)), parts, "Accuracy against the bytes that a task adds")


def _panel(top: float, title: str, methods: Sequence[Line]) -> list[str]:
    drawn = [(kind, line) for line in methods if (kind := kind_of(line)) is not None]
    means = {id(line): estimate(list(line.accuracy.values())) for _, line in drawn}
    low = math.floor(min(m.mean for m in means.values()) - 0.6)
    high = math.ceil(max(m.mean for m in means.values()) + 0.6)
    sizes = [line.bytes for _, line in drawn]
    panel = Panel(60, top + 18, 520, 150, (min(sizes) / 1.6, max(sizes) * 1.6), (low, high), (True, False))
    panel.axes("bytes that a task adds", "", _short)
    for kind in range(len(KINDS)):
        mine = sorted((line for k, line in drawn if k == kind), key=lambda line: line.bytes)
        points = [(line.bytes, means[id(line)].mean) for line in mine]
        if kind == 0:
            panel.line(points, COLOURS[kind])
        panel.dots(points, COLOURS[kind], 5 if kind == 0 else 4)
    note = "test accuracy, %, held-out tasks × seeds: " + str(max(len(line.accuracy) for line in methods))
    return [text(30, top - 8, title, colour=INK), text(30, top + 8, note, colour=SOFT), *panel.parts]


def _short(size: float) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e6 else f"{size / 1e3:g} KB"


def leaderboard(rows: Mapping[str, Sequence[Row]], dev: Mapping[str, Sequence[str]]) -> str:
    """The best accuracy within each bound, of `halrp` and of everything else, with the paired difference."""
    shown = [
        "| benchmark | KB per task | `halrp` | best of the others | difference, points |",
        "| --- | ---: | --- | --- | ---: |",
    ]
    for name in rows:
        methods = [line for line in held_out(rows[name], dev[name], SHOTS[name]) if kind_of(line) is not None]
        for bound in BOUNDS:
            within = [line for line in methods if line.bytes <= bound and _bound(line) <= bound]
            ours = max((line for line in within if kind_of(line) == 0), key=_mean, default=None)
            rival = max((line for line in within if kind_of(line) != 0), key=_mean, default=None)
            if ours is None or rival is None:
                continue
            paired = difference(ours, rival)
            best = f"{_mean(rival):.1f} % (`{rival.method}`, {rival.form}, {rival.bytes / 1000:.0f} KB)"
            mine = f"**{_mean(ours):.1f} %** ({ours.bytes / 1000:.0f} KB)"
            shown.append(
                f"| {TITLES[name]} | {bound // 1000} | {mine} | {best} | {'' if paired is None else paired.signed} |"
            )
    return "\n".join(shown)


def _bound(line: Line) -> int:
    """The bound that a file of `halrp` was given."""
    return int(line.method.removeprefix("halrp-")) * 1000 if kind_of(line) == 0 else 0


def _mean(line: Line) -> float:
    return statistics.fmean(line.accuracy.values())


def _inputs(results: Path) -> tuple[dict[str, list[Row]], dict[str, Sequence[str]]]:
    from benchmarks.pretrained.text import Text
    from benchmarks.pretrained.vision import Vision

    names = {"vision": Vision.dev, "text": Text.dev}
    return {name: records.read(results / f"{name}.jsonl") for name in names}, dict(names)


def parts(results: Path) -> dict[str, Callable[[], str]]:
    """The writer of the generated part, by its name."""
    return {"leaderboard": partial(leaderboard, *_inputs(results))}


def figure(results: Path) -> str:
    """The picture."""
    return picture(*_inputs(results))


def write(results: Path, root: Path) -> None:
    """Draw the picture, and write the leaderboard into the documents that have it."""
    atomic.write(root / "docs" / "figures" / "pretrained.svg", figure(results).encode())
    made = parts(results)
    for document in (root / name for name in DOCUMENTS if (root / name).exists()):
        document.write_text(filled(document.read_text("utf-8"), made), "utf-8")
