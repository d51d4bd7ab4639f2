"""Sweep files: many cells from one TOML file, as plain values; needs neither torch nor any method.

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

Entries at the top are those of `Cell`, with the tables `settings`, `recipe` and `network`, and are common to all cells.
Each `[[cells]]` block is a layer over them, whose tables are merged into those at the top; a file may have no block.
Lists under `grid`, at the top or in a block, are combined with each other, the last list varying fastest. A block
overrides the top: its value replaces a list at the top, and its list replaces a value. The file above has 4 + 8 = 12
cells.

A value "NUMBER * fraction" is multiplied by the cell's fraction of the data: the paper's released code lets the
learning rate decay by `recipe.decay_examples = "4000 * fraction"` on every data set.

`from = "cifar100-split"` starts from another preset or file: its entries are used where this file has none, its tables
are merged with those here, and its blocks are used if there are none here. `include = ["pmnist", "iru"]` is a sweep of
other sweeps' cells; such a file has no other entry than `about`.

Every cell is checked before the first one runs. An unknown entry is an error with the nearest known one. Equal cells
run once.
"""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from halrp.errors import DamagedError, SettingError
from halrp.lab import presets
from halrp.lab.names import check_name
from halrp.store import atomic

LARGEST = 64 << 10
"""Limit on the bytes of a sweep file; presets have 2 KB."""
LONGEST = 8192
"""Limit on the characters of a line: the parser's time grows with the square of a key's dots."""
TABLES = ("settings", "recipe", "network")
NOT_LAYERS = ("about", "include", "cells")
"""Entries of a file that are not of a cell."""
FIELDS = (
    "method", "stream", "backbone", "order", "seed", "fraction", "settings", "recipe", "network", "tasks",
)  # fmt: skip
"""Entries of a cell."""
_SCALED = re.compile(r"\s*([0-9.eE+]+)\s*\*\s*fraction\s*")

Key = tuple[str, ...]
"""The path of a value in a cell: ("order",) or ("settings", "strength")."""


class Layer(NamedTuple):
    """Values, and lists of which each combination is wanted."""

    values: dict[Key, Any]
    lists: dict[Key, list[Any]]


def read(name: str | os.PathLike[str], readers: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Read a preset by its name, or a file; returns its title and its content, merged with what it starts from.

    `readers` are the sweeps that start from this one, or include it.
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
    """A name in a file: a preset, or a path relative to that file."""
    return str(Path(name).parent / other) if other.endswith(".toml") else other


def _read_alone(name: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    text, path = str(name), Path(name)
    if path.suffix == ".toml" or path.is_file():
        try:
            text, content = path.name, atomic.read(path, LARGEST).decode()
        except (DamagedError, UnicodeDecodeError) as error:
            raise SettingError(f"the sweep {path} cannot be read: {error}") from error
    else:
        content = presets.text(text)
    if any(len(line) > LONGEST for line in content.splitlines()):
        raise SettingError(f"the sweep {text} has a line of more than {LONGEST:,} characters; break it into several")
    try:
        return text, tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # the latter for brackets in brackets without an end
        raise SettingError(f"the sweep {text} is not TOML: {error}") from error


def _on_top(document: Mapping[str, Any], origin: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entries of `origin`, replaced by those of `document` where it has them."""
    if both := {"include"} & {*document, *origin}:
        raise SettingError(
            f"{where}: from and {both.pop()} do not go together; include the sweeps in a file of its own"
        )
    below, above = (_layer(_common(content), where) for content in (origin, document))
    merged = {k: v for k, v in (*origin.items(), *document.items()) if k in NOT_LAYERS}
    values, lists = _stacked([below, above])
    for table, entries in ((merged, values), (merged.setdefault("grid", {}), lists)):
        for key, value in entries.items():
            (table if len(key) == 1 else table.setdefault(key[0], {}))[key[-1]] = value
    return merged


def entries(
    document: Mapping[str, Any], over: Mapping[str, Any] | None = None, name: str = "the sweep"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of every cell of a sweep, each with where it stands in the file; included sweeps come in their order.

    `over` is a last layer: values by "order" or "recipe.epochs".
    """
    for key in document:
        check_name(f"entry of {name}", key, (*FIELDS, *NOT_LAYERS, "grid"))
    if "include" in document:
        yield from _included(document, over, name)
        return
    blocks = document.get("cells", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks) or not blocks:
        raise SettingError(f"{name}: cells={blocks!r} is not a list of tables; begin each with [[cells]]")
    common = _layer(_common(document), name)
    last = Layer({key_of(key, name): value for key, value in (over or {}).items()}, {})
    for number, block in enumerate(blocks, 1):
        where = f"{name}, [[cells]] block {number}" if "cells" in document else name
        for values in _combinations([common, _layer(block, where), last]):
            yield where, _scaled(values)


def _included(
    document: Mapping[str, Any], over: Mapping[str, Any] | None, name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    names = document["include"]
    if not isinstance(names, list) or not all(isinstance(other, str) for other in names) or not names:
        raise SettingError(f"{name}: include={names!r} is not a list of presets or files")
    if more := sorted(document.keys() - {"about", "include"}):
        raise SettingError(f"{name}: {', '.join(more)} beside include; such a file has nothing else but about")
    for other in names:
        title, content = read(other)
        if "include" in content:
            raise SettingError(f"{name}: {title} includes others itself; name those")
        yield from entries(content, over, title)


def _common(document: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for every cell of a file."""
    return {k: v for k, v in document.items() if k not in NOT_LAYERS}


def _layer(table: Mapping[str, Any], where: str) -> Layer:
    """Split a table of a file into values and lists."""
    grid = table.get("grid", {})
    if not isinstance(grid, Mapping):
        raise SettingError(f"{where}: grid={grid!r} is not a table of lists")
    values = _flat({k: v for k, v in table.items() if k != "grid"}, where)
    lists = _flat(grid, f"{where}, grid")
    for key, choices in lists.items():
        if not isinstance(choices, list) or not choices:
            raise SettingError(f"{where}: grid.{'.'.join(key)}={choices!r} is not a list of values to combine")
        if key in values:
            raise SettingError(f"{where}: {'.'.join(key)} has a value and a list in the grid; leave out one of them")
    return Layer(values, lists)


def _flat(table: Mapping[str, Any], where: str) -> dict[Key, Any]:
    flat: dict[Key, Any] = {}
    for key, value in table.items():
        check_name(f"entry of {where}", key, FIELDS)
        if key not in TABLES:
            flat[key,] = value
        elif isinstance(value, Mapping):
            flat |= {(key, inner): entry for inner, entry in value.items()}
        else:
            raise SettingError(f"{where}: {key}={value!r} is not a table; write {key} = {{ name = value }}")
    return flat


def key_of(text: str, where: str) -> Key:
    """Read "order" or "settings.strength"."""
    table, dot, inner = text.partition(".")
    check_name(f"entry of {where}", table, FIELDS)
    if bool(dot and inner) != (table in TABLES):
        example = f"{table}.name" if table in TABLES else table
        raise SettingError(f"{text!r} is not the key of a value in a cell; write {example}=value")
    return (table, inner) if dot else (table,)


def _combinations(layers: Sequence[Layer]) -> Iterable[dict[str, Any]]:
    """Every combination of the lists on top of the values, as the entries of a cell."""
    values, lists = _stacked(layers)
    for chosen in itertools.product(*lists.values()):
        entries: dict[str, Any] = {}
        for key, value in (values | dict(zip(lists, chosen, strict=True))).items():
            if len(key) == 1:
                entries[key[0]] = value
            else:
                entries.setdefault(key[0], {})[key[1]] = value
        yield entries


def _stacked(layers: Sequence[Layer]) -> Layer:
    """Layers as one; the last one to name a key, with a value or a list, decides."""
    values: dict[Key, Any] = {}
    lists: dict[Key, list[Any]] = {}
    for layer in layers:
        for key, value in layer.values.items():
            lists.pop(key, None)
            values[key] = value
        for key, choices in layer.lists.items():
            values.pop(key, None)
            lists[key] = choices
    return Layer(values, lists)


def _scaled(values: dict[str, Any]) -> dict[str, Any]:
    """Replace "NUMBER * fraction" by its value."""
    share = values.get("fraction", 1.0)

    def scale(value: Any) -> Any:
        match = _SCALED.fullmatch(value) if isinstance(value, str) else None
        if match is None or not isinstance(share, (int, float)):
            return value
        product = round(float(match[1]) * share, 6)
        return int(product) if product == int(product) else product

    return {k: {n: scale(v) for n, v in e.items()} if isinstance(e, dict) else e for k, e in values.items()}
