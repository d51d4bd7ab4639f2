"""`halrp results`: the table of what was run, from raw records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.filesize import decimal

from halrp.errors import SettingError
from halrp.lab.names import check_name
from halrp.terminal import echo, echo_block, print_prose

if TYPE_CHECKING:
    from halrp.lab.records.frames import Frame
    from halrp.lab.records.loading import Loaded, Problem
    from halrp.lab.report.table import Column, Table

NOTHING = "–"
LISTED = 10
"""The number of files of a kind that are listed by name."""
KINDS = {
    "damaged": "damaged",
    "unfinished": "unfinished",
    "duplicate": "older records of a cell that was run again",
    "other": "JSON that is not a record of a run",
}

Paths: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATHS", help="records, or folders of them; results by default", show_default=False),
]
"""The argument of commands that read records."""


def results(
    paths: Paths = None,
    method: Annotated[list[str] | None, typer.Option(help="only this method; may be given several times")] = None,
    stream: Annotated[list[str] | None, typer.Option(help="only this stream")] = None,
    fraction: Annotated[list[float] | None, typer.Option(help="only this share of the data, such as 0.25")] = None,
    order: Annotated[list[str] | None, typer.Option(help="only this order")] = None,
    each: Annotated[bool, typer.Option("--runs", help="a row for each run, not for each group of them")] = False,
    as_csv: Annotated[str | None, typer.Option("--csv", metavar="FILE|-", help="write the table as CSV")] = None,
    as_json: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="write the table as JSON")] = None,
) -> None:
    """Show accuracy, backward transfer, order disparity, growth and time of recorded runs.

    A row covers all orders and seeds of the same method, settings and data; --runs shows each run. Files have all
    columns in full precision, the screen the main ones. An undefined value is shown as –, with the reason below the
    table; files have it in the last column. FILE - is the standard output, without the table on the screen.

    Examples: halrp results, or halrp results results/cifar100-split-25 --csv table.csv
    """
    from halrp.lab.records import frames
    from halrp.lab.records.summary import summarise
    from halrp.store import atomic

    if as_csv == as_json == "-":
        raise SettingError("--csv - and --json - cannot both have the standard output; give one of them a file")
    for target in (as_csv, as_json):
        if target is not None and (not Path(target).name or Path(target).is_dir()):
            raise SettingError(f"{target!r} is not a file that a table can be written to; name one, such as table.csv")
    aside = "-" in (as_csv, as_json)
    records = loaded(paths)
    runs = frames.runs(records.records)
    chosen = _select(runs, {"method": method, "stream": stream, "order": order}, fraction)
    rows = chosen if each else summarise(chosen, among=runs)
    written = []
    for target, to_text in ((as_csv, _csv), (as_json, frames.to_json)):
        if target == "-":
            echo_block(to_text(rows))
        elif target is not None:
            atomic.write(Path(target), to_text(rows).encode())
            written.append(target)
    if not aside:
        _print(rows, each)
    if len(chosen) < len(runs):
        echo(f"\nShown are {len(chosen)} of {len(runs)} records, as selected.", err=aside)
    print_left_out(records.problems, aside)
    for target in written:
        echo(f"\nwrote {target}: {len(rows)} rows", err=aside)


def loaded(paths: Sequence[Path] | None) -> Loaded:
    """The records of files and folders, by default those in results.

    It is an error if there is none; the files that were left out are listed first.
    """
    from halrp.lab.records.loading import load

    paths = paths or [Path("results")]
    records = load(paths)
    if not records.records:
        print_left_out(records.problems, aside=True)
        where = ", ".join(map(str, paths))
        raise SettingError(f"no finished record in {where} ({len(records.problems)} files were left out)")
    return records


def print_left_out(problems: Sequence[Problem], aside: bool) -> None:
    """List the files that no table uses, and why."""
    for kind, title in KINDS.items():
        some = [problem for problem in problems if problem.kind == kind]
        if not some:
            continue
        echo(f"\nLeft out, {title}: {len(some)}", err=aside)
        for problem in some[:LISTED] if kind != "other" else ():
            echo(f"  {problem.path}: {' '.join(problem.reason.split())}", err=aside)
        if kind != "other" and len(some) > LISTED:
            echo(f"  and {len(some) - LISTED} more", err=aside)


def _select(runs: Frame, wanted: dict[str, list[str] | None], fraction: Sequence[float] | None) -> Frame:
    """The runs that match all filters; a value that no run has is an error."""
    chosen = runs
    for name, values in wanted.items():
        for value in values or ():
            check_name(f"{name} of a record", value, sorted(runs[name].unique()))
        if values:
            chosen = chosen[chosen[name].isin(values)]
    known = sorted(runs["fraction"].unique())
    for share in fraction or ():
        if not any(math.isclose(share, other) for other in known):
            raise SettingError(f"no record has --fraction {share:g}; there are {', '.join(f'{f:g}' for f in known)}")
    if fraction:
        chosen = chosen[[any(math.isclose(share, other) for share in fraction) for other in chosen["fraction"]]]
    if chosen.empty:
        raise SettingError("no record has all of the selected values; each of them exists, but not together")
    return chosen


def _csv(rows: Frame) -> str:
    """All columns in full precision; the last has the reasons of undefined values."""
    from halrp.lab.records import frames
    from halrp.lab.report import table_writers
    from halrp.lab.report.table import Column, Table

    plain = [row | {"undefined": frames.reasons(row["undefined"])} for row in frames.plain(rows)]
    names = [*(name for name in plain[0] if name != "undefined"), "undefined"]
    return table_writers.csv(Table("", "", "", tuple(Column(name, name) for name in names), tuple(plain)))


# ---- on the screen ------------------------------------------------------------------------------------------------


def _print(rows: Frame, each: bool) -> None:
    from halrp.lab.report.table_terminal import print_table

    table = _table(rows, each)
    print_table(table, "setup", {"details": ", "}, spare=("stl_mopd", "time_ratio", "seconds"))
    for line in _reasons(rows, table.columns):
        print_prose(line)


def _table(rows: Frame, each: bool) -> Table:
    """The main columns, in sections by setup; settings that a section shares are in its title."""
    from halrp.lab.records.frames import SETUP
    from halrp.lab.report.table import Table, plain_rows

    plain: list[dict[str, Any]] = []
    for _, section in rows.groupby(SETUP, sort=False, dropna=False):
        shared = set.intersection(*map(_parts, section["recipe"]))
        title = ", ".join([_setup(section.iloc[0]), *sorted(shared)])
        for row in section.to_dict("records"):
            name, method = row["record"].title, row["method"]
            settings = [*sorted(_parts(row["settings"])), *sorted(_parts(row["recipe"]) - shared)]
            details = ", ".join(settings if name == method else [method, *settings])
            plain.append(row | {"setup": title, "method": name, "details": details})
            if not each:
                plain[-1] |= {"orders": _orders(row["orders"]), "spread": _spread(row)}
    about = LEGEND_OF_RUNS if each else LEGEND
    return Table("results", "Results", about, _columns(each), plain_rows(plain))


def _setup(row: Any) -> str:
    network = f" ({row['network']})" if row["network"] else ""
    epochs = "an unknown number of" if row["epochs"] is None else row["epochs"]
    share = f"{100 * row['fraction']:g} % of the data"
    return f"{row['stream']}, {row['backbone']}{network}, {share}, {row['tasks']} tasks, {epochs} epochs"


def _parts(settings: str) -> set[str]:
    return set(filter(None, settings.split(", ")))


def _reasons(rows: Frame, columns: Sequence[Column]) -> list[str]:
    """Why values are undefined: each reason once, with the columns and methods it holds for."""
    shown = {key for column in columns for key in (column.key, *column.others)}
    where: dict[tuple[str, str], set[int]] = {}
    for number, undefined in enumerate(rows["undefined"]):
        for key, reason in undefined.items():
            if key in shown or (key == "error_usual" and "spread" in shown):
                where.setdefault((reason, TITLES.get(key, key)), set()).add(number)
    lines: dict[tuple[str, str], list[str]] = {}
    for (reason, title), numbers in where.items():
        methods = dict.fromkeys(rows["method"].iloc[number] for number in sorted(numbers))
        who = "" if len(numbers) == len(rows) else f" of {', '.join(methods)}"
        lines.setdefault((reason, who), []).append(title)
    return [f"{NOTHING} {', '.join(titles)}{who}: {reason}" for (reason, who), titles in lines.items()]


def _columns(each: bool) -> tuple[Column, ...]:
    from halrp.lab.report.table import Column

    method, accuracy = Column("method", "method"), Column("accuracy", "accuracy", 2)
    transfer = Column("bwt", "BWT", 2)
    growth = Column("growth_bytes", "growth %", others=("growth_parameters", "growth_counted"), format=_percent)
    if each:
        return (
            method,
            Column("order", "order", format=str),
            Column("seed", "seed", format=str),
            accuracy,
            transfer,
            growth,
            Column("later_bytes", "later task", format=_size),
            Column("seconds", "seconds", 1),
            Column("peak_bytes", "memory", format=_size),
        )
    return (
        method,
        Column("orders", "orders", format=str),
        Column("runs", "runs", format=str),
        accuracy,
        Column("spread", "", format=str),
        transfer,
        Column("mopd", "M/AOPD", 1, others=("aopd",)),
        Column("stl_mopd", "floor", 1, others=("stl_aopd",)),
        growth,
        Column("time_ratio", "time", 1),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if abs(share) < 1 else f"{100 * share:.0f}"


def _size(value: float) -> str:
    return decimal(round(value)).replace(" bytes", " B").replace(" byte", " B")


def _spread(row: dict[str, Any]) -> str | None:
    """The standard error, with a mark if it is over orders."""
    if math.isnan(row["error_usual"]):
        return None
    return f"±{row['error_usual']:.2f}{'*' if row['spread_over'] == 'orders' else ''}"


def _orders(text: str) -> str:
    names = text.split(" ")
    if text.startswith("all "):
        return text
    if all(len(name) == 1 for name in names):
        return "".join(names)
    return names[0] if len(names) == 1 else f"{len(names)} orders"


TITLES = {
    "error_usual": "spread",
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
_GROWTH = "Growth is relative to one single-task network: in bytes, in parameters, in the paper's count."
LEGEND = (
    "Accuracy in % ± its usual standard error over seeds, over orders where marked *. M/AOPD: the largest and the mean "
    f"range of a task's accuracy over orders; floor: that of stl when only its random draws differ. {_GROWTH} "
    "Time of all tasks, as a multiple of the first task of stl."
)
LEGEND_OF_RUNS = f"Accuracy in %. {_GROWTH} Later task: bytes that it adds. Memory: its peak."
