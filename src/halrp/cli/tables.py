"""`halrp tables`: the paper's tables beside ours, on the screen or for a document."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halrp.cli import completion
from halrp.cli.results import Paths, loaded, print_left_out
from halrp.errors import SettingError
from halrp.lab.names import check_name
from halrp.store import atomic
from halrp.terminal import echo, echo_block

if TYPE_CHECKING:
    from halrp.lab.records.frames import Frame
    from halrp.lab.report.paper import Benchmark
    from halrp.lab.report.table import Table

KEYS = ("paper-accuracy", "paper-orders", "paper-settings", "relations")
BELOW = {"settings": ", ", "note": "; "}
"""Columns whose parts the screen shows below the name of the method, and the separators of the parts."""
SPARE = ("all_mopd", "stl_mopd", "over", "runs", "orders")
"""Columns that a narrow screen leaves out."""


def tables(
    paths: Paths = None,
    table: Annotated[
        str, typer.Option(metavar="KEY", help=f"which table: {', '.join(KEYS)}", autocompletion=completion.among(KEYS))
    ] = KEYS[0],
    stream: Annotated[list[str] | None, typer.Option(help="only this stream; may be given several times")] = None,
    backbone: Annotated[list[str] | None, typer.Option(help="only this backbone")] = None,
    fraction: Annotated[list[float] | None, typer.Option(help="only this share of the data, such as 0.25")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also what the paper has and we did not run")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="as LaTeX, with booktabs")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="as CSV, in full precision")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="as Markdown")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON, for programs")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="the file to write; the standard output by default"),
    ] = None,
) -> None:
    """Show the paper's results beside those of recorded runs.

    A table has every method that the paper prints, run or not, and the runs of other methods on the same benchmark:
    stream, backbone and share of the data.

    Examples: halrp tables, or halrp tables results --stream cifar100-split --fraction 0.05 --latex -o table.tex
    """
    from halrp.lab.records.frames import runs
    from halrp.lab.records.summary import summarise
    from halrp.lab.report import table_writers as writers

    check_name("table", table, KEYS)
    formats = {
        "--latex": (writers.latex, latex),
        "--csv": (writers.csv, csv),
        "--markdown": (writers.markdown, markdown),
        "--json": (writers.json, as_json),
    }
    asked = {option: to_text for option, (to_text, given) in formats.items() if given}
    _refuse(list(asked), output)
    records = loaded(paths)
    groups = summarise(runs(records.records))
    result = _build(table, groups, _wanted(groups, stream, backbone, fraction, everything), everything)
    for to_text in asked.values():
        if output is None:
            echo_block(to_text(result))
        else:
            atomic.write(output, to_text(result).encode())
            echo(f"wrote {output}: {len(result.rows)} rows")
    if not asked:
        _print(result)
    print_left_out(records.problems, aside=bool(asked) and output is None)


def _refuse(asked: list[str], output: Path | None) -> None:
    """Refuse options that contradict each other."""
    if len(asked) > 1:
        raise SettingError(f"{' and '.join(asked)} do not go together; give one of them")
    if output is not None and not asked:
        raise SettingError(f"-o {output} needs a format; add --latex, --csv, --markdown or --json")
    if output is not None and (not output.name or output.is_dir()):
        raise SettingError(f"{str(output)!r} is not a file that a table can be written to; name one, such as table.tex")


def _build(key: str, groups: Frame, benchmarks: list[Benchmark], everything: bool) -> Table:
    from halrp.lab.report.comparison import comparison
    from halrp.lab.report.relations import relations

    if key != "relations":
        return comparison(groups, benchmarks)[KEYS.index(key)]
    table = relations(groups, benchmarks)
    return table if everything else replace(table, rows=tuple(row for row in table.rows if row["holds"] is not None))


def _wanted(
    groups: Frame,
    stream: list[str] | None,
    backbone: list[str] | None,
    fraction: list[float] | None,
    everything: bool,
) -> list[Benchmark]:
    """The benchmarks that match the options, in the paper's order; none at all is an error."""
    from halrp.lab.report import paper

    known = paper.benchmarks()
    for name, values in (("stream", stream), ("backbone", backbone)):
        for value in values or ():
            check_name(f"{name} in the paper's tables", value, dict.fromkeys(getattr(b, name) for b in known))
    shares = sorted({benchmark.fraction for benchmark in known})
    for share in fraction or ():
        if not any(math.isclose(share, other) for other in shares):
            there = ", ".join(f"{other:g}" for other in shares)
            raise SettingError(f"the paper has no results for --fraction {share:g}; it has {there}")
    chosen = [
        benchmark
        for benchmark in known
        if (not stream or benchmark.stream in stream)
        and (not backbone or benchmark.backbone in backbone)
        and (not fraction or any(math.isclose(share, benchmark.fraction) for share in fraction))
    ]
    if not chosen:
        raise SettingError("the paper has no results for all of these options together")
    run = {paper.benchmark_of(*key) for key in zip(*(groups[n] for n in paper.Benchmark._fields), strict=True)}
    if not everything:
        chosen = [benchmark for benchmark in chosen if benchmark in run]
    if not chosen:
        raise SettingError("no record is of a benchmark with these results of the paper; --all shows the paper's alone")
    return chosen


def _print(table: Table) -> None:
    """Print a table, a section for each benchmark; disparities are paired, as all their columns would be too wide."""
    from halrp.lab.report.table import Column
    from halrp.lab.report.table_terminal import print_table

    columns = table.columns
    if table.key == "paper-orders":
        columns = (
            Column("method", "method"),
            Column("mopd_paper", "M/AOPD paper", 2, others=("aopd_paper",)),
            Column("mopd", "ours", 2, others=("aopd",)),
            Column("mopd_difference", "difference", 2, signed=True, others=("aopd_difference",)),
            Column("stl_mopd", "floor", 2, others=("stl_aopd",)),
            Column("all_mopd", "all orders", 2, others=("all_aopd",)),
            Column("orders", "orders"),
        )
    rows = tuple(
        {**row, "section": f"{row['benchmark']}, {row['backbone']}, {row['data']} % of the data"}
        | ({"orders": _brief(row["orders"])} if "orders" in row else {})
        for row in table.rows
    )
    hidden = ("benchmark", "backbone", "data")
    print_table(replace(table, columns=columns, rows=rows), "section", BELOW, hidden, SPARE)


def _brief(orders: object) -> str:
    names = str(orders or "").split()
    return "".join(names) if all(len(name) == 1 for name in names) else str(orders)
