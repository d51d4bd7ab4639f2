"""Plots as files for a paper, a talk or a README: SVG, PDF or PNG, by the suffix of the name.

The same plot gives the same bytes: nothing in a file says when it was made.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path

from halrp.errors import SettingError
from halrp.lab.report.figure import Plot
from halrp.lab.report.style import LIGHT
from halrp.store import atomic

WIDTH, HEIGHT = 560, 240
"""Pixels of 1/96 inch: two thirds of a page, legible when a column of a paper makes it smaller."""
TITLE = 80
"""Letters in a line of the title."""
SUFFIXES = (".svg", ".pdf", ".png")


def write(plot: Plot, path: str | os.PathLike[str], title: str = "") -> None:
    """Write a plot to a file, atomically; its suffix is .svg, .pdf or .png."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise SettingError(f"{path} must end in {', '.join(SUFFIXES)}: the suffix decides the kind of file")
    atomic.write(path, render(plot, path.suffix, title))


def render(plot: Plot, suffix: str, title: str = "") -> bytes:
    """The content of such a file."""
    import vl_convert

    spec = {"height": HEIGHT, **plot.spec(), "width": WIDTH, "params": [{"name": "space", "value": WIDTH}]}
    spec |= {"autosize": {"type": "fit-x", "contains": "padding"}, "padding": 8, "config": LIGHT}
    if title:
        spec["title"] = {"text": textwrap.wrap(title, TITLE)}
    # Half characters of damaged names can be in JSON, but not in a file.
    text = json.dumps(spec, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode()
    svg = _renumbered(vl_convert.vegalite_to_svg(text))
    if suffix == ".svg":
        return svg.encode()
    return _sorted(vl_convert.svg_to_pdf(svg)) if suffix == ".pdf" else vl_convert.svg_to_png(svg, scale=2)


def _renumbered(svg: str) -> str:
    """The SVG with identifiers counted from 0: the library counts them through the whole process."""
    seen: dict[str, str] = {}
    return re.sub(
        r'(?<=id=")[a-z_]+\d+(?=")|(?<=url\(#)[a-z_]+\d+(?=\))',
        lambda match: seen.setdefault(match[0], re.sub(r"\d+$", str(len(seen)), match[0])),
        svg,
    )


def _sorted(pdf: bytes) -> bytes:
    """The PDF with the lists of its resources sorted: the library writes them in a random order."""

    def sort(match: re.Match[bytes]) -> bytes:
        return match[1] + b"".join(sorted(match[2].splitlines(keepends=True)))

    return re.sub(rb"(/[A-Z]\w+ <<\n)((?: +/\w+ \d+ 0 R\n)+)", sort, pdf)
