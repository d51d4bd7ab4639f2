"""Plots as files: kinds, colours, and the same bytes for the same plot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halrp.errors import SettingError
from halrp.lab.registry import METHODS
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Plot
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.image import render, write

NAMES = tuple(f"a method with a long name {i}" for i in range(8))
PLOTS: dict[str, Plot] = {
    "lines": Chart(
        "lines",
        Axis("task"),
        Axis("accuracy", zero=True),
        (
            Series("ours", (1, 2, 3), (1.0, None, 3.0), (0.1, None, 0.2), method="halrp-budget"),
            Series("paper", (1, 2, 3), (1.0, 2.0, 3.0), method="halrp-budget", dashed=True),
        ),
    ),
    "points": Chart("points", Axis("bytes", log=True), Axis("y"), (Series("a", (10, 1e7), (1.0, 2.0), method="stl"),)),
    "bars": Chart(
        "bars",
        Axis("x"),
        Axis("y"),
        tuple(Series(n, NAMES, (1.0, 2.0) * 4, (0.1,) * 8, dashed=n == "b") for n in "abc"),
    ),
    "bars of methods": Chart(
        "bars", Axis("x"), Axis("y"), tuple(Series(n, ("stl", "ewc"), (1.0, 2.0), dashed=n == "b") for n in "ab")
    ),
    "heat map": HeatMap(Axis("x"), Axis("y"), NAMES, ("r", "s"), ((1.0, None) * 4, (-2.0, 3.0) * 4), "in %"),
    "empty": Chart("lines", Axis("x", log=True), Axis("y", log=True), ()),
}


@pytest.mark.parametrize("name", PLOTS)
def test_the_same_plot_gives_the_same_bytes(name: str) -> None:
    first, second = (render(PLOTS[name], ".svg", "A title") for _ in range(2))
    assert first == second
    assert first.startswith(b"<svg")
    assert b">A title<" in first


@pytest.mark.parametrize(("suffix", "start"), [(".pdf", b"%PDF"), (".png", b"\x89PNG")])
def test_other_kinds_of_files(suffix: str, start: bytes, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(PLOTS["lines"], tmp_path / folder / f"f{suffix}", title="A title")
    first, second = ((tmp_path / folder / f"f{suffix}").read_bytes() for folder in ("a", "b"))
    assert first == second
    assert first.startswith(start)


def test_colours_are_those_of_the_page() -> None:
    text = render(PLOTS["lines"], ".svg").decode()
    assert METHODS["halrp-budget"].colour in text
    bars = render(PLOTS["bars of methods"], ".svg").decode()
    assert METHODS["stl"].colour in bars
    assert METHODS["ewc"].colour in bars


def test_a_long_title_makes_the_file_higher() -> None:
    def height(title: str) -> float:
        match = re.search(r'<svg[^>]* height="([\d.]+)"', render(PLOTS["lines"], ".svg", title).decode())
        assert match
        return float(match[1])

    assert height("word " * 40) > height("word") > height("")


def test_texts_are_not_read_as_markup() -> None:
    hostile = r"</svg><script>alert(1)</script> $\frac{1}{0$ _x^y"
    series = (Series(hostile, (hostile,), (1.0,)), Series(f"{hostile} 2", (hostile,), (1.0,)))
    text = render(Chart("lines", Axis(hostile), Axis(hostile), series), ".svg", hostile).decode()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_half_characters_can_be_saved() -> None:
    assert render(
        Chart("bars", Axis("\ud800"), Axis("y"), (Series("\udc00", ("a\ud800b",), (1.0,)),)), ".svg", "\udc00"
    )


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"\.svg, \.pdf, \.png"):
        write(PLOTS["lines"], tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
