"""What commands print: lines, blocks of text, and consoles for tables and progress.

Every text that reaches a screen goes through here, and none has an effect of its own there: names of tasks, classes,
files and methods, and messages of errors, may hold characters that a terminal acts on.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from halrp.text import printable

LINES = "\n\t"
"""Control characters that a block of text may have."""


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


class Terminal(Console):
    """A console whose texts are printable, whatever they come from."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render something; styles and movements are rich's own, and texts are made printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, LINES), segment.style)
