"""The laboratory's commands: run one cell, sweep many, go on with what was interrupted, and what there is to run.

Modules that take long to import are imported by the command that needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from halrp.errors import SettingError

if TYPE_CHECKING:
    from halrp.lab.run.cell import Cell
    from halrp.lab.run.sweep import Prepared


Results: TypeAlias = Annotated[Path, typer.Option("--results", metavar="DIR", help="folder of the records")]
Data: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="the data directory, if not HALRP_DATA", show_default=False),
]
Device: TypeAlias = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Jobs: TypeAlias = Annotated[
    int | None, typer.Option("--jobs", "-j", help="cells at once; all cores if not said", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the `halrp` command."""
    app.command("run")(run_cell)
    app.command("sweep")(run_sweep)
    app.command("resume")(resume)
    app.command("methods")(show_methods)
    app.command("streams")(show_streams)
    app.command("presets")(show_presets)


def run_cell(
    preset: Annotated[
        str | None,
        typer.Argument(metavar="PRESET", help="a preset or a sweep's file to take it from", show_default=False),
    ] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="see: halrp methods", show_default=False)] = None,
    stream: Annotated[str | None, typer.Option("--stream", "-s", help="see: halrp streams", show_default=False)] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", "-b", help="such as lenet", show_default=False)] = None,
    order: Annotated[str | None, typer.Option(help="the order of the tasks; A if not said", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="which repeat; 0 if not said", show_default=False)] = None,
    fraction: Annotated[
        float | None, typer.Option(help="share of the training data; 1 if not said", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="epochs of each task", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="learn only the first so many", show_default=False)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of the method", show_default=False)
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="KEY=VALUE", help="a setting of the training, such as lr", show_default=False),
    ] = None,
    data: Data = None,
    results: Results = Path("results"),
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(help="threads of torch; other numbers may give other last digits")] = 1,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="also write event files", show_default=False)
    ] = None,
) -> None:
    """Run one cell: a method learns a stream, task after task.

    The record, with the accuracy of every task after every task, goes to the results folder; one that is there is not
    run again. Interrupted, the same command goes on after the last task that was learned.

    Example: halrp run --method halrp-budget --stream digits --backbone digits-net --set growth_per_task=0.2

    Example: halrp run cifar100-split --method ewc --set strength=100 --order B --fraction 0.05
    """
    from halrp.lab.run import console, runner, sweep

    over: dict[str, Any] = {
        "method": method,
        "stream": stream,
        "backbone": backbone,
        "order": order,
        "seed": seed,
        "fraction": fraction,
        "recipe.epochs": epochs,
        "tasks": tasks,
    }
    over = {key: value for key, value in over.items() if value is not None}
    over |= {f"settings.{k}": sweep.value_of(v) for k, v in sweep.pairs(settings or (), "--set").items()}
    over |= {f"recipe.{k}": sweep.value_of(v) for k, v in sweep.pairs(recipe or (), "--recipe").items()}
    cell = _one_cell(preset, over)
    console.check_device(device)
    if threads < 1:
        raise SettingError(f"--threads {threads} must be at least 1")
    folder = sweep.check_folder(results)
    if not (folder / f"{cell.name}.json").exists():
        prepared = _prepared([cell], data)
        cell = prepared.cells[0]
    if (folder / f"{cell.name}.json").exists():
        typer.echo(f"{cell.name}: already there")
    else:
        console.run(cell, prepared.tasks[cell.name], folder, data, device, threads, tensorboard)
    console.show(runner.read(folder / f"{cell.name}.json"), folder / f"{cell.name}.json")


def _one_cell(preset: str | None, over: Mapping[str, Any]) -> Cell:
    """The cell that the options say, on top of a preset's if there is one."""
    from halrp.lab import registry
    from halrp.lab.names import check_name
    from halrp.lab.run import sweep

    if preset is None:
        lacking = [f"--{name}" for name in ("method", "stream", "backbone") if name not in over]
        if lacking:
            raise SettingError(f"a run needs {' and '.join(lacking)}; or name a preset, see: halrp presets")
        return sweep.expand({}, over, "the cell")[0]
    name, document = sweep.read(preset)
    known = list(dict.fromkeys(cell.method for cell in sweep.expand(document, name=name)))
    if "method" not in over and len(known) > 1:
        raise SettingError(f"{name} has several methods; choose one with --method: {', '.join(known)}")
    chosen = over.get("method", known[0])
    registry.method(chosen)
    check_name(f"method of {name}", chosen, known)
    rest = {key: value for key, value in over.items() if key != "method"}
    return sweep.expand(document, rest, name, [chosen])[0]


def _prepared(cells: list[Cell], data: Path | None, elsewhere: bool = False) -> Prepared:
    from halrp.cli.data import _needs_extra
    from halrp.lab.run import sweep

    with _needs_extra():
        found = sweep.prepare(cells, data, elsewhere)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    return found


def run_sweep(
    name: Annotated[str, typer.Argument(metavar="PRESET|FILE", help="see: halrp presets", show_default=False)],
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="more of --only", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="KEY=VALUE", help="run only cells that have it: method=ewc,l2", show_default=False
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="KEY=VALUE", help="change all cells: recipe.epochs=2", show_default=False),
    ] = None,
    jobs: Jobs = None,
    results: Results = Path("results"),
    data: Data = None,
    device: Device = "cpu",
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="run on a Dask cluster: tcp://HOST:8786", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the cells, and run nothing")] = False,
) -> None:
    """Run many cells: those of a preset, or of a TOML file of your own.

    All cells are checked before the first one runs. Those whose records are in the results folder are not run again,
    and interrupted ones go on, so the way to continue a sweep is to start it again; sweeps that share the folder share
    the cells. Records do not depend on the number of jobs or on where cells run. Exits with 1 if a cell failed, and
    names it.

    Example: halrp sweep cifar100-split-5 --jobs 4 --only method=ewc,l2 order=A

    Example: halrp sweep mine.toml --with fraction=0.05 --with recipe.epochs=2 --dry-run

    Print a preset with halrp presets NAME to see the format of the file.
    """
    from halrp.lab.run import console, sweep

    title, document = sweep.read(name)
    over = {key: sweep.value_of(value) for key, value in sweep.pairs(changes or (), "--with").items()}
    which = sweep.pairs([*(only or ()), *(wanted or ())], "--only")
    # Methods first: what --with changes need not be a setting of the others.
    named = {key: value for key, value in which.items() if key == "method"}
    chosen = {cell.method for cell in sweep.only(sweep.expand(document, name=title), named)}
    cells = sweep.only(sweep.expand(document, over, title, chosen), which)
    console.check_device(device)
    folder = sweep.check_folder(results)
    prepared = _prepared(cells, data, elsewhere=dry_run or scheduler is not None)
    if dry_run:
        there = [cell for cell in prepared.cells if (folder / f"{cell.name}.json").exists()]
        for cell in prepared.cells:
            typer.echo(f"{'there' if cell in there else 'to run':<7} {cell.name}")
        typer.echo(f"{len(prepared.cells)} cells, {len(prepared.cells) - len(there)} to run")
        return
    _go(prepared, folder, jobs, data, device, scheduler)


def resume(
    results: Results = Path("results"),
    jobs: Jobs = None,
    data: Data = None,
    device: Device = "cpu",
) -> None:
    """Go on with every cell of a results folder that was interrupted, and end with the records it would have written.

    A cell that had not learned its first task left nothing to go on from: start its sweep again.

    Example: halrp resume --results results --jobs 4
    """
    from halrp.lab.run import console, sweep

    console.check_device(device)
    if not results.is_dir():
        raise SettingError(f"there is no results folder {results}; choose one with --results")
    cells, wrong = sweep.unfinished(sweep.check_folder(results))
    for file, reason in wrong.items():
        typer.echo(f"halrp: {file} cannot be gone on from ({reason}); delete it and start its sweep again", err=True)
    if not cells and not wrong:
        typer.echo(f"nothing is unfinished in {results}")
    if cells:
        _go(_prepared(cells, data), results, jobs, data, device, None)
    if wrong:
        raise typer.Exit(1)


def _go(
    prepared: Prepared, folder: Path, jobs: int | None, data: Path | None, device: str, scheduler: str | None
) -> None:
    """Run cells and exit with 1 if one failed."""
    from halrp.lab.run import progress
    from halrp.lab.run.engines import Engine, Local, cores
    from halrp.store import atomic

    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs {jobs} must be at least 1")
    engine: Engine
    if scheduler is None:
        jobs = min(jobs or cores(), len(prepared.cells))
        engine = Local(folder, jobs, data=data, device=device)
    else:
        from halrp.lab.run.dask_engine import Cluster

        engine = Cluster(scheduler, folder, jobs=jobs, data=data, device=device)
        jobs = jobs or engine.workers
    console = Console()
    with engine:
        atomic.make_folder(folder)
        try:
            if console.is_terminal:
                with progress.Board(console) as shown:
                    standing = progress.go(prepared.cells, engine, folder, prepared.tasks, jobs, shown.watch)
            else:
                standing = progress.go(prepared.cells, engine, folder, prepared.tasks, jobs, progress.plain(typer.echo))
        except KeyboardInterrupt:
            typer.echo("stopped; nothing that was finished is lost, and the same command goes on from there", err=True)
            raise
    typer.echo(f"{progress.summary(standing)}. Records: {folder}")
    for name, reason in standing.failed.items():
        typer.echo(f"halrp: {name} failed: {reason}", err=True)
    if standing.failed:
        raise typer.Exit(1)


def show_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="all of one method", show_default=False)] = None,
) -> None:
    """List the methods, or one method's settings and their defaults.

    Examples: halrp methods, or halrp methods ewc
    """
    import inspect

    from halrp.lab import registry
    from halrp.lab.run.cell import describe_all

    if name is None:
        _print(("method", "what it is"), [(key, registry.method(key).description) for key in registry.method_names()])
        return
    entry = registry.method(name)
    typer.echo(f"{name}: {entry.description}\n")
    build = entry.load()
    maker = build.__init__ if inspect.isclass(build) else build
    typer.echo(f"{inspect.getdoc(maker) or ''}\n")
    _print(("setting", "default"), [(key, repr(value)) for key, value in describe_all(entry.settings()).items()])
    typer.echo(f"\nFor example: halrp run cifar100-split --method {name} --set key=value")


def show_streams(data: Data = None) -> None:
    """List the streams, how many tasks they have, and whether their data are here.

    Example: halrp streams --data ~/datasets
    """
    from halrp.lab import registry
    from halrp.lab.data import status

    rows = []
    for name in registry.stream_names():
        entry = registry.stream(name)
        missing = [data_set for data_set in entry.data_sets if not status(data_set, data).present]
        tasks = f"{entry.tasks} × {entry.classes}" if entry.tasks else "?"
        here = f"no: {', '.join(missing)}" if missing else "yes"
        rows.append((name, tasks, ", ".join(entry.data_sets) or "none", here))
    _print(("stream", "tasks × classes", "data sets", "here"), rows)
    typer.echo("\nTo get data sets: halrp data get NAME. To look at a stream: halrp data show STREAM -o sheet.png")


def show_presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="print this one", show_default=False)] = None,
) -> None:
    """List the presets, or print one, to copy and change.

    Examples: halrp presets, or halrp presets cifar100-split > mine.toml
    """
    from halrp.lab import presets
    from halrp.lab.run import sweep

    if name is not None:
        typer.echo(presets.text(name), nl=False)
        return
    rows = [(one, str(len(sweep.expand(sweep.read(one)[1], name=one))), presets.about(one)) for one in presets.names()]
    _print(("preset", "cells", "what it is"), rows)
    typer.echo("\nTo run one: halrp sweep NAME. To see one: halrp presets NAME")


def _print(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number < len(titles) - 1, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    (Console() if sys.stdout.isatty() else Console(width=160)).print(table)
