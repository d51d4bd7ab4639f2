"""Sweeps: the cells of a sweep file (see `halrp.lab.run.sweep_file`), checked and compared with the data at hand."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors

from halrp.errors import HalrpError, SettingError
from halrp.lab import backbones, methods, streams
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.sweep_file import Key, entries, key_of, read

__all__ = [
    "Prepared", "check_folder", "expand", "finished", "only", "pairs", "prepare", "read", "unfinished", "value_of",
]  # fmt: skip


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
    except tomllib.TOMLDecodeError:
        return text


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Read key=value pairs."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise SettingError(f"{option} {text!r} is not of the form key=value")
        if key in found:
            raise SettingError(f"{option} gives {key} twice; write {key}={found[key]},{value} if it may be either")
        found[key] = value
    return found


def only(cells: Sequence[Cell], wanted: Mapping[str, str]) -> list[Cell]:
    """The cells whose entries have the wanted values: {"method": "ewc,l2", "settings.strength": "10"}."""
    left = list(cells)
    for key, text in wanted.items():
        wanted_key = key_of(key, "a cell")
        known = [_entry(cell, wanted_key) for cell in left]
        texts = [text, *text.split(",")]
        allowed = [value_of(one) for one in texts]
        matching = [c for c, v in zip(left, known, strict=True) if v is not None and (v in allowed or str(v) in texts)]
        if not matching:
            there = ", ".join(dict.fromkeys(str(value) for value in known if value is not None)) or "no value"
            raise SettingError(f"no cell has {key}={text}; here it is {there}")
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
    """How many tasks each cell learns, by its name; not those whose data are elsewhere."""
    notes: list[str]
    """What a user should be told."""


def prepare(cells: Sequence[Cell], data: str | os.PathLike[str] | None = None, elsewhere: bool = False) -> Prepared:
    """Hold cells against the data at hand: orders, shares, numbers of tasks, and that backbones fit the images.

    Data sets are decoded here, once, and not by each worker. Where they are not whole, cells get the subset's name.
    With `elsewhere`, data that are not here are left to the workers.
    """
    known: dict[tuple[str, str, float], streams.Stream | None] = {}
    built: set[str] = set()
    ready: dict[str, Cell] = {}
    tasks: dict[str, int] = {}
    notes: dict[str, None] = {}
    for cell in cells:
        key = (cell.stream, cell.order, cell.fraction)
        if key not in known:
            known[key] = _loaded(cell, data, elsewhere)
        stream = known[key]
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
            notes[f"the data of {cell.stream!r} are not whole: it runs, and is recorded, as {stream.name!r}"] = None
            cell = dataclasses.replace(cell, stream=stream.name)
        ready[cell.name] = cell
        tasks[cell.name] = cell.tasks or len(stream)
    return Prepared(list(ready.values()), tasks, list(notes))


def _loaded(cell: Cell, data: str | os.PathLike[str] | None, elsewhere: bool) -> streams.Stream | None:
    try:
        return streams.load(cell.stream, cell.order, cell.seed, cell.fraction, data)
    except streams.DataMissing:
        if elsewhere:
            return None
        raise


def unfinished(folder: str | os.PathLike[str]) -> tuple[list[Cell], dict[str, str]]:
    """The cells of a results folder that have begun and not ended, and what is wrong with files that tell of none."""
    found, wrong = [], {}
    for path in sorted(Path(folder).glob(f"*{runner.UNFINISHED}")):
        try:
            with safetensors.safe_open(path, "pt") as file:
                found.append(Cell.of(json.loads(file.metadata()["facts"])["cell"]))
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError, HalrpError) as error:
            wrong[path.name] = f"{type(error).__name__}: {error}"
    return found, wrong


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Refuse a results folder that could not be written to. Nothing is made yet."""
    folder = Path(folder)
    for there in (folder, *folder.absolute().parents):
        if there.exists():
            if not there.is_dir():
                raise SettingError(f"the results folder {folder} cannot be: {there} is a file")
            if not os.access(there, os.W_OK | os.X_OK):
                raise SettingError(f"the results folder {folder} cannot be written to; choose another with --results")
            break
    return folder


def finished(cell: Cell, folder: str | os.PathLike[str]) -> bool:
    """Whether a cell's record is there; a damaged one is an error."""
    path = Path(folder) / f"{cell.name}.json"
    return path.exists() and bool(runner.read(path))
