"""`halrp report`: what a store holds, or one page with every table and figure, from raw records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.filesize import decimal

from halrp.cli import store_report
from halrp.cli.options import Json
from halrp.cli.results import loaded, print_left_out
from halrp.cli.store import HeadOption, OutputsOption, TransformOption
from halrp.errors import SettingError
from halrp.terminal import echo, echo_json
from halrp.tools.importing import call_options

if TYPE_CHECKING:
    from halrp.lab.report.figure import Figure, Plot
    from halrp.lab.report.page import Section
    from halrp.report import Report


TITLE = "Continual learning, measured"
"""Of the page of records."""
ReportPaths: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATHS", help="a store; or records, or folders of them; results by default", show_default=False
    ),
]


class Format(StrEnum):
    """Kinds of files that figures are saved as."""

    svg = "svg"
    pdf = "pdf"
    png = "png"


def report(
    paths: ReportPaths = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="the page to write; default: report.html", show_default=False
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="title of the page", show_default=False)] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="also save every figure as a file there", show_default=False),
    ] = None,
    file_format: Annotated[Format, typer.Option("--format", help="kind of file that --figures saves")] = Format.svg,
    model: Annotated[
        str | None, typer.Option(help="of a store: package.module:callable; also compute outputs again")
    ] = None,
    head: HeadOption = None,
    outputs: OutputsOption = None,
    transform: TransformOption = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="of a store: use only what this key signed")
    ] = None,
    as_json: Json = False,
) -> None:
    """Report on a store, or turn raw records into a page with all tables and figures.

    Of a STORE: its tasks, bytes, ranks and scores, and whether tasks are what was committed, bit for bit, as a table
    and as a page. Files are compared with the checksums of their commits; with --model, outputs are computed again.
    Exits with 1 if a task is damaged.

    Of records: every table and figure, beside the results of the paper. The same records give the same page. Files that
    cannot be used are left out, and the page says which and why.

    A page is one file that opens in any browser and needs no network. With --json, it is written only with -o.

    Example: halrp report store/ --model my_models:resnet

    Examples: halrp report, or halrp report results/cifar100-split-5 -o page.html --figures figures --format pdf
    """
    target = Path("report.html") if output is None and not as_json else output
    if target is not None and (not target.name or target.is_dir()):
        raise SettingError(f"{str(target)!r} is not a file that a page can be written to; name one: -o report.html")
    folders = paths or [Path("results")]
    if any(map(store_report.is_store, folders)):
        if len(folders) > 1 or figures is not None:
            raise SettingError("a report on a store is about one store, and has no figures; name the store alone")
        content = store_report.read(folders[0], key, model, call_options(head, outputs, transform))
        _of_store(content, folders[0], target, title, as_json)
        return
    if any(option is not None for option in (model, head, outputs, transform, key)):
        raise SettingError(f"--model, --key and so on are about a store, and {folders[0]} is none; leave them out")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise SettingError(f"{str(figures)!r} is not a folder; name one that figures can be saved in")
    _of_records(folders, target, title or TITLE, figures, file_format, as_json)


def _of_store(content: Report, folder: Path, target: Path | None, title: str | None, as_json: bool) -> None:
    from halrp.store import atomic

    if as_json:
        echo_json(content.to_json())
    else:
        store_report.show(content)
    if target is not None:
        name = folder.resolve().name or str(folder)
        page = store_report.page_of(content, folder, title or f"Tasks of {name}").encode()
        atomic.write(target, page)
        echo(f"\nwrote {target}: {decimal(len(page))}", err=as_json)
    if content.problems:
        raise typer.Exit(1)


def _of_records(
    folders: list[Path], target: Path | None, title: str, figures: Path | None, file_format: Format, as_json: bool
) -> None:
    from halrp.lab.report.build import build, left_out, made_from
    from halrp.lab.report.page import page
    from halrp.store import atomic

    records = loaded(folders)
    sections = () if target is None and figures is None else build(records.records)
    size = count = 0
    if target is not None:
        problems = left_out(records.problems, folders)
        text = page(title, sections, problems, made_from(records.records, folders)).encode()
        atomic.write(target, text)
        size = len(text)
        echo(f"wrote {target}: {len(records.records)} records, {decimal(size)}", err=as_json)
    if figures is not None:
        count = save(sections, figures, file_format.value)
        echo(f"wrote {count} figures to {figures}", err=as_json)
    if as_json:
        listed = [problem._asdict() | {"path": str(problem.path)} for problem in records.problems]
        facts = {"page": target and str(target), "bytes": size, "figures": count, "records": len(records.records)}
        echo_json(facts | {"left_out": listed})
    print_left_out(records.problems, aside=as_json)


def save(sections: Iterable[Section], folder: Path, suffix: str) -> int:
    """Save every plot of every figure in a folder, and return the number of files."""
    from halrp.lab.report.image import write

    count = 0
    for name, title, plot in named(sections):
        write(plot, folder / f"{name}.{suffix}", title=title)
        count += 1
    return count


def named(sections: Iterable[Section]) -> Iterator[tuple[str, str, Plot]]:
    """Every plot of every figure, with a unique name for its file, and its title."""
    from halrp.lab.report.figure import Figure

    shown: Sequence[Figure] = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    seen: dict[str, int] = {}
    for figure in shown:
        for label, plot in figure.plots.items():
            name = re.sub(r"[^a-z0-9]+", "-", f"{figure.key}-{label}".lower()).strip("-")[:120]
            seen[name] = seen.get(name, 0) + 1
            again = "" if seen[name] == 1 else f"-{seen[name]}"
            yield f"{name}{again}", f"{figure.title}: {label}", plot
