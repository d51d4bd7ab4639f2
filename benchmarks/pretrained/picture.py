"""Accuracy against the bytes of a task on a pretrained base: the picture of the README."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.drawing import COLOURS, INK, SOFT, Panel, legend, svg, text
from benchmarks.pretrained.leaderboard import SHOTS, TITLES, held_out, inputs, kind_of
from benchmarks.pretrained.records import Row
from benchmarks.pretrained.table import Line, estimate
from halrp.store import atomic

KINDS = ("halrp", "LoRA (PEFT)", "probe", "fine-tuned copy")


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


def figure(results: Path) -> str:
    """The picture."""
    return picture(*inputs(results))


def write(results: Path, root: Path) -> None:
    """Draw the picture."""
    atomic.write(root / "docs" / "figures" / "pretrained.svg", figure(results).encode())
