"""A table on the terminal: a section for each benchmark or setup, details below the name of the method."""

from __future__ import annotations

from collections.abc import Sequence

from halrp import terminal
from halrp.lab.report.table import Table
from halrp.lab.report.table_writers import shown
from halrp.terminal import Terminal
from halrp.text_table import TextTable

COLOURS = {"better": "green", "worse": "red", "no": "red"}


def print_table(
    table: Table, section: str, below: dict[str, str], hidden: Sequence[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print a table; `section` is the key of the title of a row's section, which the table's columns include.

    `below` are keys of columns whose parts are shown below a row, with the separators of the parts. The columns
    `hidden` are left out, and those of `spare` where there is no room for them.
    """
    columns, texts = shown(table)
    visible = [i for i, column in enumerate(columns) if column.key not in (section, *below, *hidden)]
    marked = any(table.marks)
    titles = [*(columns[i].title for i in visible), *(["ours is"] if marked else [])]
    numeric = [columns[i].digits is not None or columns[i].format is not None for i in visible]
    right = {number for number, is_number in enumerate(numeric) if is_number}
    optional = {number for number, i in enumerate(visible) if columns[i].key in spare}
    sections: dict[str, tuple[list[list[str]], list[list[str]]]] = {}
    for number, (row, cells) in enumerate(zip(table.rows, texts, strict=True)):
        rows, details = sections.setdefault(str(row[section]), ([], []))
        rows.append([*(cells[i] for i in visible), *([table.marks[number]] if marked else [])])
        details.append([text for key, apart in below.items() for text in str(row.get(key) or "").split(apart) if text])
    for title, (rows, details) in sections.items():
        Terminal().print(f"\n[bold]{terminal.safe_markup(title)}[/bold]", highlight=False)
        terminal.print_table(TextTable(titles, rows, right, {0}, optional, details), COLOURS, terminal.PROSE)
    if table.about:
        terminal.echo()
        terminal.print_prose(table.about)
