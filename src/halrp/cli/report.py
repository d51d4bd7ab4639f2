"""`halrp report`: one page with every table and figure, from raw records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from halrp.cli.results import Paths, loaded, print_left_out
from halrp.errors import SettingError
from halrp.terminal import echo

if TYPE_CHECKING:
    from halrp.lab.report.figure import Figure, Plot
    from halrp.lab.report.page import Section


class Format(StrEnum):
    """Kinds of files that figures are saved as."""

    svg = "svg"
    pdf = "pdf"
    png = "png"


def report(
    paths: Paths = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="the page to write")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="title of the page")] = "Continual learning, measured",
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="also save every figure as a file there", show_default=False),
    ] = None,
    file_format: Annotated[Format, typer.Option("--format", help="kind of file that --figures saves")] = Format.svg,
) -> None:
    """Turn raw records into one page with all tables and figures, beside the results of the paper.

    The page is one file that opens in any browser and needs no network; it can be searched, sorted, printed and sent.
    The same records give the same page. Files that cannot be used are left out, and the page says which and why.

    Examples: halrp report, or halrp report results/cifar100-split-5 -o page.html --figures figures --format pdf
    """
    from halrp.lab.report.build import build, left_out, made_from
    from halrp.lab.report.page import page
    from halrp.store import atomic

    if not output.name or output.is_dir():
        raise SettingError(f"{str(output)!r} is not a file that a page can be written to; name one: -o report.html")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise SettingError(f"{str(figures)!r} is not a folder; name one that figures can be saved in")
    folders = paths or [Path("results")]
    records = loaded(folders)
    sections = build(records.records)
    text = page(title, sections, left_out(records.problems, folders), made_from(records.records, folders)).encode()
    atomic.write(output, text)
    echo(f"wrote {output}: {len(records.records)} records, {decimal(len(text))}")
    if figures is not None:
        count = save(sections, figures, file_format.value)
        echo(f"wrote {count} figures to {figures}")
    print_left_out(records.problems, aside=False)


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
