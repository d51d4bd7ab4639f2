"""Commands that run experiments: run one cell, sweep many, resume interrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from halrp.cli import completion
from halrp.cli.options import (
    Backbone,
    Data,
    Device,
    Jobs,
    Json,
    Method,
    Results,
    Stream,
    TlsCa,
    TlsCert,
    TlsKey,
    Untrusted,
)
from halrp.errors import SettingError
from halrp.terminal import Terminal, echo, echo_json

if TYPE_CHECKING:
    from halrp.lab.run.cell import Cell
    from halrp.lab.run.cluster_security import ClusterSecurity
    from halrp.lab.run.engine import Engine
    from halrp.lab.run.sweep import Prepared

    Cluster: TypeAlias = tuple[str, ClusterSecurity]


def run_cell(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET",
            help="a preset or a sweep's file to take the cell from",
            show_default=False,
            autocompletion=completion.presets,
        ),
    ] = None,
    method: Method = None,
    stream: Stream = None,
    backbone: Backbone = None,
    order: Annotated[str | None, typer.Option(help="order of the tasks; default: A", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the repeat; default: 0", show_default=False)] = None,
    fraction: Annotated[
        float | None, typer.Option(help="share of the training data; default: 1", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="epochs per task", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="number of tasks; default: all", show_default=False)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of the method", show_default=False)
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="KEY=VALUE", help="a setting of the training, such as lr", show_default=False),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option("--network", metavar="KEY=VALUE", help="a setting of the backbone", show_default=False),
    ] = None,
    data: Data = None,
    results: Results = Path("results"),
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(help="threads of torch; the last digits may depend on it")] = 1,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="also write event files", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one cell: a method learns a stream, task after task.

    The record, with the accuracy of every task after every task, is written to the results folder; a cell that has one
    is not run again. After an interruption, the same command resumes after the last learned task.

    Example: halrp run --method halrp-budget --stream digits --backbone digits-net --set growth_per_task=0.2

    Example: halrp run cifar100-split --method ewc --set strength=100 --order B --fraction 0.05
    """
    from halrp.lab.run import console, sweep

    values: dict[str, Any] = {
        "method": method,
        "stream": stream,
        "backbone": backbone,
        "order": order,
        "seed": seed,
        "fraction": fraction,
        "recipe.epochs": epochs,
        "tasks": tasks,
    }
    values = {key: value for key, value in values.items() if value is not None}
    values |= {f"settings.{key}": value for key, value in _values(settings, "--set").items()}
    values |= {f"recipe.{key}": value for key, value in _values(recipe, "--recipe").items()}
    values |= {f"network.{key}": value for key, value in _values(network, "--network").items()}
    cell = _choose_cell(preset, values)
    console.check_device(device)
    if threads < 1:
        raise SettingError(f"--threads {threads} must be at least 1")
    _run_here(cell, sweep.check_folder(results), data, device, threads, tensorboard, as_json)


def _run_here(
    cell: Cell, folder: Path, data: Path | None, device: str, threads: int, tensorboard: Path | None, as_json: bool
) -> None:
    """Run a cell in this process if it has no record yet, and show the record."""
    from halrp.lab.run import console, runner

    if not (folder / f"{cell.name}.json").exists():
        prepared = _prepare([cell], data)
        cell = prepared.cells[0]  # its name may have changed: the data at hand may be a subset
    if (folder / f"{cell.name}.json").exists():
        echo(f"{cell.name}: already finished", err=as_json)
    else:
        console.run(cell, prepared.tasks[cell.name], folder, data, device, threads, tensorboard, aside=as_json)
    path = folder / f"{cell.name}.json"
    if as_json:
        echo_json(console.summary(runner.read(path), path))
    else:
        console.show(runner.read(path), path)


def _values(texts: list[str] | None, option: str) -> dict[str, Any]:
    """The values of an option that is given as KEY=VALUE, any number of times."""
    from halrp.lab.run import sweep

    return {key: sweep.value_of(text) for key, text in sweep.pairs(texts or (), option).items()}


def _choose_cell(preset: str | None, values: Mapping[str, Any]) -> Cell:
    """The cell with the values of the options, over those of a preset if one is named."""
    from halrp.lab import registry
    from halrp.lab.names import check_name
    from halrp.lab.run import sweep

    if preset is None:
        missing = [f"--{name}" for name in ("method", "stream", "backbone") if name not in values]
        if missing:
            raise SettingError(f"a run needs {' and '.join(missing)}; or name a preset, see: halrp presets")
        return sweep.expand({}, values, "the cell")[0]
    name, document = sweep.read(preset)
    known = list(dict.fromkeys(cell.method for cell in sweep.expand(document, name=name)))
    if "method" not in values and len(known) > 1:
        raise SettingError(f"{name} has several methods; choose one with --method: {', '.join(known)}")
    chosen = values.get("method", known[0])
    registry.method(chosen)
    check_name(f"method of {name}", chosen, known)
    others = {key: value for key, value in values.items() if key != "method"}
    return sweep.expand(document, others, name, [chosen])[0]


def _prepare(cells: list[Cell], data: Path | None, elsewhere: bool = False) -> Prepared:
    """Check cells with the data at hand, and print notes about them."""
    from halrp.lab.run import sweep

    prepared = sweep.prepare(cells, data, elsewhere)
    for note in prepared.notes:
        echo(f"note: {note}", err=True)
    return prepared


def run_sweep(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE",
            help="see: halrp presets",
            show_default=False,
            autocompletion=completion.presets,
        ),
    ],
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="further values of --only", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="KEY=VALUE", help="run only cells with this value: method=ewc,l2", show_default=False
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
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    untrusted: Untrusted = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the cells, and run nothing")] = False,
    as_json: Json = False,
) -> None:
    """Run many cells: those of a preset, or of a TOML file of your own.

    All cells are checked before the first one runs. Cells whose records are in the results folder are not run again,
    and interrupted ones are resumed, so the way to continue a sweep is to start it again; sweeps that share the folder
    share the cells. Records do not depend on the number of jobs or on where cells run. Exits with 1 if a cell failed,
    and names it.

    Example: halrp sweep cifar100-split-5 --jobs 4 --only method=ewc,l2 order=A

    Example: halrp sweep mine.toml --with fraction=0.05 --with recipe.epochs=2 --dry-run

    For the format of the file, print a preset: halrp presets NAME
    """
    from halrp.lab.run import console, sweep

    cluster = _cluster(scheduler, {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}, untrusted)
    title, document = sweep.read(name)
    values = _values(changes, "--with")
    filters = sweep.pairs([*(only or ()), *(wanted or ())], "--only")
    # Methods first: the changes of --with need not be settings of the others.
    by_method = {key: value for key, value in filters.items() if key == "method"}
    chosen = {cell.method for cell in sweep.only(sweep.expand(document, name=title), by_method)}
    cells = sweep.only(sweep.expand(document, values, title, chosen), filters)
    console.check_device(device)
    folder = sweep.check_folder(results)
    prepared = _prepare(cells, data, elsewhere=dry_run or scheduler is not None)
    if dry_run:
        _list(prepared.cells, folder, as_json)
        return
    _run(prepared, folder, jobs, data, device, cluster, as_json)


def _list(cells: Sequence[Cell], folder: Path, as_json: bool) -> None:
    """Show which cells have records."""
    states = {cell.name: "done" if (folder / f"{cell.name}.json").exists() else "to run" for cell in cells}
    if as_json:
        echo_json([{"cell": name, "state": state} for name, state in states.items()])
        return
    for name, state in states.items():
        echo(f"{state:<7} {name}")
    echo(f"{len(cells)} cells, {[*states.values()].count('to run')} to run")


def resume(
    results: Results = Path("results"),
    jobs: Jobs = None,
    data: Data = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Resume every interrupted cell of a results folder; records are those of uninterrupted runs.

    A cell that was interrupted in its first task has no state to resume from: start its sweep again.

    Example: halrp resume --results results --jobs 4
    """
    from halrp.lab.run import console, sweep

    console.check_device(device)
    if not results.is_dir():
        raise SettingError(f"there is no results folder {results}; choose one with --results")
    cells, unreadable = sweep.unfinished(sweep.check_folder(results))
    for file, reason in unreadable.items():
        echo(f"halrp: {file} cannot be resumed ({reason}); delete it and start its sweep again", err=True)
    if not cells and not unreadable:
        echo(f"nothing is unfinished in {results}", err=as_json)
    if cells:
        _run(_prepare(cells, data), results, jobs, data, device, None, as_json)
    elif as_json:
        echo_json([])
    if unreadable:
        raise typer.Exit(1)


def _run(
    prepared: Prepared,
    folder: Path,
    jobs: int | None,
    data: Path | None,
    device: str,
    cluster: Cluster | None,
    as_json: bool,
) -> None:
    """Run cells and exit with 1 if one failed."""
    from halrp.lab.run import progress, sweep
    from halrp.store import atomic

    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs {jobs} must be at least 1")
    engine, jobs = _engine(len(prepared.cells), folder, jobs, data, device, cluster)
    with engine:
        atomic.make_folder(folder)
        try:
            with progress.observer(Terminal(stderr=as_json), partial(echo, err=as_json)) as observe:
                status = sweep.run_cells(prepared.cells, engine, folder, prepared.tasks, jobs, observe)
        except KeyboardInterrupt:
            echo("stopped; finished cells have their records, and the same command resumes the others", err=True)
            raise
    echo(f"{status.summary()}. Records: {folder}", err=as_json)
    if as_json:
        echo_json([{"cell": name, "state": cell.state, "text": cell.text} for name, cell in status.cells.items()])
    for name, reason in status.failed.items():
        echo(f"halrp: {name} failed: {reason}", err=True)
    if status.failed:
        raise typer.Exit(1)


def _cluster(scheduler: str | None, files: Mapping[str, Path | None], untrusted: bool) -> Cluster | None:
    """The address of a cluster and what is trusted of it; None for this machine."""
    from halrp.lab.run.cluster_security import ClusterSecurity

    security = ClusterSecurity(**files, trusted=not untrusted)
    if scheduler is not None:
        security.check(scheduler)
        return scheduler, security
    if security.encrypted or untrusted:
        raise SettingError("--tls-ca, --tls-cert, --tls-key and --untrusted are about a cluster; name its --scheduler")
    return None


def _engine(
    cells: int, folder: Path, jobs: int | None, data: Path | None, device: str, cluster: Cluster | None
) -> tuple[Engine, int]:
    """The engine of a sweep, and the number of cells that it runs at once."""
    if cluster is None:
        from halrp.lab.run import local_engine

        jobs = min(jobs or local_engine.cores(), cells)
        return local_engine.LocalEngine(folder, jobs, data=data, device=device), jobs
    from halrp.lab.run.dask_engine import DaskEngine

    engine = DaskEngine(cluster[0], folder, jobs=jobs, data=data, device=device, security=cluster[1])
    return engine, jobs or engine.workers


COMMANDS: dict[str, Callable[..., None]] = {"run": run_cell, "sweep": run_sweep, "resume": resume}
