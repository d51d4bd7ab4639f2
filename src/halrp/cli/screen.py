"""Plain tables on the screen."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from rich.table import Table

from halrp.terminal import Terminal, safe_markup

WIDTH = 160
"""Columns of a table that is not printed to a terminal."""


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), wrap: Collection[str] = ()
) -> None:
    """Print rows under titles; columns of `right` are aligned there, and those of `wrap` may need several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        justify = "right" if title in right else "left"
        table.add_column(title, justify=justify, no_wrap=title not in wrap, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(safe_markup, row))
    (Terminal() if sys.stdout.isatty() else Terminal(width=WIDTH)).print(table)
