"""Plots as Vega-Lite specifications: what is shown, in which colours, and texts that stay texts."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from halrp.lab import registry
from halrp.lab.methods import METHODS
from halrp.lab.report import style
from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, short
from halrp.lab.report.heat_map import HeatMap

COLOURS = {name: entry.colour for name, entry in registry.METHODS.items()}
HOSTILE = "</script><img src=x onerror=alert(1)> {{x}} $a$ & more"
X, Y = Axis("task"), Axis("accuracy in %", zero=True)


def chart(*series: Series, kind: str = "lines", x: Axis = X, y: Axis = Y) -> Chart:
    return Chart(kind, x, y, series)  # type: ignore[arg-type]


def luminance(colour: str) -> float:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    low, high = sorted((luminance(colour), luminance(other)))
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
    assert set(METHODS) <= set(COLOURS), "a new method needs a colour in halrp.lab.registry"
    assert len(set(COLOURS.values())) == len(COLOURS)
    for colour in (*COLOURS.values(), *registry.PALETTE, *style.REFERENCES):
        assert contrast(colour, "#ffffff") >= 2.2
        assert contrast(colour, "#14171c") >= 2.2


@pytest.mark.parametrize("see", [without_green, lambda c: tuple(int(c[i : i + 2], 16) for i in (1, 3, 5))])
def test_two_methods_differ_in_colour_or_in_mark(see: object) -> None:
    for name, other in combinations(COLOURS, 2):
        first, second = (see(COLOURS[method]) for method in (name, other))  # type: ignore[operator]
        apart = sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5
        assert apart > 40 or registry.mark_of(name) != registry.mark_of(other), (name, other)


def legend(chart: Chart) -> list[dict[str, Any]]:
    """The entries of the legend: what distinguishes the series."""
    entries: list[dict[str, Any]] = chart.spec()["usermeta"]["legend"]
    return entries


def rows(plot: Chart | HeatMap) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = plot.spec()["data"]["values"]
    return values


def layer(plot: Chart | HeatMap, mark: str) -> dict[str, Any]:
    """The layer with a kind of mark."""
    (match,) = [layer for layer in plot.spec()["layer"] if layer["mark"]["type"] == mark]
    encoding: dict[str, Any] = match["encoding"]
    return encoding


def test_a_method_keeps_its_colour_whatever_else_a_chart_has() -> None:
    budget = Series("budget", (1,), (2.0,), method="halrp-budget")
    for others in ((), (Series("ewc", (1,), (1.0,), method="ewc"), Series("none", (1,), (1.0,)))):
        assert legend(chart(*others, budget))[-1]["stroke"] == registry.METHODS["halrp-budget"].colour
    assert registry.colour_of("of my own") == registry.colour_of("of my own")
    assert registry.colour_of("of my own") in registry.PALETTE


def test_series_of_one_method_differ_in_line_and_mark_and_references_are_dashed() -> None:
    first, second = (Series(f"ewc {i}", (1,), (1.0,), method="ewc") for i in range(2))
    paper = Series("paper", (1,), (1.0,), method="ewc", dashed=True)
    plot = chart(first, second, paper)
    entries = legend(plot)
    assert len({entry["stroke"] for entry in entries}) == 1
    assert [entry["strokeDash"] for entry in entries] == [list(style.DASHES[n]) for n in ("solid", "dot", "dash")]
    assert entries[0]["shape"] != entries[1]["shape"]
    assert [entry["fill"] for entry in entries] == [entries[0]["stroke"], entries[0]["stroke"], "transparent"]
    assert layer(plot, "line")["strokeDash"]["scale"]["range"] == [entry["strokeDash"] for entry in entries]
    assert layer(plot, "point")["shape"]["scale"]["range"] == [entry["shape"] for entry in entries]


def test_bars_above_methods_have_the_colours_of_these() -> None:
    names = ("stl", "ewc (strength=10)")
    ours, paper = Series("ours", names, (1.0, 2.0)), Series("paper", names, (1.0, None), dashed=True)
    wanted = [registry.METHODS["stl"].colour, registry.METHODS["ewc"].colour]
    made = rows(chart(ours, paper, kind="bars"))
    assert [row["colour"] for row in made] == wanted * 2
    assert [row["fill"] for row in made] == [*wanted, *(f"{colour}22" for colour in wanted)]
    # Two series of ours are distinguished by colour, as are bars above anything else.
    more = rows(chart(ours, Series("again", names, (1.0, 2.0)), kind="bars"))
    assert more[0]["colour"] == more[1]["colour"] != more[2]["colour"]
    other = rows(chart(Series("ours", ("stl", "A"), (1.0, 2.0)), kind="bars"))
    assert other[0]["colour"] == registry.PALETTE[0]


def test_every_mark_of_the_registry_has_a_shape() -> None:
    assert set(registry.MARKS) == set(style.SYMBOLS)


# ---- values -------------------------------------------------------------------------------------------------------


def test_lines() -> None:
    series = Series("a", (1, 2, 3), (0.1234567, None, float("nan")), (0.5, None, None), ("one run", "", ""))
    plot = chart(series)
    first, *others = rows(plot)
    assert first == {
        "series": "a", "x": 1, "y": 0.123457, "low": -0.376543, "high": 0.623457, "value": "0.12346 ± 0.5",
        "note": "one run",
    }  # fmt: skip
    assert [(row["x"], row["y"]) for row in others] == [(2, None), (3, None)]
    assert plot.spec()["encoding"]["x"]["axis"]["values"] == [1, 2, 3]
    assert layer(plot, "line")["y"]["scale"]["zero"]
    assert layer(plot, "rule")["y2"] == {"field": "high"}
    assert [field["field"] for field in layer(plot, "point")["tooltip"]] == ["series", "x", "value", "note"]
    json.dumps(plot.spec(), allow_nan=False)


def test_names_along_the_axis_are_in_their_order() -> None:
    plot = chart(Series("a", ("B", "A"), (1.0, 2.0)), Series("b", ("C", "A"), (1.0, 2.0)), kind="bars")
    assert plot.spec()["encoding"]["x"]["scale"]["domain"] == ["B", "A", "C"]
    assert layer(plot, "bar")["xOffset"]["field"] == "series"
    assert not plot.spec()["usermeta"]["zoom"]


def test_points_on_a_logarithmic_axis() -> None:
    plot = chart(Series("a", (10, 1e6), (1.0, 2.0)), kind="points", x=Axis("bytes", log=True))
    assert plot.spec()["encoding"]["x"]["scale"]["type"] == "log"
    assert [layer["mark"]["type"] for layer in plot.spec()["layer"]] == ["point"]
    assert plot.spec()["usermeta"]["zoom"]


def test_an_error_bar_that_would_reach_below_a_logarithmic_axis_is_left_out() -> None:
    plot = chart(Series("a", (1, 2), (1.0, 4.0), (2.0, 1.0)), y=Axis("y", log=True))
    assert ["low" in row for row in rows(plot)] == [False, True]


def test_a_heat_map() -> None:
    plot = HeatMap(Axis("x"), Axis("y"), ("a", "a"), ("r", "s"), ((1.0, None), (2.0, 3.0)), "in %")
    assert [row["value"] for row in rows(plot)] == [1, 2, 3]
    assert len(set(plot.spec()["encoding"]["x"]["scale"]["domain"])) == 2
    assert plot.spec()["encoding"]["y"]["scale"]["domain"] == ["r", "s"]
    colours = layer(plot, "rect")["color"]["scale"]
    assert colours["range"] == list(style.RISING)
    assert "domain" not in colours
    around = HeatMap(Axis("x"), Axis("y"), ("a",), ("r", "s"), ((-1.0,), (3.0,)))
    assert layer(around, "rect")["color"]["scale"]["domain"] == [-3, 3]


# ---- texts of strangers -------------------------------------------------------------------------------------------


def expressions(spec: object) -> list[str]:
    """All that a specification has evaluated."""
    if isinstance(spec, dict):
        here = [str(value) for key, value in spec.items() if key in ("expr", "test", "signal", "calculate", "filter")]
        return here + [text for value in spec.values() for text in expressions(value)]
    return [text for value in spec for text in expressions(value)] if isinstance(spec, list) else []


def test_texts_are_data_and_never_expressions() -> None:
    series = Series(HOSTILE, (HOSTILE,), (1.0,), notes=(HOSTILE,))
    heat_map = HeatMap(Axis(HOSTILE), Axis(HOSTILE), (HOSTILE,), (HOSTILE,), ((1.0,),), HOSTILE)
    for plot in (chart(series, x=Axis(HOSTILE)), heat_map):
        assert rows(plot)[0]["x"] == HOSTILE
        assert expressions(plot.spec())
        assert "script" not in "".join(expressions(plot.spec()))


def test_numbers_are_as_short_as_can_be_seen() -> None:
    numbers = (None, float("inf"), 2.0, 1 / 3, 12345678.9)
    assert [short(value) for value in numbers] == [None, None, 2, 0.333333, 12345700]
