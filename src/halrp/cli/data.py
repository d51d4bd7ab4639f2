"""`halrp data`: which data sets are here, the official downloads of the others, and a look at a stream."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from halrp.cli import completion
from halrp.cli.options import Data, Json
from halrp.cli.screen import print_table, show
from halrp.errors import HalrpError, SettingError
from halrp.terminal import Terminal, echo, echo_json, safe_markup

if TYPE_CHECKING:
    from halrp.lab.data import LoadedDataSet, Status

PICTURES = (".png", ".jpg", ".jpeg", ".webp")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="""Data sets: which are here, how to get the others, and what a stream looks like.

    Data sets are in one data directory: --data, else the environment variable HALRP_DATA, else halrp/data in the
    user's cache directory. Archives stay packed. Images are decoded once and kept in the cache.

    Begin with: halrp data list

    Then, for example: halrp data get cifar100, and halrp data show cifar100-split -o sheet.png""",
)


@app.command("list")
def list_sets(
    data: Data = None,
    verify: Annotated[bool, typer.Option("--verify", help="read every image, and compare published checksums")] = False,
    as_json: Json = False,
) -> None:
    """Show which data sets are here, where and how, and which streams need them.

    "complete" is every image of the published set and "subset" fewer; "here" was never read, so it may be either.
    --verify reads all images (slow the first time) and compares each set with published checksums; it
    exits with 1 if a set is damaged or differs from what was published.

    Examples: halrp data list, or halrp data list --verify --data ~/datasets
    """
    from halrp.lab.data import SETS, data_directory, status

    with _decoding() as step:
        statuses = [status(name, data, verify, step if verify else None) for name in SETS]
    rows = [_row(each, data) for each in statuses]
    if as_json:
        echo_json({"directory": str(data_directory(data)), "sets": rows})
    else:
        _print_table(rows, verify, data_directory(data))
    if any(each.problem or each.verified == "no" for each in statuses):
        raise typer.Exit(1)


def _row(status: Status, data: Path | None) -> dict[str, Any]:
    """A row of the list."""
    from halrp.lab.data.download import begun
    from halrp.lab.data.sources import source
    from halrp.lab.registry import STREAMS

    started, official = begun(status.name, data), source(status.name)
    if status.problem:
        state = "damaged"
    elif status.present:
        state = {True: "complete", False: "subset", None: "here"}[status.complete]
    else:
        state = "begun" if started else "missing"
    return asdict(status) | {
        "state": state,
        "directory": None if status.directory is None else str(status.directory),
        "streams": [stream for stream, entry in STREAMS.items() if status.name in entry.data_sets],
        "download_bytes": official.bytes,
        "begun_bytes": started,
        "page": official.page,
    }


def _print_table(rows: list[dict[str, Any]], verify: bool, root: Path) -> None:
    lines = []
    for row in rows:
        size = decimal(row["bytes"]) if row["present"] else f"({decimal(row['download_bytes'])})"
        verified = row["verified"] if row["present"] and verify else "" if not row["present"] else "not asked"
        layout = row["layout"] or ""
        if row["directory"] not in (None, str(root)):
            layout += f", in {row['directory']}"
        lines.append((row["name"], row["state"], verified, size, layout, ", ".join(row["streams"])))
    echo(f"Data directory: {root}")
    echo()
    titles = ("data set", "state", "verified", "size", "layout", "needed by")
    print_table(titles, lines, right=["size"], wrap=["needed by"])
    for row in rows:
        if row["problem"]:
            echo(f"\n{row['name']}: {row['problem']}")
        if row["begun_bytes"]:
            done = f"{decimal(row['begun_bytes'])} of {decimal(row['download_bytes'])}"
            echo(f"\n{row['name']}: a download of {done} did not end; resume it: halrp data get {row['name']}")
    if lacking := [row["name"] for row in rows if not row["present"]]:
        echo(f"\nSizes in brackets are downloads. To get what is missing: halrp data get {' '.join(lacking)}")


@app.command("get")
def get_sets(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="data sets, or all", show_default=False, autocompletion=completion.data_sets
        ),
    ],
    data: Data = None,
    again: Annotated[
        bool, typer.Option("--official", help="download the official files even if the set is here in another layout")
    ] = False,
    as_json: Json = False,
) -> None:
    """Download the official files of data sets, verify their checksums, and decode them.

    A set that is here and complete, in whatever layout, is not downloaded. To resume an interrupted download, run the
    same command again. Files are moved into place only when they are verified. Without a connection,
    download them elsewhere and put them into the data directory under the names that this command prints.

    Examples: halrp data get cifar100 mnist, or halrp data get all --data ~/datasets
    """
    from halrp.lab.data import data_directory
    from halrp.lab.data.sources import source, sources

    chosen = list(dict.fromkeys(sources() if "all" in names else names))
    for name in chosen:
        source(name)
    tell = partial(echo, err=as_json)
    tell(f"Data directory: {data_directory(data)}")
    sets: list[dict[str, Any]] = []
    failed = 0
    for name in chosen:
        try:
            sets.append(_get(name, data, again, tell))
        except HalrpError as error:
            failed += 1
            sets.append({"name": name, "problem": str(error)})
            echo(f"halrp: {name}: {' '.join(str(error).split())}", err=True)
        except KeyboardInterrupt:
            echo(f"stopped; the same command resumes the download of {name}", err=True)
            raise
    if as_json:
        echo_json({"directory": str(data_directory(data)), "sets": sets})
    if failed:
        raise typer.Exit(2)


def _get(name: str, data: Path | None, again: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Download one data set if it is not here, read it, and return and report what it holds."""
    from halrp.lab.data import SETS, DataDamaged, DataMissing, data_directory, read
    from halrp.lab.data.download import begun, get, missing

    lacking = missing(name, data)
    if lacking and not again:
        try:
            with _decoding() as step:
                data_set = read(name, data, step)
            if data_set.complete:
                tell(f"{name}: already here. {_summary(data_set)}")
                return _facts(name, data_set, downloaded=False)
        except (DataMissing, DataDamaged):
            pass
    if lacking:
        left = sum(file.bytes or 0 for file in lacking) - begun(name, data)
        tell(f"{name}: {decimal(max(0, left))} to download. Terms: {SETS[name].terms}.")
        for file in lacking:
            tell(f"  {file.urls[0]} → {data_directory(data) / file.path}")
        with _downloading() as report:
            get(name, data, report)
    with _decoding() as step:
        data_set = read(name, data, step)
    tell(f"{name}: {'downloaded and verified' if lacking else 'already here, verified'}. {_summary(data_set)}")
    return _facts(name, data_set, downloaded=bool(lacking))


def _facts(name: str, data_set: LoadedDataSet, downloaded: bool) -> dict[str, Any]:
    return {
        "name": name,
        "downloaded": downloaded,
        "complete": data_set.complete,
        "images": {part: len(images.labels) for part, images in data_set.parts.items()},
        "classes": len(data_set.classes),
        "layout": data_set.layout,
        "directory": str(data_set.directory),
    }


def _summary(data_set: LoadedDataSet) -> str:
    parts = " + ".join(f"{len(part.labels):,} {name}" for name, part in data_set.parts.items())
    extent = "complete" if data_set.complete else "a subset"
    return (
        f"{parts} images, {len(data_set.classes):,} classes, {extent}, from {data_set.layout} in {data_set.directory}."
    )


@app.command("show")
def show_stream(
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="such as cifar100-split", show_default=False, autocompletion=completion.streams
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="the picture: sheet.png", show_default=False)],
    order: Annotated[str, typer.Option(help="the order of the tasks")] = "A",
    seed: Annotated[int, typer.Option(help="which repeat: it draws the images")] = 0,
    fraction: Annotated[float, typer.Option(help="the share of training images that a task may use")] = 1.0,
    data: Data = None,
    tasks: Annotated[int, typer.Option(help="how many tasks to show")] = 10,
    per_class: Annotated[int, typer.Option(help="how many images of each class")] = 1,
    as_json: Json = False,
) -> None:
    """Draw a contact sheet of a stream: a row for each task, the first images of each of its classes.

    The images are those that a task is tested on. A stream that is made from a subset of its data has @subset in its
    name.

    Examples: halrp data show digits -o digits.png, or halrp data show five -o five.png --order C --per-class 3
    """
    if output.suffix.lower() not in PICTURES:
        raise SettingError(f"--output {output} must end in one of {', '.join(PICTURES)}")
    from halrp.lab.streams import load
    from halrp.lab.streams.contact_sheet import contact_sheet
    from halrp.store import atomic

    loaded = load(stream, order, seed, fraction, data)
    picture = contact_sheet(loaded, tasks=tasks, per_class=per_class)
    content = io.BytesIO()
    picture.save(content, {".jpg": "jpeg"}.get(output.suffix.lower(), output.suffix[1:].lower()))
    atomic.write(output, content.getvalue())
    facts = {"picture": str(output), "stream": loaded.name, "order": order, "seed": seed}
    facts |= {"shown": min(tasks, len(loaded)), "tasks": len(loaded)}
    text = f"wrote {output}: {facts['shown']} of {len(loaded)} tasks of {loaded.name}, order {order}, seed {seed}"
    show(facts, text, as_json)


@contextmanager
def _downloading() -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars for downloads, with rate and remaining time; none if stderr is not a terminal."""
    console = Terminal(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal
    ) as progress:

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:  # what is there already does not count for the rate
                tasks[file] = progress.add_task(safe_markup(Path(file).name), total=total, completed=done)
            progress.update(tasks[file], completed=done, total=total)

        yield report


@contextmanager
def _decoding() -> Iterator[Callable[[int, int, str], None]]:
    """Progress bars for decoding; none if stderr is not a terminal."""
    console = Terminal(stderr=True)
    tasks: dict[str, TaskID] = {}
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:

        def report(done: int, total: int, text: str) -> None:
            if text not in tasks:
                tasks[text] = progress.add_task(f"decoding {safe_markup(text)}", total=total)
            progress.update(tasks[text], completed=done, total=total)

        yield report
