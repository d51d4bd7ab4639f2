"""Drawings as files for a paper, a talk or a README: SVG, PDF or PNG, as the ending of the name says.

The same drawing gives the same bytes: nothing in a file tells when it was made. Letters are outlines in SVG files and
embedded in PDF files, so that they look the same everywhere.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halrp.errors import SettingError
from halrp.lab.report.figure import Axis, Chart, HeatMap, Plot
from halrp.lab.report.looks import BESIDE, Look, colours_along, looks, names_along, scale, whole_steps
from halrp.store import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 3.0
"""Inches: two thirds of a page, legible when a column of a paper makes it smaller."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "figure.titlesize": 9,
    "figure.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa2ac",
    "axes.labelcolor": "#1b2027",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.6,
    "xtick.color": "#9aa2ac",
    "ytick.color": "#9aa2ac",
    "xtick.labelcolor": "#1b2027",
    "ytick.labelcolor": "#1b2027",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "halrp",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "figure.dpi": 100,
}
METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
    ".png": {"Software": None},
}
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "x": "X", "triangle-down": "v",
    "star": "*",
}  # fmt: skip
LINES: dict[str, Any] = {
    "solid": "-", "dash": (0, (4, 2)), "dot": (0, (1, 1.4)), "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdashdot": (0, (8, 1.5, 1, 1.5)),
}  # fmt: skip
TITLE, ALONG, LEGEND = 76, 82, 44
"""How many letters fit into a line of the title, below the drawing, and into an entry of the legend."""
WRITTEN = 12
"""Fields with at most so many columns have their numbers written into them."""


def draw(drawing: Plot, path: str | os.PathLike[str], title: str = "") -> None:
    """Draw into a file, whole or not at all; its ending is .svg, .pdf or .png."""
    path = Path(path)
    if path.suffix not in METADATA:
        raise SettingError(f"{path} has to end in {', '.join(METADATA)}, to say what kind of file it is")
    atomic.write(path, drawn(drawing, path.suffix, title))


def drawn(drawing: Plot, suffix: str, title: str = "") -> bytes:
    """The content of such a file."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        lines = textwrap.wrap(title, TITLE)
        figure = Figure(figsize=(WIDTH, _height(drawing) + 0.17 * len(lines)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if isinstance(drawing, HeatMap):
            _field(drawing, figure, axes)
        else:
            _chart(drawing, figure, axes)
        if lines:
            figure.suptitle("\n".join(lines), x=0.01, ha="left")
        figure.savefig(out, format=suffix.removeprefix("."), metadata=METADATA[suffix])
    return out.getvalue()


def _height(drawing: Plot) -> float:
    """Inches: what names below and the legend take does not make the drawing itself smaller."""
    if isinstance(drawing, HeatMap):
        turned, longest = _turned(drawing.columns)
        return min(9.0, max(1.6, 0.8 + 0.22 * len(drawing.rows))) + 0.05 * longest * turned
    turned, longest = _turned(names_along(drawing))
    rows = -(-len(drawing.series) // _legend_columns(drawing)) if drawing.series else 0
    return HEIGHT + 0.05 * longest * turned + 0.17 * rows


def _turned(names: Sequence[str]) -> tuple[bool, int]:
    """Whether names along an axis have to be turned, and how many letters the longest has."""
    longest = max(map(len, map(_cut, names)), default=0)
    return len(names) * (longest + 2) > ALONG, longest


def _cut(name: str, most: int = 28) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _legend_columns(chart: Chart) -> int:
    longest = max(len(_cut(series.name, LEGEND)) for series in chart.series)
    return max(1, min(4, len(chart.series), (ALONG + 20) // (longest + 5)))


def _chart(chart: Chart, figure: Figure, axes: Axes) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    names = names_along(chart)
    places = {name: place for place, name in enumerate(names)}
    count, along = max(1, len(chart.series)), colours_along(chart)
    for number, (series, look) in enumerate(zip(chart.series, looks(chart), strict=True)):
        nan = float("nan")
        x = [nan if v is None else places[str(v)] if names else float(v) for v in series.x]
        y = [nan if value is None else value for value in series.y]
        error = [0.0 if value is None else value for value in series.error] if any(series.error) else None
        if chart.kind == "bars":
            width = 0.8 / count
            middle = [value + (number - (count - 1) / 2) * width for value in x]
            colour = [along[str(name)] for name in series.x] if along else look.colour
            fill: dict[str, Any] = {"color": colour}
            if look.dash != "solid":
                fill = {"facecolor": "white", "edgecolor": colour, "hatch": "////" if look.beside else "...."}
            axes.bar(middle, y, width, label=_cut(series.name, LEGEND), **fill)
            if error:
                axes.errorbar(middle, y, error, fmt="none", ecolor="#1b2027", elinewidth=0.8, capsize=1.5)
        else:
            style = _style(look, chart.kind == "lines")
            axes.errorbar(x, y, error, label=_cut(series.name, LEGEND), elinewidth=0.8, capsize=1.5, **style)
    _scale(chart.x, axes, "x")
    _scale(chart.y, axes, "y")
    if names:
        axes.set_xticks(range(len(names)), list(map(_cut, names)), **_ends(names))
    elif whole_steps(chart):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if chart.series:
        legend = figure.legend(loc="outside lower left", ncols=_legend_columns(chart))
        for handle, look in zip(legend.legend_handles if along else (), looks(chart), strict=False):
            if isinstance(handle, Patch):  # each bar has a colour of its own
                handle.set(edgecolor=BESIDE[0], facecolor="white" if look.beside else BESIDE[0])


def _ends(names: Sequence[str]) -> dict[str, Any]:
    turned, _ = _turned(names)
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if turned else {"rotation": 0, "ha": "center"}


def _style(look: Look, line: bool) -> dict[str, Any]:
    return {
        "color": look.colour,
        "linestyle": LINES[look.dash] if line else "none",
        "linewidth": 1.4,
        "marker": MARKERS[look.symbol],
        "markersize": 4 if line else 6,
        "markerfacecolor": "white" if look.beside else look.colour,
        "markeredgecolor": look.colour if look.beside else "white",
        "markeredgewidth": 1.0 if look.beside else 0.5,
    }


def _scale(axis: Axis, axes: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    own = axes.xaxis if which == "x" else axes.yaxis
    own.set_label_text(axis.title)
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", nonpositive="mask")
        low, high = own.get_view_interval()
        own.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
        if high / low > 50:
            own.set_minor_formatter(NullFormatter())
        else:
            own.set_minor_formatter(FuncFormatter(lambda value, _: _number(value) if f"{value:e}"[0] in "125" else ""))
    elif axis.zero:
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        (axes.set_xlim if which == "x" else axes.set_ylim)(min(low, 0.0) if low < 0 else 0.0, max(high, 0.0))


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _field(field: HeatMap, figure: Figure, axes: Axes) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    colours, limits = scale(field)
    shape = len(field.rows), len(field.columns)
    values = np.array([[np.nan if v is None else v for v in row] for row in field.values], dtype=float).reshape(shape)
    low, high = limits or (None, None)
    colour_map = LinearSegmentedColormap.from_list("field", list(colours))
    image = axes.pcolormesh(values, cmap=colour_map, vmin=low, vmax=high, edgecolors="white", linewidth=0.5)
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xticks(np.arange(shape[1]) + 0.5, list(map(_cut, field.columns)), **_ends(field.columns))
    axes.set_yticks(np.arange(shape[0]) + 0.5, list(map(_cut, field.rows)))
    axes.tick_params(length=0)
    axes.set(xlabel=field.x.title, ylabel=field.y.title)
    figure.colorbar(image, ax=axes, label=field.unit, pad=0.02, aspect=30).outline.set_visible(False)
    if shape[1] <= WRITTEN and shape[0] <= 2 * WRITTEN:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                red, green, blue, _ = image.to_rgba(value)
                dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.55
                text = f"{value:.3g}"
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if dark else "#1b2027",
                )
