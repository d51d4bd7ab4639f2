"""Sweeps: the cells of a sweep file (see `halrp.lab.presets.sweep_file`), checked with the data at hand, and run."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from halrp.errors import HalrpError, SettingError
from halrp.lab import backbones, methods, streams
from halrp.lab.presets.sweep_file import Key, entries, key_of, read
from halrp.lab.records import state_file
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.engine import Engine, Event, one_line
from halrp.lab.run.status import Observer, SweepStatus

__all__ = [
    "Prepared",
    "check_folder",
    "expand",
    "finished",
    "only",
    "pairs",
    "prepare",
    "read",
    "run_cells",
    "unfinished",
    "value_of",
]


def expand(
    document: Mapping[str, Any],
    over: Mapping[str, Any] | None = None,
    name: str = "the sweep",
    only_methods: Collection[str] | None = None,
) -> list[Cell]:
    """The cells of a sweep, all checked, each once. `over` is a last layer: values by "order" or "recipe.epochs".

    With `only_methods`, blocks of other methods are left out.
    """
    cells: dict[str, Cell] = {}
    for where, values in entries(document, over, name):
        if only_methods is not None and values.get("method") not in only_methods:
            continue
        try:
            cell = Cell.of(values)
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from error
        cells.setdefault(cell.name, cell)
    return list(cells.values())


def value_of(text: str) -> Any:
    """A value as typed: a TOML value such as 0.1, true or [1, 2]; none; or else the text itself."""
    if text.strip().lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, or brackets without an end
        return text


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse key=value pairs."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise SettingError(f"{option} {text!r} is not of the form key=value")
        if key in values:
            raise SettingError(f"{option} gives {key} twice; write {key}={values[key]},{value} if it may be either")
        values[key] = value
    return values


def only(cells: Sequence[Cell], wanted: Mapping[str, str]) -> list[Cell]:
    """The cells whose entries have the wanted values: {"method": "ewc,l2", "settings.strength": "10"}."""
    left = list(cells)
    for name, text in wanted.items():
        key = key_of(name, "a cell")
        present = [_entry(cell, key) for cell in left]
        texts = [text, *text.split(",")]
        allowed = [value_of(text) for text in texts]
        matching = [
            c for c, v in zip(left, present, strict=True) if v is not None and (v in allowed or str(v) in texts)
        ]
        if not matching:
            listed = ", ".join(dict.fromkeys(str(value) for value in present if value is not None)) or "no value"
            raise SettingError(f"no cell has {name}={text}; here it is {listed}")
        left = matching
    return left


def _entry(cell: Cell, key: Key) -> Any:
    """A value of a cell, defaults included; None if it has none."""
    if key[0] == "settings":
        return methods.settings_of(cell.method, cell.settings).get(key[1])
    if key[0] == "recipe":
        return getattr(cell.make_recipe(), key[1], None)
    return cell.network.get(key[1]) if key[0] == "network" else getattr(cell, key[0])


class Prepared(NamedTuple):
    """Cells that can run with the data at hand."""

    cells: list[Cell]
    tasks: dict[str, int]
    """The number of tasks of each cell, by name; not of those whose data are elsewhere."""
    notes: list[str]
    """Messages for the user."""


def prepare(cells: Sequence[Cell], data: str | os.PathLike[str] | None = None, elsewhere: bool = False) -> Prepared:
    """Check cells with the data at hand: orders, fractions, numbers of tasks, and that backbones fit the images.

    Data sets are decoded here, once, and not by each worker. Where they are incomplete, cells get the subset's name.
    With `elsewhere`, cells without data here are left to the workers.
    """
    loaded: dict[tuple[str, str, float], streams.Stream | None] = {}
    built: set[str] = set()
    ready: dict[str, Cell] = {}
    tasks: dict[str, int] = {}
    notes: dict[str, None] = {}
    for cell in cells:
        key = (cell.stream, cell.order, cell.fraction)
        if key not in loaded:
            loaded[key] = _load(cell, data, elsewhere)
        stream = loaded[key]
        if stream is None:
            ready[cell.name] = cell
            continue
        if cell.tasks is not None and cell.tasks > len(stream):
            raise SettingError(f"tasks={cell.tasks} of a cell: the stream {stream.name!r} has {len(stream)}")
        network = f"{cell.backbone} {stream.shape} {cell.network}"
        if network not in built:
            backbones.build(cell.backbone, 2, shape=stream.shape, **cell.network)
            built.add(network)
        if stream.name != cell.stream:
            notes[f"the data of {cell.stream!r} are incomplete: it runs, and is recorded, as {stream.name!r}"] = None
            cell = dataclasses.replace(cell, stream=stream.name)
        ready[cell.name] = cell
        tasks[cell.name] = cell.tasks or len(stream)
    return Prepared(list(ready.values()), tasks, list(notes))


def _load(cell: Cell, data: str | os.PathLike[str] | None, elsewhere: bool) -> streams.Stream | None:
    try:
        return streams.load(cell.stream, cell.order, cell.seed, cell.fraction, data)
    except streams.DataMissing:
        if elsewhere:
            return None
        raise


def run_cells(
    cells: Sequence[Cell],
    engine: Engine,
    folder: str | os.PathLike[str],
    tasks: Mapping[str, int],
    jobs: int,
    observer: Observer,
) -> SweepStatus:
    """Run all cells that have no record yet, and return their status at the end."""
    sweep_status = SweepStatus.of(cells, tasks, jobs)
    for cell in cells:
        status = sweep_status.cells[cell.name]
        try:
            if finished(cell, folder):
                runner.tidy(cell, folder)
                status.state = "skipped"
                continue
        except HalrpError as error:
            status.state, status.text = "failed", one_line(error)
            observer(sweep_status, Event(cell.name, "failed", text=status.text))
            continue
        engine.submit(cell)
    while sweep_status.left:
        events = engine.collect()
        for event in events:
            if sweep_status.update(event):
                observer(sweep_status, event)
        if not events:
            observer(sweep_status, None)
    return sweep_status


def unfinished(folder: str | os.PathLike[str]) -> tuple[list[Cell], dict[str, str]]:
    """The interrupted cells of a results folder, and the states that cannot be read: file names with the reasons."""
    cells, unreadable = [], {}
    for path in sorted(Path(folder).glob(f"*{runner.UNFINISHED}")):
        try:
            cell = Cell.of(state_file.read(path, tensors=False).cell)
        except (HalrpError, TypeError, ValueError) as error:
            unreadable[path.name] = one_line(error)
            continue
        if path.name == f"{cell.name}{runner.UNFINISHED}":
            cells.append(cell)
        else:
            unreadable[path.name] = f"it has the state of another cell, {cell.name}"
    return cells, unreadable


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Refuse a results folder that cannot be written to. Nothing is created yet."""
    folder = Path(folder)
    for existing in (folder, *folder.absolute().parents):
        if existing.exists():
            if not existing.is_dir():
                raise SettingError(f"the results folder {folder} cannot be created: {existing} is a file")
            if not os.access(existing, os.W_OK | os.X_OK):
                raise SettingError(f"the results folder {folder} cannot be written to; choose another with --results")
            break
    return folder


def finished(cell: Cell, folder: str | os.PathLike[str]) -> bool:
    """Whether a cell has a record; a damaged one, or one of another run, is an error."""
    path = Path(folder) / f"{cell.name}.json"
    return path.exists() and bool(runner.read_finished(cell, path))
