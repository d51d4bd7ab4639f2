"""What a record of a run contains, as typed values: the file format, its versions, its checks.

A record is one JSON object: `cell` (the configuration without its defaults), `resolved` (the same with every value),
`environment`, and `rows`, one per task in the order of the stream. Version 2 adds `method`, what a report needs to know
of the method (title, defaults of its settings, properties), and `checksum`, over everything else. Records of earlier
versions lack values; those are missing in a `Record`, too, and nothing is guessed. For them, and to compare records of
several versions, `reference/defaults.json` has the defaults of the package's own methods. So neither torch nor any
method is imported here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from halrp.checks import is_number
from halrp.errors import DamagedError, FormatError, HalrpError
from halrp.lab.reference import load_reference
from halrp.lab.registry import METHODS, STREAMS, SUBSET
from halrp.store import atomic

VERSION = 2
UNFINISHED = ".unfinished"
"""Suffix of the file that holds an interrupted run."""
LARGEST = 64 << 20
"""Limit on the bytes of a record; one of 100 tasks has 0.4 MB."""
TIMES = ("seconds", "stages", "peak_bytes")
"""Entries of a row that differ from run to run."""
NUMBERS = ("parameters", "bytes", "counted", "seconds", "peak_bytes")
"""Entries of a row that are numbers, where they are present."""

_CELL = {"method": "", "stream": "", "backbone": "", "order": "A", "seed": 0, "fraction": 1.0, "tasks": None}
"""Entries of a cell besides settings, and what it means to leave one out."""

Raw: TypeAlias = dict[str, Any]
"""A record as JSON."""
Row: TypeAlias = Mapping[str, Any]
"""What was measured after one task, as JSON."""


class NotARecord(HalrpError):  # noqa: N818  (reads as what it says)
    """The file is intact JSON, and something else than a record."""


class Setup(NamedTuple):
    """The experimental setup: what runs have to share to be compared in one table."""

    stream: str
    backbone: str
    network: str
    """Settings of the backbone that are not its defaults, as text."""
    fraction: float
    tasks: int
    epochs: int | None
    """Of each task; None if the record lacks it."""


@dataclass(frozen=True)
class Record:
    """One finished run."""

    method: str
    title: str
    """The name of a method of the package, the title of any other."""
    stream: str
    backbone: str
    order: str
    seed: int
    fraction: float
    settings: Mapping[str, Any]
    """Settings of the method that differ from its current defaults."""
    recipe: Mapping[str, Any]
    """Settings of the recipe that differ from its current defaults, without epochs."""
    network: Mapping[str, Any]
    epochs: int | None
    defaults: Mapping[str, Any]
    """The current defaults of the method's settings; for a method that is not the package's, those it was run with."""
    first_decides: bool
    """Whether each task depends on the first one and on itself alone; False for unknown methods and settings."""
    environment: Mapping[str, Any]
    rows: tuple[Row, ...]

    @staticmethod
    def of(raw: Mapping[str, Any]) -> Record:
        """Read a record from its JSON, which is taken to be valid; `check` checks it."""
        cell, resolved = raw["cell"], raw.get("resolved") or {}
        stored = raw.get("method") or {}
        # Records of one method share today's defaults, so that equal settings have equal texts.
        defaults = _defaults()["methods"].get(cell["method"]) or stored.get("settings") or {}
        # The resolved values come first: what was a default when the record was written may not be one today.
        settings = resolved.get("settings") or cell.get("settings") or {}
        recipe = dict(resolved.get("recipe") or cell.get("recipe") or {})
        epochs = recipe.pop("epochs", None)
        return Record(
            method=cell["method"],
            title=_title(cell["method"], stored.get("title")),
            stream=cell["stream"],
            backbone=cell["backbone"],
            order=cell.get("order", "A"),
            seed=cell.get("seed", 0),
            fraction=float(cell.get("fraction", 1.0)),
            settings=_unlike(settings, defaults),
            recipe=_unlike(recipe, _defaults()["recipe"]),
            network=cell.get("network") or {},
            epochs=epochs,
            defaults=defaults,
            first_decides=_first_decides(cell["method"], settings, defaults, stored),
            environment=raw.get("environment") or {},
            rows=tuple(raw["rows"]),
        )

    @property
    def tasks(self) -> int:
        """The number of tasks that were learned."""
        return len(self.rows)

    @property
    def label(self) -> str:
        """The method as tables show it: its name, after its title where that is another."""
        return self.method if self.title == self.method else f"{self.title} ({self.method})"

    @property
    def setup(self) -> Setup:
        """What it shares with the runs that it is compared with."""
        return Setup(self.stream, self.backbone, as_text(self.network), self.fraction, self.tasks, self.epochs)

    @property
    def first_order(self) -> bool:
        """Whether the order is called first-K: the run shows the effect of K as the first task."""
        return re.fullmatch(r"first-\d+", self.order) is not None

    @property
    def values(self) -> dict[str, Any]:
        """All known settings of the method and the recipe, defaults included."""
        return {**_defaults()["recipe"], **self.defaults, **self.recipe, **self.settings}

    @property
    def repetition(self) -> tuple[Any, ...]:
        """What the order and seed of a run are repetitions of, as a key."""
        return *self.setup, self.method, as_text(self.settings), as_text(self.recipe), self.first_order

    def sort_key(self) -> tuple[Any, ...]:
        """The position in a table: by setup, then methods as registered, then the plainest settings first."""
        known = list(METHODS)
        rank = known.index(self.method) if self.method in known else len(known)
        *setup, epochs = self.setup
        first = int(self.rows[0]["identity"]) if self.first_order else -1
        group = rank, *self.repetition[-4:]
        return *setup, -1 if epochs is None else epochs, *group, first, self.order, self.seed

    def number(self, position: int, name: str) -> float | None:
        """A size or time at a position; None if the record lacks it."""
        value = self.rows[position].get(name)
        return None if value is None else float(value)


def _title(method: str, stored: object) -> str:
    given = stored if isinstance(stored, str) and stored.strip() and stored.isprintable() else method
    return method if method in METHODS else given


@cache
def _defaults() -> Mapping[str, Any]:
    return load_reference("defaults")


def _first_decides(
    method: str, settings: Mapping[str, Any], defaults: Mapping[str, Any], stored: Mapping[str, Any]
) -> bool:
    if "first_decides" in stored:
        return stored["first_decides"] is True
    entry = METHODS.get(method)
    return entry is not None and set(settings) <= set(defaults) and entry.properties_with(settings).first_decides


def _unlike(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or defaults[name] != value}


def as_text(values: Mapping[str, Any]) -> str:
    """Settings as a short text: "growth_per_task=0.026, view=full"."""
    return ", ".join(f"{_short(name)}={_short(value)}" for name, value in sorted(values.items()))


def _short(value: object) -> str:
    if isinstance(value, float):
        return format(value, ".6g")
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, separators=(",", ":"))


# ---- files --------------------------------------------------------------------------------------------------------


def seal(raw: Raw) -> Raw:
    """The record with its version and the checksum of its content."""
    content: Raw = json.loads(json.dumps({"version": VERSION, **raw}))
    return content | {"checksum": checksum(content)}


def checksum(raw: Raw) -> str:
    """The SHA-256 of all of a record but its checksum."""
    content = {name: value for name, value in raw.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read(path: str | os.PathLike[str]) -> Raw:
    """Read a record as JSON; a file that is not a complete record is a `DamagedError`."""
    path = Path(path)
    try:
        content = json.loads(atomic.read(path, LARGEST))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not a record ({type(error).__name__}: {error}); move it away") from error
    return complete(content, path)


def complete(raw: Any, path: Path) -> Raw:
    """The content of a file, once it is known to be a complete, unchanged record of one run."""
    try:
        reason = _incomplete(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is not a record ({type(error).__name__}: {error}); move it away") from error
    if reason:
        raise DamagedError(f"{path} is {reason}; move it away")
    version = raw.get("version", 1)
    if version not in range(1, VERSION + 1):
        raise FormatError(f"{path} is a record of version {version!r}; this version of halrp reads up to {VERSION}")
    sealed = version > 1 or "checksum" in raw or "method" in raw  # version 1 has neither
    if sealed and raw.get("checksum") != checksum(raw):
        raise DamagedError(f"{path} is not what the run wrote: its checksum does not match; move it away")
    return dict(raw)


def _incomplete(raw: Any) -> str:
    """Why the content of a file is not a complete record; empty if it is one."""
    cell, rows, resolved = raw["cell"], raw["rows"], raw.get("resolved") or {}
    if not (isinstance(cell["method"], str) and rows_in_order(rows)):
        return "not a complete record: its rows do not follow each other"
    for name, default in _CELL.items():
        named = cell.get(name, default)
        if named != resolved.get(name, named):
            return f"not one record: its cell names {name} {named!r}, its resolved values {resolved[name]!r}"
    tasks = tasks_of(cell)
    if tasks is not None and len(rows) != tasks:
        return f"not a complete record: it has {len(rows)} rows for {tasks} tasks"
    return ""


def rows_in_order(rows: Any) -> bool:
    """Whether rows follow each other: at each position the accuracies of all tasks up to it."""
    return (
        isinstance(rows, list)
        and len(rows) > 0
        and all(isinstance(row, dict) and isinstance(row.get("test"), list) for row in rows)
        and all(len(row["test"]) == i + 1 and row.get("position") == i for i, row in enumerate(rows))
    )


def tasks_of(cell: Mapping[str, Any]) -> int | None:
    """The number of tasks that a cell learns; None if that is not known without its data."""
    if cell.get("tasks") is not None:
        return int(cell["tasks"])
    stream = str(cell.get("stream"))
    entry = None if stream.endswith(SUBSET) else STREAMS.get(stream.partition("@")[0])
    return (entry.tasks or None) if entry is not None else None


def without_times(raw: Raw) -> Raw:
    """A record without what differs from run to run, to compare two of them."""
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in raw["rows"]]
    return {"cell": raw["cell"], "resolved": raw.get("resolved"), "rows": rows}


def check(raw: Raw) -> Record:
    """The record, once every value has been checked for its type and range."""
    cell, rows = raw["cell"], raw["rows"]
    try:
        both = cell, raw.get("resolved") or {}
        parts = [raw.get("environment"), raw.get("method")]
        parts += [part.get(name) for part in both for name in ("settings", "recipe", "network")]
        valid = {
            "configuration": all(_printable(cell.get(name)) for name in ("method", "stream", "backbone"))
            and _printable(cell.get("order", "A"))
            and isinstance(cell.get("seed", 0), int)
            and is_number(cell.get("fraction", 1.0), 0)
            and 0 < cell.get("fraction", 1.0) <= 1
            and all(part is None or isinstance(part, dict) for part in parts)
            and all(isinstance((part.get("recipe") or {}).get("epochs", 0), int) for part in both),
            "identities": all(isinstance(row["identity"], int) for row in rows)
            and len({row["identity"] for row in rows}) == len(rows),
            "accuracies": all(v is None or (is_number(v, 0) and v <= 1) for row in rows for v in row["test"]),
            "sizes or times": all(row.get(name) is None or is_number(row[name], 0) for row in rows for name in NUMBERS),
        }
        if invalid := [name for name, correct in valid.items() if not correct]:
            raise DamagedError(f"a record with impossible {', '.join(invalid)}; move it away")
        record = Record.of(raw)
        record.sort_key()
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"not a complete record ({type(error).__name__}: {error}); move it away") from error
    return record


def _printable(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()
