"""`halrp compare`: two stores, or two sets of records, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halrp.cli.options import Json
from halrp.cli.results import loaded, print_left_out
from halrp.cli.screen import print_table
from halrp.cli.store_report import is_store
from halrp.errors import SettingError
from halrp.terminal import echo, echo_json, print_prose
from halrp.text import counted

if TYPE_CHECKING:
    from halrp.lab.report.versus import SetsCompared
    from halrp.tools.compare import Pair, StoresCompared

COLOURS = {"same file": "green", "same numbers": "green", "unreadable": "red"}


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="a store, or records", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B", help="another of the same kind", show_default=False)],
    as_json: Json = False,
) -> None:
    """Compare two stores, or two sets of records.

    Of two stores: the bytes, ranks and scores of the tasks that both have, and whether these are the same bits. Scores
    are those of the validation data that each was learned with; only the same data make them comparable.

    Of two records, or folders of them: accuracies of the methods that both have run, over the same tasks, orders and
    seeds, with paired permutation tests. If each has one method left in a setup, these two are compared.

    Examples: halrp compare store/ backup/, or halrp compare results/before results/after
    """
    stores = [is_store(path) for path in (first, second)]
    if all(stores):
        _stores(first, second, as_json)
    elif any(stores):
        store, other = (first, second) if stores[0] else (second, first)
        raise SettingError(f"{store} is a store and {other} is none; compare two stores, or two sets of records")
    else:
        _records(first, second, as_json)


def _stores(first: Path, second: Path, as_json: bool) -> None:
    from halrp.tools.compare import compare as compared

    result = compared(first, second)
    if as_json:
        echo_json({"first": str(first), "second": str(second)} | result.to_json())
    else:
        _print_stores(result, first, second)


def _print_stores(result: StoresCompared, first: Path, second: Path) -> None:
    echo(f"A: {first}   B: {second}")
    echo()
    if result.pairs:
        titles = ("task", "bytes", "ranks", "score %", "bits")
        print_table(titles, map(_cells, result.pairs), right=titles[1:-1], wrap=("task",), colours=COLOURS)
        echo()
    same = sum(pair.bits in ("same file", "same numbers") for pair in result.pairs)
    base = "the same base" if result.same_base else "different bases"
    echo(f"{counted(len(result.pairs), 'task')} in both, on {base}; {same} with the same bits.")
    differences = [pair.difference for pair in result.pairs if pair.difference is not None]
    if differences:
        mean = 100 * sum(differences) / len(differences)
        echo(f"Scores on validation data, B − A: {mean:+.1f} on average over {counted(len(differences), 'task')}.")
    for name, tasks in (("A", result.only_first), ("B", result.only_second)):
        if tasks:
            echo(f"Only in {name}: {', '.join(map(repr, tasks))}.")


def _cells(pair: Pair) -> tuple[str, ...]:
    tasks = pair.first, pair.second
    scores = ("" if task.score is None else f"{100 * task.score:.1f}" for task in tasks)
    ranks = ("" if task.delta is None else f"{sum(task.ranks.values())}" for task in tasks)
    return pair.name, _change(*(f"{task.bytes:,}" for task in tasks)), _change(*ranks), _change(*scores), pair.bits


def _change(first: str, second: str) -> str:
    """From A to B, where they differ."""
    return first if first == second else f"{first or '?'} → {second or '?'}"


def _records(first: Path, second: Path, as_json: bool) -> None:
    from halrp.lab.report import table_writers
    from halrp.lab.report.versus import compare as compared

    sets = loaded([first]), loaded([second])
    result = compared(*(records.records for records in sets))
    if as_json:
        facts = {"first": str(first), "second": str(second), "rows": table_writers.rows(result.table)}
        echo_json(
            facts | {"only_first": result.only_first, "only_second": result.only_second, "unpaired": result.unpaired}
        )
    else:
        _print_records(result, first, second)
    for records in sets:
        print_left_out(records.problems, aside=as_json)


def _print_records(result: SetsCompared, first: Path, second: Path) -> None:
    from halrp.lab.report.table_terminal import print_table

    echo(f"A: {first}   B: {second}")
    if result.table.rows:
        print_table(result.table, "setup", {"details": "; "}, spare=("pairs", "first_bytes", "second_bytes"))
    else:
        echo("\nNo method was run by both under the same setup.")
    for title, names in (
        ("In both, but without a common task, order and seed", result.unpaired),
        ("Only in A", result.only_first),
        ("Only in B", result.only_second),
    ):
        for setup, methods in names.items():
            echo(f"\n{title}, {setup}: {len(methods)}")
            print_prose(f"{', '.join(methods)}")
