"""Sweeps: many cells from one TOML file.

    # halrp sweep mine.toml
    about = "how much EWC's penalty matters"
    stream = "cifar100-split"
    backbone = "lenet"
    fraction = 0.05
    recipe = { epochs = 20 }

    [grid]
    order = ["A", "B"]
    seed = [0, 1]

    [[cells]]
    method = "stl"

    [[cells]]
    method = "ewc"
    grid.settings.strength = [10, 100]

What stands at the top holds for every cell: the entries of `Cell`, with the tables `settings`, `recipe` and `network`.
Each `[[cells]]` block is a layer on top of it, whose tables are merged into those at the top; without a block there is
one that adds nothing. Lists under `grid`, at the top or in a block, make every combination, the last list fastest. A
layer's word is final: a value in a block takes the place of the list at the top, and a list that of a value. The file
above makes 4 + 8 = 12 cells.

A value "NUMBER * fraction" is multiplied by the cell's share of data, for settings that follow it: the released code of
the paper lets the learning rate decay by `recipe.decay_examples = "4000 * fraction"` on every data set.

`from = "cifar100-split"` starts from another preset or file: its entries hold where this file has none of its own, its
tables are merged with those here, and its blocks are used if there are none here. `include = ["pmnist", "iru"]` makes a
sweep of other sweeps' cells; such a file has nothing else but `about`.

Every cell is checked before any runs. An unknown entry is an error with the nearest known one. Cells that are equal are
run once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors

from halrp.errors import HalrpError, SettingError
from halrp.lab import backbones, methods, presets, streams
from halrp.lab.names import check_name
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell

TABLES = ("settings", "recipe", "network")
NOT_LAYERS = ("about", "include", "cells")
"""Entries of a file that are not of a cell."""
FIELDS = tuple(field.name for field in dataclasses.fields(Cell))
_SCALED = re.compile(r"\s*([0-9.eE+]+)\s*\*\s*fraction\s*")

Place = tuple[str, ...]
"""Where a value stands in a cell: ("order",) or ("settings", "strength")."""


class Layer(NamedTuple):
    """Values, and lists of which each combination is wanted."""

    values: dict[Place, Any]
    lists: dict[Place, list[Any]]


def read(name: str | os.PathLike[str], readers: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Read a preset by its name, or a file; returns what to call it and its content, with what it starts from.

    `readers` are those that start from this one, or include it.
    """
    if str(name) in readers:
        raise SettingError(f"the sweep {name} leads back to itself: {' → '.join([*readers, str(name)])}")
    text, document = _read_alone(name)
    if "from" not in document:
        return text, document
    origin = document.pop("from")
    if not isinstance(origin, str):
        raise SettingError(f"{text}: from={origin!r} is not the name of a preset or file")
    return text, _on_top(document, read(_beside(name, origin), [*readers, str(name)])[1], text)


def _beside(name: str | os.PathLike[str], other: str) -> str:
    """A name in a file: a preset, or a file whose place is told from where that file is."""
    return str(Path(name).parent / other) if other.endswith(".toml") else other


def _read_alone(name: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    text, path = str(name), Path(name)
    if path.suffix == ".toml" or path.is_file():
        try:
            text, content = path.name, path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingError(f"the sweep {path} cannot be read: {reason}") from error
    else:
        content = presets.text(text)
    try:
        return text, tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"the sweep {text} is not TOML: {error}") from error


def _on_top(document: Mapping[str, Any], origin: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entries of `origin` with those of `document` in their place; one layer's word is final over the other's."""
    if both := {"include"} & {*document, *origin}:
        raise SettingError(
            f"{where}: from and {both.pop()} do not go together; include the sweeps in a file of its own"
        )
    below, above = (_layer(_common(one), where) for one in (origin, document))
    merged = {k: v for k, v in (*origin.items(), *document.items()) if k in NOT_LAYERS}
    values, lists = _stacked([below, above])
    for table, entries in ((merged, values), (merged.setdefault("grid", {}), lists)):
        for place, value in entries.items():
            (table if len(place) == 1 else table.setdefault(place[0], {}))[place[-1]] = value
    return merged


def expand(
    document: Mapping[str, Any],
    over: Mapping[str, Any] | None = None,
    name: str = "the sweep",
    only_methods: Collection[str] | None = None,
) -> list[Cell]:
    """The cells of a sweep, all checked, each once. `over` is a last layer: values by "order" or "recipe.epochs".

    With `only_methods`, blocks of other methods are left out.
    """
    for key in document:
        check_name(f"entry of {name}", key, (*FIELDS, *NOT_LAYERS, "grid"))
    if "include" in document:
        return _included(document, over, name, only_methods)
    blocks = document.get("cells", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks) or not blocks:
        raise SettingError(f"{name}: cells={blocks!r} is not a list of tables; begin each with [[cells]]")
    common = _layer(_common(document), name)
    last = Layer({_place(key, name): value for key, value in (over or {}).items()}, {})
    found: dict[str, Cell] = {}
    for number, block in enumerate(blocks, 1):
        where = f"{name}, [[cells]] block {number}" if "cells" in document else name
        for values in _combinations([common, _layer(block, where), last]):
            if only_methods is not None and values.get("method") not in only_methods:
                continue
            try:
                cell = Cell.of(_scaled(values))
            except SettingError as error:
                raise SettingError(f"{where}: {error}") from error
            found.setdefault(cell.name, cell)
    return list(found.values())


def _included(
    document: Mapping[str, Any], over: Mapping[str, Any] | None, name: str, only_methods: Collection[str] | None
) -> list[Cell]:
    names = document["include"]
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names) or not names:
        raise SettingError(f"{name}: include={names!r} is not a list of presets or files")
    if more := sorted(document.keys() - {"about", "include"}):
        raise SettingError(f"{name}: {', '.join(more)} beside include; such a file has nothing else but about")
    found: dict[str, Cell] = {}
    for one in names:
        title, content = read(one)
        if "include" in content:
            raise SettingError(f"{name}: {title} includes others itself; name those")
        found |= {cell.name: cell for cell in expand(content, over, title, only_methods)}
    return list(found.values())


def _common(document: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for every cell of a file."""
    return {k: v for k, v in document.items() if k not in NOT_LAYERS}


def _layer(table: Mapping[str, Any], where: str) -> Layer:
    """Take a table of a file apart."""
    grid = table.get("grid", {})
    if not isinstance(grid, Mapping):
        raise SettingError(f"{where}: grid={grid!r} is not a table of lists")
    values = _flat({k: v for k, v in table.items() if k != "grid"}, where)
    lists = _flat(grid, f"{where}, grid")
    for place, choices in lists.items():
        if not isinstance(choices, list) or not choices:
            raise SettingError(f"{where}: grid.{'.'.join(place)}={choices!r} is not a list of values to combine")
        if place in values:
            raise SettingError(f"{where}: {'.'.join(place)} has a value and a list in the grid; leave out one of them")
    return Layer(values, lists)


def _flat(table: Mapping[str, Any], where: str) -> dict[Place, Any]:
    found: dict[Place, Any] = {}
    for key, value in table.items():
        check_name(f"entry of {where}", key, FIELDS)
        if key not in TABLES:
            found[key,] = value
        elif isinstance(value, Mapping):
            found |= {(key, inner): one for inner, one in value.items()}
        else:
            raise SettingError(f"{where}: {key}={value!r} is not a table; write {key} = {{ name = value }}")
    return found


def _place(key: str, where: str) -> Place:
    """Read "order" or "settings.strength"."""
    table, dot, inner = key.partition(".")
    check_name(f"entry of {where}", table, FIELDS)
    if bool(dot and inner) != (table in TABLES):
        example = f"{table}.name" if table in TABLES else table
        raise SettingError(f"{key!r} is not the place of a value in a cell; write {example}=value")
    return (table, inner) if dot else (table,)


def _combinations(layers: Sequence[Layer]) -> Iterable[dict[str, Any]]:
    """Every combination of the lists on top of the values, as the entries of a cell."""
    values, lists = _stacked(layers)
    for chosen in itertools.product(*lists.values()):
        entries: dict[str, Any] = {}
        for place, value in (values | dict(zip(lists, chosen, strict=True))).items():
            if len(place) == 1:
                entries[place[0]] = value
            else:
                entries.setdefault(place[0], {})[place[1]] = value
        yield entries


def _stacked(layers: Sequence[Layer]) -> Layer:
    """Layers as one; the last one to name a place, with a value or a list, decides."""
    values: dict[Place, Any] = {}
    lists: dict[Place, list[Any]] = {}
    for layer in layers:
        for place, value in layer.values.items():
            lists.pop(place, None)
            values[place] = value
        for place, choices in layer.lists.items():
            values.pop(place, None)
            lists[place] = choices
    return Layer(values, lists)


def _scaled(values: dict[str, Any]) -> dict[str, Any]:
    """Put numbers in place of "NUMBER * fraction"."""
    share = values.get("fraction", 1.0)

    def scale(value: Any) -> Any:
        match = _SCALED.fullmatch(value) if isinstance(value, str) else None
        if match is None or not isinstance(share, (int, float)):
            return value
        product = round(float(match[1]) * share, 6)
        return int(product) if product == int(product) else product

    return {k: {n: scale(v) for n, v in one.items()} if isinstance(one, dict) else one for k, one in values.items()}


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
        place = _place(key, "a cell")
        known = [_entry(cell, place) for cell in left]
        texts = [text, *text.split(",")]
        allowed = [value_of(one) for one in texts]
        kept = [c for c, v in zip(left, known, strict=True) if v is not None and (v in allowed or str(v) in texts)]
        if not kept:
            there = ", ".join(dict.fromkeys(str(value) for value in known if value is not None)) or "no value"
            raise SettingError(f"no cell has {key}={text}; here it is {there}")
        left = kept
    return left


def _entry(cell: Cell, place: Place) -> Any:
    """A value of a cell, defaults included; None if it has none."""
    if place[0] == "settings":
        return methods.settings_of(cell.method, cell.settings).get(place[1])
    if place[0] == "recipe":
        return getattr(cell.make_recipe(), place[1], None)
    return cell.network.get(place[1]) if place[0] == "network" else getattr(cell, place[0])


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
