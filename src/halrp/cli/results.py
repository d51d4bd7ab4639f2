"""`halrp results`: the table of what was run, from raw records."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table as RichTable

from halrp.errors import SettingError
from halrp.lab.names import check_name

if TYPE_CHECKING:
    from halrp.lab.records.aggregate import Loaded, Problem, Record, Row, Table, Value

WIDTH = 100
NOTHING = "–"
LISTED = 10
"""How many files of a kind are listed by name."""
KINDS = {
    "damaged": "damaged",
    "unfinished": "unfinished",
    "duplicate": "older records of a cell that was run again",
    "other": "JSON that is no record of a run",
}


class Column(NamedTuple):
    """A column on the screen: its title, the values of a row that it shows, and how."""

    title: str
    names: tuple[str, ...]
    show: Callable[..., str]
    apart: str = " "


def results(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATHS", help="records, or folders of them; results by default", show_default=False),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method; may be given several times")] = None,
    stream: Annotated[list[str] | None, typer.Option(help="only this stream")] = None,
    fraction: Annotated[list[float] | None, typer.Option(help="only this share of the data, such as 0.25")] = None,
    order: Annotated[list[str] | None, typer.Option(help="only this order")] = None,
    each: Annotated[bool, typer.Option("--runs", help="a row for each run, not for each group of them")] = False,
    as_csv: Annotated[str | None, typer.Option("--csv", metavar="FILE|-", help="write the table as CSV")] = None,
    as_json: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="write the table as JSON")] = None,
) -> None:
    """Show accuracies, backward transfer, order disparity, growth and time of the runs whose records are there.

    A row stands for all orders and seeds of the same method, settings and data; --runs shows each of them. Files have
    all columns in full precision, the screen the main ones. A value that is undefined is shown as –, and the reason
    stands beneath; files have it in the last column. FILE - is the standard output, without the table on the screen.

    Examples: halrp results, or halrp results results/cifar100-split-25 --csv table.csv
    """
    from halrp.lab.records import aggregate as made

    if as_csv == as_json == "-":
        raise SettingError("--csv - and --json - cannot both have the standard output; give one of them a file")
    for place in (as_csv, as_json):
        if place is not None and (not Path(place).name or Path(place).is_dir()):
            raise SettingError(f"{place!r} is not a file that a table can be written to; name one, such as table.csv")
    aside = "-" in (as_csv, as_json)
    found = loaded(paths or [Path("results")])
    chosen = _chosen(found.records, method, stream, fraction, order)
    table = (made.runs_table if each else made.summary)(chosen, found.records)
    written = []
    for place, to_text, write in ((as_csv, made.to_csv, made.write_csv), (as_json, made.to_json, made.write_json)):
        if place == "-":
            typer.echo(to_text(table), nl=False)
        elif place is not None:
            write(place, table)
            written.append(place)
    if not aside:
        _print(table, RUNS if each else SUMMARY)
    if len(chosen) < len(found.records):
        typer.echo(f"\nShown are {len(chosen)} of {len(found.records)} records, as asked for.", err=aside)
    print_left_out(found.problems, aside)
    for place in written:
        typer.echo(f"\nwrote {place}: {len(table)} rows", err=aside)


def loaded(places: Sequence[Path]) -> Loaded:
    """The records of files and folders; it is an error if there is none, after what was left out is told."""
    from halrp.lab.records.schema import load

    found = load(places)
    if not found.records:
        print_left_out(found.problems, aside=True)
        where = ", ".join(map(str, places))
        raise SettingError(f"no finished record in {where} ({len(found.problems)} files were left out)")
    return found


def _chosen(
    records: list[Record],
    method: Sequence[str] | None,
    stream: Sequence[str] | None,
    fraction: Sequence[float] | None,
    order: Sequence[str] | None,
) -> list[Record]:
    """The records that were asked for; a value that none of them has is an error."""
    from halrp.lab.records.schema import Run

    runs = [Run.of(record) for record in records]
    wanted = {"method": method, "stream": stream, "order": order}
    for name, values in wanted.items():
        for value in values or ():
            check_name(f"{name} of a record", value, sorted({getattr(run, name) for run in runs}))
    there = sorted({run.fraction for run in runs})
    for share in fraction or ():
        if not any(math.isclose(share, one) for one in there):
            raise SettingError(f"no record has --fraction {share:g}; there are {', '.join(f'{f:g}' for f in there)}")
    chosen = [
        record
        for record, run in zip(records, runs, strict=True)
        if all(not values or getattr(run, name) in values for name, values in wanted.items())
        and (not fraction or any(math.isclose(share, run.fraction) for share in fraction))
    ]
    if not chosen:
        raise SettingError("no record has all that was asked for; each of the values is there, but not together")
    return chosen


# ---- on the screen ------------------------------------------------------------------------------------------------


def _print(table: Table, columns: tuple[Column, ...]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    sections: dict[str, list[Row]] = {}
    for row in table:
        sections.setdefault(_place(row), []).append(row)
    for place, rows in sections.items():
        shared = set.intersection(*(_parts(row["recipe"]) for row in rows))
        title = ", ".join([place, *sorted(shared)])
        console.print(f"\n[bold]{escape(title)}[/bold]")
        shown = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        shown.add_column("method", overflow="fold")
        for column in columns:
            shown.add_column(column.title, justify="right", vertical="top", no_wrap=True)
        for row in rows:
            extra = [*sorted(_parts(row["settings"])), *sorted(_parts(row["recipe"]) - shared)]
            label = escape(str(row["method"])) + "".join(f"\n[dim]  {escape(text)}[/dim]" for text in extra)
            shown.add_row(label, *(escape(_show(row, column)) for column in columns))
        console.print(shown)
    console.print(f"\n{LEGEND if columns is SUMMARY else LEGEND_OF_RUNS}", style="dim")
    for line in _reasons(table, columns):
        console.print(escape(line))


def _place(row: Row) -> str:
    network = f" ({row['network']})" if row["network"] else ""
    epochs = row["epochs"] if isinstance(row["epochs"], int) else "an unknown number of"
    share = f"{100 * float(row['fraction']):g} % of the data"  # type: ignore[arg-type]
    return f"{row['stream']}, {row['backbone']}{network}, {share}, {row['tasks']} tasks, {epochs} epochs"


def _parts(settings: Value) -> set[str]:
    return set(filter(None, str(settings).split(", ")))


def _show(row: Row, column: Column) -> str:
    from halrp.lab.records.aggregate import Undefined

    values = [row[name] for name in column.names]
    if all(isinstance(value, Undefined) for value in values):
        return NOTHING
    return column.apart.join(NOTHING if isinstance(value, Undefined) else column.show(value) for value in values)


def _reasons(table: Table, columns: tuple[Column, ...]) -> list[str]:
    """Why values are undefined: each reason once, with the columns and methods it holds for."""
    from halrp.lab.records.aggregate import Undefined

    where: dict[tuple[str, str], set[int]] = {}
    for number, row in enumerate(table):
        for name in (name for column in columns for name in column.names):
            if isinstance(value := row[name], Undefined):
                where.setdefault((value.reason, NAMES.get(name, name)), set()).add(number)
    lines: dict[tuple[str, str], list[str]] = {}
    for (reason, title), numbers in where.items():
        methods = dict.fromkeys(str(table[number]["method"]) for number in sorted(numbers))
        who = "" if len(numbers) == len(table) else f" of {', '.join(methods)}"
        lines.setdefault((reason, who), []).append(title)
    return [f"{NOTHING} {', '.join(titles)}{who}: {reason}" for (reason, who), titles in lines.items()]


def print_left_out(problems: Sequence[Problem], aside: bool) -> None:
    """Say which files no table uses, and why."""
    for kind, title in KINDS.items():
        some = [problem for problem in problems if problem.kind == kind]
        if not some:
            continue
        typer.echo(f"\nLeft out, {title}: {len(some)}", err=aside)
        for problem in some[:LISTED] if kind != "other" else ():
            typer.echo(f"  {problem.path}: {' '.join(problem.reason.split())}", err=aside)
        if kind != "other" and len(some) > LISTED:
            typer.echo(f"  and {len(some) - LISTED} more", err=aside)


def _fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}".replace("-0." + "0" * digits, "0." + "0" * digits)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if abs(share) < 1 else f"{100 * share:.0f}"


def _size(value: float) -> str:
    return decimal(round(value)).replace(" bytes", " B").replace(" byte", " B")


def _spread(value: float | str) -> str:
    return {"seeds": "", "orders": "*"}[value] if isinstance(value, str) else f"±{value:.2f}"


def _orders(value: str) -> str:
    names = value.split(" ")
    if value.startswith("all "):
        return value
    if all(len(name) == 1 for name in names):
        return "".join(names)
    return names[0] if len(names) == 1 else f"{len(names)} orders"


GROWTH = Column("growth %", ("growth_bytes", "growth_parameters", "growth_counted"), _percent, "/")
SUMMARY = (
    Column("orders", ("orders",), _orders),
    Column("runs", ("runs",), str),
    Column("accuracy", ("accuracy",), _fixed(2)),
    Column("", ("error_usual", "spread_over"), _spread, ""),
    Column("BWT", ("bwt",), _fixed(2)),
    Column("M/AOPD", ("mopd", "aopd"), _fixed(1), "/"),
    Column("floor", ("stl_mopd", "stl_aopd"), _fixed(1), "/"),
    GROWTH,
    Column("time", ("time_ratio",), _fixed(1)),
)
RUNS = (
    Column("order", ("order",), str),
    Column("seed", ("seed",), str),
    Column("accuracy", ("accuracy",), _fixed(2)),
    Column("BWT", ("bwt",), _fixed(2)),
    GROWTH,
    Column("later task", ("later_bytes",), _size),
    Column("seconds", ("seconds",), _fixed(1)),
    Column("memory", ("peak_bytes",), _size),
)
NAMES = {
    "error_usual": "spread",
    "spread_over": "spread",
    "bwt": "BWT",
    "mopd": "MOPD",
    "aopd": "AOPD",
    "stl_mopd": "floor",
    "stl_aopd": "floor",
    "growth_bytes": "growth in bytes",
    "growth_parameters": "growth in parameters",
    "growth_counted": "growth in the paper's count",
    "time_ratio": "time",
    "later_bytes": "later task",
    "peak_bytes": "memory",
}
_GROWTH_IS = "Growth beyond a single-task model: in bytes, in parameters, in the paper's count."
LEGEND = (
    "Accuracy in % ± its usual standard error over seeds, over orders where marked *. M/AOPD: the largest and the mean "
    f"range of a task's accuracy over orders; floor: that of stl if nothing but its draws differs. {_GROWTH_IS} "
    "Time of all tasks, where the first task of stl takes 1."
)
LEGEND_OF_RUNS = f"Accuracy in %. {_GROWTH_IS} Later task: bytes that one adds. Memory: its peak."
