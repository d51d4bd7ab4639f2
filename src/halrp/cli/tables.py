"""`halrp tables`: the paper's tables beside ours, on the screen or for a document."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from halrp.cli.results import NOTHING, WIDTH, loaded, print_left_out
from halrp.errors import SettingError
from halrp.lab.names import check_name
from halrp.store import atomic

if TYPE_CHECKING:
    from halrp.lab.records.schema import Record
    from halrp.lab.report.paper import Place
    from halrp.lab.report.table import Table

KEYS = ("paper-accuracy", "paper-orders", "paper-settings", "relations")
COLOURS = {"better": "green", "worse": "red", "no": "red"}
BENEATH = {"settings": ", ", "note": "; "}
"""Columns whose parts the screen shows below the name of the method, and what stands between the parts."""
ABOVE = ("benchmark", "backbone", "data")
"""Columns that the screen shows once, above the rows that share them."""
SCREEN = {
    "paper-orders": {
        "method": ("method",),
        "M/AOPD paper": ("mopd_paper", "aopd_paper"),
        "ours": ("mopd", "aopd"),
        "difference": ("mopd_difference", "aopd_difference"),
        "floor": ("stl_mopd", "stl_aopd"),
        "all orders": ("all_mopd", "all_aopd"),
        "orders": ("orders",),
    },
}
"""Which columns the screen shows, and which of them in one, where all of them would be too wide."""


def tables(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATHS", help="records, or folders of them; results by default", show_default=False),
    ] = None,
    table: Annotated[str, typer.Option(metavar="KEY", help=f"which table: {', '.join(KEYS)}")] = KEYS[0],
    stream: Annotated[list[str] | None, typer.Option(help="only this stream; may be given several times")] = None,
    backbone: Annotated[list[str] | None, typer.Option(help="only this backbone")] = None,
    fraction: Annotated[list[float] | None, typer.Option(help="only this share of the data, such as 0.25")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also what the paper has and we did not run")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="as LaTeX, with booktabs")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="as CSV, in full precision")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="as Markdown")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="where to; the standard output if not said"),
    ] = None,
) -> None:
    """Show the paper's results beside those of the runs whose records are there.

    A table has every method that the paper prints, run or not, and the runs of other methods at the same place: stream,
    backbone and share of the data.

    Examples: halrp tables, or halrp tables results --stream cifar100-split --fraction 0.05 --latex -o table.tex
    """
    from halrp.lab.report import texts

    check_name("table", table, KEYS)
    forms = {"--latex": (latex, texts.latex), "--csv": (csv, texts.csv), "--markdown": (markdown, texts.markdown)}
    asked = {option: to_text for option, (wanted, to_text) in forms.items() if wanted}
    _refuse(list(asked), output)
    found = loaded(paths or [Path("results")])
    made = _made(table, found.records, _wanted(found.records, stream, backbone, fraction, everything), everything)
    for to_text in asked.values():
        if output is None:
            typer.echo(to_text(made), nl=False)
        else:
            atomic.write(output, to_text(made).encode())
            typer.echo(f"wrote {output}: {len(made.rows)} rows")
    if not asked:
        _print(made)
    print_left_out(found.problems, aside=bool(asked) and output is None)


def _refuse(asked: list[str], output: Path | None) -> None:
    """Outputs that cannot be are an error."""
    if len(asked) > 1:
        raise SettingError(f"{' and '.join(asked)} do not go together; ask for one of them")
    if output is not None and not asked:
        raise SettingError(f"-o {output} does not say as what; add --latex, --csv or --markdown")
    if output is not None and (not output.name or output.is_dir()):
        raise SettingError(f"{str(output)!r} is not a file that a table can be written to; name one, such as table.tex")


def _made(key: str, records: list[Record], places: list[Place], everything: bool) -> Table:
    from halrp.lab.report.comparison import all_relations, comparison

    if key != "relations":
        return comparison(records, places)[KEYS.index(key)]
    made = all_relations(records, places)
    return made if everything else replace(made, rows=tuple(row for row in made.rows if row["holds"] is not None))


def _wanted(
    records: list[Record],
    stream: list[str] | None,
    backbone: list[str] | None,
    fraction: list[float] | None,
    everything: bool,
) -> list[Place]:
    """The places that were asked for, in the paper's order; none at all is an error."""
    from halrp.lab.report import paper

    there = paper.places()
    for name, values, index in (("stream", stream, 0), ("backbone", backbone, 1)):
        for value in values or ():
            check_name(f"{name} in the paper's tables", value, dict.fromkeys(str(place[index]) for place in there))
    shares = sorted({place[2] for place in there})
    for share in fraction or ():
        if not any(math.isclose(share, one) for one in shares):
            known = ", ".join(f"{one:g}" for one in shares)
            raise SettingError(f"the paper has no results for --fraction {share:g}; it has {known}")
    chosen = [
        place
        for place in there
        if (not stream or place[0] in stream)
        and (not backbone or place[1] in backbone)
        and (not fraction or any(math.isclose(share, place[2]) for share in fraction))
    ]
    if not chosen:
        raise SettingError("the paper has no results for all that was asked for together")
    cells = [record["cell"] for record in records]
    run = {paper.place_of(cell["stream"], cell["backbone"], float(cell.get("fraction", 1.0))) for cell in cells}
    if not everything:
        chosen = [place for place in chosen if place in run]
    if not chosen:
        raise SettingError("no record is from where the paper has these results; --all shows the paper's alone")
    return chosen


# ---- on the screen ------------------------------------------------------------------------------------------------


def _print(table: Table) -> None:
    """Print a table, a section for each place."""
    from halrp.lab.report import texts

    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    shown, cells = texts.shown(table)
    numeric = {column.key for column in shown if column.digits is not None}
    columns = SCREEN.get(table.key) or {c.title: (c.key,) for c in shown if c.key not in (*ABOVE, *BENEATH)}
    sections: dict[str, list[tuple[dict[str, str], str]]] = {}
    for number, texts_of_row in enumerate(cells):
        row = {column.key: text for column, text in zip(shown, texts_of_row, strict=True)}
        place = f"{row['benchmark']}, {row['backbone']}, {row['data']} % of the data"
        sections.setdefault(place, []).append((row, table.marks[number] if table.marks else ""))
    for place, rows in sections.items():
        console.print(f"\n[bold]{escape(place)}[/bold]")
        grid = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for title, keys in columns.items():
            grid.add_column(title, justify="right" if keys[0] in numeric else "left", overflow="fold")
        if table.marks:
            grid.add_column("ours is")
        for row, mark in rows:
            first, *others = (_joined(row, keys) for keys in columns.values())
            below = [text for key, apart in BENEATH.items() for text in row.get(key, "").split(apart) if text]
            name = _coloured(first) + "".join(f"\n[dim]  {escape(text)}[/dim]" for text in below)
            grid.add_row(name, *map(_coloured, others), *([_coloured(mark)] if table.marks else []))
        console.print(grid)
    console.print(f"\n{escape(table.about)}", style="dim")


def _joined(row: dict[str, str], keys: tuple[str, ...]) -> str:
    if keys == ("orders",) and all(len(name) == 1 for name in row["orders"].split()):
        return row["orders"].replace(" ", "")
    values = [row[key] for key in keys]
    return values[0] if set(values) == {NOTHING} else "/".join(values)


def _coloured(text: str) -> str:
    colour = COLOURS.get(text)
    return escape(text) if colour is None else f"[{colour}]{text}[/{colour}]"
