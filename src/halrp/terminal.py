"""What commands print: lines, blocks of text, and consoles for tables and progress.

Every text that reaches a screen goes through here, and none has an effect of its own there: names of tasks, classes,
files and methods, and messages of errors, may hold characters that a terminal acts on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from halrp.text import as_json, printable
from halrp.text_table import TextTable, wrapped

LINES = "\n\t"
"""Control characters that a block of text may have."""
TABLE, PROSE = 160, 100
"""Characters at which columns of prose, and remarks, are wrapped where there is no terminal; nothing else is then."""
STYLES = {"titles": "bold", "detail": "dim", "note": "dim"}
"""How lines of a table are drawn."""


def echo(text: str = "", err: bool = False) -> None:
    """Print one line; line breaks at its start are empty lines before it."""
    line = text.lstrip("\n")
    typer.echo("\n" * (len(text) - len(line)) + printable(line), err=err)


def echo_block(text: str) -> None:
    """Print text of several lines that ends with a line break."""
    typer.echo(printable(text.removesuffix("\n"), LINES))


def safe_markup(text: str) -> str:
    """Text as rich shows it: printable, and without markup."""
    return escape(printable(text))


def echo_json(value: Any) -> None:
    """Print a value as JSON, for programs."""
    typer.echo(as_json(value))


def columns() -> int | None:
    """Characters of a line: those of COLUMNS or of the terminal; None where there is neither, as in a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return Terminal().width if sys.stdout.isatty() else None


def print_table(table: TextTable, colours: Mapping[str, str] | None = None, piped: int = TABLE) -> None:
    """Print a table as wide as the terminal is, or in a pipe about as wide as `piped`.

    `colours` are those of cells, by their texts.
    """
    safe = replace(
        table,
        titles=[*map(printable, table.titles)],
        rows=[[*map(printable, row)] for row in table.rows],
        details=[[*map(printable, lines)] for lines in table.details],
    )
    width = columns()
    console = Terminal(width=10_000)  # lines are as long as they must be, and none is wrapped again
    for line in safe.lines(width or piped, strict=width is not None):
        styled = Text(style=STYLES.get(line.kind, ""))
        for number, text in enumerate(line.texts):
            styled.append(" " * line.gap * bool(number)).append(text, (colours or {}).get(text.strip()))
        styled.rstrip()
        console.print(styled, highlight=False)


def print_prose(text: str, style: str = "dim") -> None:
    """Print a remark, wrapped at words; lines that follow are indented as the first one is."""
    console, words = Terminal(width=10_000), printable(text).lstrip(" ")
    margin = " " * (len(text) - len(text.lstrip(" ")))
    for line in wrapped(words, (columns() or PROSE) - len(margin)):
        console.print(Text(f"{margin}{line}", style=style), highlight=False)


class Terminal(Console):
    """A console whose texts are printable, whatever they come from, and plain where nobody wants colours."""

    def __init__(self, **options: Any) -> None:
        """Take the options of a console of rich."""
        if os.environ.get("NO_COLOR"):
            options.setdefault("color_system", None)
        super().__init__(**options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render something; styles and movements are rich's own, and texts are made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, LINES), segment.style)
