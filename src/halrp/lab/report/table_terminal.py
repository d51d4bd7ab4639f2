"""A table on the terminal: a section for each benchmark or setup, details below the name of the method."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table as RichTable

from halrp.lab.report.table import Table
from halrp.lab.report.table_writers import shown
from halrp.terminal import Terminal, safe_markup

WIDTH = 100
"""Of what is printed to a file or a pipe."""
COLOURS = {"better": "green", "worse": "red", "no": "red"}


def terminal() -> Terminal:
    """The console to print to."""
    return Terminal() if sys.stdout.isatty() else Terminal(width=WIDTH)


def print_table(table: Table, section: str, below: dict[str, str], hidden: Sequence[str] = ()) -> None:
    """Print a table; `section` is the key of the title of a row's section, which the table's columns include.

    `below` are keys of columns whose parts are shown below the first cell of a row, with the separators of the parts.
    The columns `hidden` are left out.
    """
    console = terminal()
    columns, texts = shown(table)
    visible = [i for i, column in enumerate(columns) if column.key not in (section, *below, *hidden)]
    sections: dict[str, RichTable] = {}
    for number, (row, cells) in enumerate(zip(table.rows, texts, strict=True)):
        title = str(row[section])
        if title not in sections:
            sections[title] = grid = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
            for i in visible:
                text = columns[i].digits is None and columns[i].format is None
                grid.add_column(columns[i].title, justify="left" if text else "right", overflow="fold")
            if table.marks:
                grid.add_column("ours is")
        first, *others = (cells[i] for i in visible)
        details = [text for key, apart in below.items() for text in str(row.get(key) or "").split(apart) if text]
        name = _coloured(first) + "".join(f"\n[dim]  {safe_markup(text)}[/dim]" for text in details)
        marks = [_coloured(table.marks[number])] if table.marks else []
        sections[title].add_row(name, *map(_coloured, others), *marks)
    for title, grid in sections.items():
        console.print(f"\n[bold]{safe_markup(title)}[/bold]")
        console.print(grid)
    console.print(f"\n{safe_markup(table.about)}", style="dim")


def _coloured(text: str) -> str:
    colour = COLOURS.get(text)
    return safe_markup(text) if colour is None else f"[{colour}]{text}[/{colour}]"
