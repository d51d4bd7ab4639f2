"""A report as one page: an HTML file with all its data and code in it, which needs no network.

Texts may come from records of strangers. Those in the HTML are escaped, those in the data are put into elements as
text, and the browser may run the two scripts of the page, by their checksums, and no others.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

from halrp.lab.report.figure import Figure
from halrp.lab.report.script_library import script_library
from halrp.lab.report.style import LIGHT, PAGE
from halrp.lab.report.table import Column, Table, Value
from halrp.lab.report.table_writers import cell

COLUMN = ("title", "digits", "signed", "about", "filters")
"""What the page needs to know of a column."""
LISTED = 200
"""Most files of a kind that are listed by name."""
KINDS = {
    "damaged": ("Damaged", "They could not be read as records."),
    "unfinished": ("Unfinished", "Their runs were stopped; halrp resume continues them."),
    "duplicate": ("Repeated", "There is a newer record of the same cell, which is used."),
    "other": ("Something else", "JSON that is not a record of a run."),
}


@dataclass(frozen=True)
class Section:
    """A chapter of the page."""

    key: str
    title: str
    about: str = ""
    parts: tuple[Table | Figure, ...] = field(default=())


@dataclass(frozen=True)
class LeftOut:
    """A file that the page does not use."""

    path: str
    kind: str
    """One of damaged, unfinished, duplicate and other."""
    reason: str


@dataclass(frozen=True)
class MadeFrom:
    """What a page was made from."""

    records: int
    folders: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """The origin of the records, such as ("commit", "558233dee820")."""


@dataclass(frozen=True)
class MadeOf:
    """What a page shows that is not made from records."""

    lead: str
    """The text below the title, in which `names` are set as such."""
    facts: tuple[tuple[str, str], ...] = ()


def page(title: str, sections: Sequence[Section], left_out: Sequence[LeftOut] | None, source: MadeFrom | MadeOf) -> str:
    """The page as HTML; the same parts give the same text. With None, nothing is written of files that were left out.

    What draws figures is in the page if it has any.
    """
    has_figures = any(isinstance(part, Figure) for section in sections for part in section.parts)
    library, program = script_library() if has_figures else "", _resource("page.js")
    scripts = " ".join(f"'sha256-{_checksum(text)}'" for text in (library, program) if text)
    rules = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"
    parts = {section.key: [_part(part) for part in section.parts] for section in sections}
    data = _packed({"parts": parts, "theme": PAGE, "light": LIGHT})
    out = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"{rules}; base-uri 'none'; form-action 'none'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_resource('page.css')}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#content">Skip to the content</a>',
        _header(title, source, has_figures),
        '<div class="frame">',
        _contents(sections, left_out),
        '<main id="content">',
        "<noscript><p>The scripts of this page draw its tables and figures; they are switched off.</p></noscript>",
        *(_section(section) for section in sections),
        "" if left_out is None else _left_out(left_out),
        "</main>",
        "</div>",
        f'<script type="application/octet-stream" id="data">{data}</script>',
        *([f"<script>{library}</script>"] if has_figures else []),
        f"<script>{program}</script>",
        "</body>",
        "</html>",
    ]
    # A lone half of a character pair, which JSON allows, is no text that could be saved.
    return "\n".join(out).encode("utf-8", "replace").decode() + "\n"


# ---- the data -----------------------------------------------------------------------------------------------------


def _part(part: Table | Figure) -> dict[str, Any]:
    if isinstance(part, Figure):
        plots = [plot.spec() for plot in part.plots.values()]
        return {"title": part.title, "labels": list(part.plots), "plots": plots}
    columns = [{name: getattr(column, name) for name in COLUMN} for column in part.columns]
    rows = [[_value(row, column) for column in part.columns] for row in part.rows]
    return {"title": part.title, "columns": columns, "rows": rows, "marks": list(part.marks)}


def _value(row: Mapping[str, Value], column: Column) -> Value:
    """A number or text, which the page can sort; where the column has a format of its own, the text of the cell."""
    value = row.get(column.key)
    if column.format is not None or column.others:
        return cell(row, column)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(data: object) -> str:
    """Compressed JSON as letters and digits: a tenth of the size, and no character that could end an element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


# ---- the frame ----------------------------------------------------------------------------------------------------


def _header(title: str, source: MadeFrom | MadeOf, has_figures: bool) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in source.facts)
    hint = " Point at a plot to read its values; drag to move it, hold Ctrl and scroll to zoom, double-click to reset."
    return (
        f'<header class="top"><div class="line"><h1>{escape(title)}</h1>'
        '<button type="button" id="theme" class="quiet" aria-label="Switch between light and dark" '
        'title="Switch between light and dark"><span aria-hidden="true">◐</span></button></div>'
        f'<p class="lead">{_lead(source)}{hint if has_figures else ""}</p>'
        + (f'<dl class="facts">{facts}</dl>' if facts else "")
        + "</header>"
    )


def _lead(source: MadeFrom | MadeOf) -> str:
    if isinstance(source, MadeOf):
        return _prose(source.lead)
    count = f"{source.records:,} record{'' if source.records == 1 else 's'}"
    where = _listed(f"<code>{escape(folder)}</code>" for folder in source.folders)
    return f"Every number and figure on this page is computed from {count}, read from {where}."


def _listed(texts: Iterable[str]) -> str:
    *most, last = [*texts] or ["nowhere"]
    return f"{', '.join(most)} and {last}" if most else last


def _contents(sections: Sequence[Section], left_out: Sequence[LeftOut] | None) -> str:
    lines = []
    for section in sections:
        parts = "".join(f'<li><a href="#{_id(section, part)}">{escape(part.title)}</a></li>' for part in section.parts)
        inner = f"<ul>{parts}</ul>" if len(section.parts) > 1 else ""
        lines.append(f'<li><a href="#{escape(section.key)}">{escape(section.title)}</a>{inner}</li>')
    count = f' <span class="count">{len(left_out)}</span>' if left_out else ""
    if left_out is not None:
        lines.append(f'<li><a href="#left-out">Left out</a>{count}</li>')
    return (
        f'<nav aria-label="Contents"><details open><summary>Contents</summary><ul>{"".join(lines)}</ul></details></nav>'
    )


def _id(section: Section, part: Table | Figure) -> str:
    return escape(f"{section.key}-{part.key}")


def _section(section: Section) -> str:
    about = f'<p class="about">{_prose(section.about)}</p>' if section.about else ""
    parts = "".join(_container(section, number, part) for number, part in enumerate(section.parts))
    name = escape(section.key)
    heading = f'<h2 id="{name}-title">{escape(section.title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}{about}{parts}</section>'


def _prose(text: str) -> str:
    """A text in which `names` are set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _container(section: Section, number: int, part: Table | Figure) -> str:
    """The element in which the script draws a part."""
    kind, name = ("figure" if isinstance(part, Figure) else "table"), _id(section, part)
    return (
        f'<article class="part {kind}" id="{name}" data-section="{escape(section.key)}" data-part="{number}" '
        f'data-key="{escape(part.key)}" aria-labelledby="{name}-title">'
        f'<h3 id="{name}-title">{escape(part.title)}</h3><p class="about">{_prose(part.about)}</p></article>'
    )


def _left_out(left_out: Sequence[LeftOut]) -> str:
    parts = []
    for kind in dict.fromkeys([*KINDS, *(file.kind for file in left_out)]):
        some = [file for file in left_out if file.kind == kind]
        if not some:
            continue
        title, about = KINDS.get(kind, (kind, ""))
        items = "".join(
            f"<li><code>{escape(file.path)}</code> <span>{escape(' '.join(file.reason.split()))}</span></li>"
            for file in some[:LISTED]
        )
        more = f"<p>And {len(some) - LISTED:,} more.</p>" if len(some) > LISTED else ""
        parts.append(
            f'<details class="files"{"" if kind == "other" else " open"}><summary>{escape(title)} '
            f'<span class="count">{len(some)}</span></summary><p>{escape(about)}</p><ul>{items}</ul>{more}</details>'
        )
    about = (
        "Files in the same folders that nothing above is computed from, and why."
        if parts
        else "Nothing: every file was used."
    )
    return (
        '<section id="left-out" aria-labelledby="left-out-title"><h2 id="left-out-title">Left out</h2>'
        f'<p class="about">{about}</p>{"".join(parts)}</section>'
    )


# ---- what belongs to the page -------------------------------------------------------------------------------------


def _resource(name: str) -> str:
    return resources.files("halrp.lab.report").joinpath(name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
