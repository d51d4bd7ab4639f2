"""Drawings as plotly figures: what is drawn, in which colours, and texts that stay texts."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from halrp.lab import registry
from halrp.lab.methods import METHODS
from halrp.lab.report import looks
from halrp.lab.report.figure import Axis, Chart, HeatMap, Series
from halrp.lab.report.plots import plot, safe, short

HOSTILE = "</script><img src=x onerror=alert(1)> %{x} $a$ & more"
X, Y = Axis("task"), Axis("accuracy in %", zero=True)


def chart(*series: Series, kind: str = "lines", x: Axis = X, y: Axis = Y) -> Chart:
    return Chart(kind, x, y, series)  # type: ignore[arg-type]


def luminance(colour: str) -> float:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def without_green(colour: str) -> tuple[float, float, float]:
    """The colour as one sees it who has no green cones (Machado, Oliveira and Fernandes 2009, severity 1)."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return (
        0.367322 * r + 0.860646 * g - 0.227968 * b,
        0.280085 * r + 0.672501 * g + 0.047413 * b,
        -0.011820 * r + 0.042940 * g + 0.968881 * b,
    )


# ---- colours ------------------------------------------------------------------------------------------------------


def test_every_method_has_a_colour_of_its_own_that_light_and_dark_pages_show() -> None:
    assert set(METHODS) <= set(looks.COLOURS), "a new method needs a colour in halrp.lab.registry"
    assert len(set(looks.COLOURS.values())) == len(looks.COLOURS)
    for colour in (*looks.COLOURS.values(), *looks.OTHERS, *looks.BESIDE):
        assert contrast(colour, "#ffffff") >= 2.2
        assert contrast(colour, "#14171c") >= 2.2


@pytest.mark.parametrize("see", [without_green, lambda c: tuple(int(c[i : i + 2], 16) for i in (1, 3, 5))])
def test_two_methods_differ_in_colour_or_in_mark(see: object) -> None:
    for one, other in combinations(looks.COLOURS, 2):
        first, second = (see(looks.COLOURS[name]) for name in (one, other))  # type: ignore[operator]
        apart = sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5
        assert apart > 40 or registry.mark_of(one) != registry.mark_of(other), (one, other)


def test_a_method_keeps_its_colour_whatever_else_a_chart_has() -> None:
    own = Series("budget", (1,), (2.0,), method="halrp-budget")
    for others in ((), (Series("ewc", (1,), (1.0,), method="ewc"), Series("none", (1,), (1.0,)))):
        traces = plot(chart(*others, own))["data"]
        assert traces[-1]["line"]["color"] == looks.COLOURS["halrp-budget"]
    assert registry.colour_of("of my own") == registry.colour_of("of my own")
    assert registry.colour_of("of my own") in looks.OTHERS


def test_series_of_one_method_differ_in_line_and_mark_and_what_is_held_beside_is_dashed() -> None:
    one, two = (Series(f"ewc {i}", (1,), (1.0,), method="ewc") for i in range(2))
    paper = Series("paper", (1,), (1.0,), method="ewc", dashed=True)
    found = plot(chart(one, two, paper))["data"]
    assert len({trace["line"]["color"] for trace in found}) == 1
    assert [trace["line"]["dash"] for trace in found] == ["solid", "dot", "dash"]
    assert found[0]["marker"]["symbol"] != found[1]["marker"]["symbol"]
    assert found[2]["marker"]["symbol"].endswith("-open")


def test_bars_above_methods_have_the_colours_of_these() -> None:
    names = ("stl", "ewc (strength=10)")
    ours, paper = Series("ours", names, (1.0, 2.0)), Series("paper", names, (1.0, None), dashed=True)
    wanted = [looks.COLOURS["stl"], looks.COLOURS["ewc"]]
    found = plot(chart(ours, paper, kind="bars"))["data"]
    assert [trace["marker"]["color"] for trace in found] == [wanted, wanted]
    assert "pattern" not in found[0]["marker"]
    assert found[1]["marker"]["pattern"]["fgcolor"] == wanted
    # Two series of ours are told apart by colour, as are bars above anything else.
    more = plot(chart(ours, Series("again", names, (1.0, 2.0)), kind="bars"))["data"]
    assert more[0]["marker"]["color"] != more[1]["marker"]["color"]
    other = plot(chart(Series("ours", ("stl", "A"), (1.0, 2.0)), kind="bars"))["data"]
    assert other[0]["marker"]["color"] == looks.OTHERS[0]


# ---- what is drawn ------------------------------------------------------------------------------------------------


def test_lines() -> None:
    series = Series("a", (1, 2, 3), (0.1234567, None, float("nan")), (0.5, None, None), ("one run", "", ""))
    made = plot(chart(series))
    trace = made["data"][0]
    assert trace["x"] == [1, 2, 3]
    assert trace["y"] == [0.123457, None, None]
    assert trace["error_y"]["array"] == [0.5, 0, 0]
    assert trace["text"] == ["one run", "", ""]
    assert trace["mode"] == "lines+markers"
    assert made["layout"]["xaxis"]["dtick"] == 1
    assert made["layout"]["yaxis"]["rangemode"] == "tozero"
    json.dumps(made, allow_nan=False)


def test_names_along_the_axis_stand_as_they_come() -> None:
    made = plot(chart(Series("a", ("B", "A"), (1.0, 2.0)), Series("b", ("C", "A"), (1.0, 2.0)), kind="bars"))
    assert made["layout"]["xaxis"]["type"] == "category"
    assert made["layout"]["xaxis"]["categoryarray"] == ["B", "A", "C"]
    assert made["layout"]["barmode"] == "group"


def test_points_on_a_logarithmic_axis() -> None:
    made = plot(chart(Series("a", (10, 1e6), (1.0, 2.0)), kind="points", x=Axis("bytes", log=True)))
    assert made["layout"]["xaxis"]["type"] == "log"
    assert made["data"][0]["mode"] == "markers"
    assert "dtick" not in made["layout"]["yaxis"]


def test_a_field() -> None:
    made = plot(HeatMap(Axis("x"), Axis("y"), ("a", "a"), ("r", "s"), ((1.0, None), (2.0, 3.0)), "in %"))
    trace = made["data"][0]
    assert trace["z"] == [[1, None], [2, 3]]
    assert len(set(trace["x"])) == 2
    assert "texttemplate" in trace
    assert made["layout"]["yaxis"]["autorange"] == "reversed"
    assert "zmin" not in trace
    around = plot(HeatMap(Axis("x"), Axis("y"), ("a",), ("r", "s"), ((-1.0,), (3.0,))))["data"][0]
    assert (around["zmin"], around["zmax"]) == (-3, 3)


# ---- texts of strangers -------------------------------------------------------------------------------------------


def test_texts_are_no_markup_and_no_templates() -> None:
    series = Series(HOSTILE, (HOSTILE,), (1.0,), notes=(HOSTILE,))
    field = HeatMap(Axis(HOSTILE), Axis(HOSTILE), (HOSTILE,), (HOSTILE,), ((1.0,),), HOSTILE)
    for made in (plot(chart(series, x=Axis(HOSTILE))), plot(field)):
        text = json.dumps(made, ensure_ascii=False)
        for known in ("<b>", "</b>", "<br>", "<extra></extra>"):
            text = text.replace(known, "")
        assert "<" not in text
        assert "$" not in text
        for own in ("%{x}", "%{y}", "%{text}", "%{z:.5~g}", "%{z:.3~g}", "%{y:.5~g}"):
            text = text.replace(own, "", 1)
        assert "%{" not in text
    assert safe("a\n b") == "a b"


def test_numbers_are_as_short_as_can_be_seen() -> None:
    assert [short(value) for value in (None, float("inf"), 2.0, 1 / 3, 12345678.9)] == [
        None,
        None,
        2,
        0.333333,
        12345700,
    ]
