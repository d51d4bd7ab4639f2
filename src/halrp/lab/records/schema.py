"""Reading records back, whatever their age: which files hold one, and what a run was.

Records of an older format lack some values. They are missing then, and nothing is put in their place, except what a
cell leaves out because it is the default.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import safetensors
from torch import nn

from halrp import Recipe
from halrp.errors import DamagedError, HalrpError, SettingError
from halrp.lab import methods
from halrp.lab.run import runner
from halrp.lab.run.cell import describe_all
from halrp.provenance import describe
from halrp.store import atomic

Record: TypeAlias = dict[str, Any]
NUMBERS = ("parameters", "bytes", "counted", "seconds", "peak_bytes")
"""What of a row is a number, where it is there."""


class Problem(NamedTuple):
    """A file that no table uses."""

    path: Path
    kind: str
    """One of damaged, unfinished, duplicate, and other for JSON that is no record of a run."""
    reason: str


class Loaded(NamedTuple):
    """What was found."""

    records: list[Record]
    problems: list[Problem]


@dataclass(frozen=True)
class Run:
    """What a record tells about its run."""

    method: str
    stream: str
    backbone: str
    order: str
    seed: int
    fraction: float
    settings: dict[str, Any]
    """Those of the method that are not its defaults of today."""
    recipe: dict[str, Any]
    """Those of the recipe that are not its defaults of today; epochs are told apart."""
    network: dict[str, Any]
    epochs: int | None
    """None if the record does not say."""
    machine: tuple[Any, ...]
    """What seconds depend on."""
    rows: list[dict[str, Any]]
    cell: dict[str, Any]

    @staticmethod
    def of(record: Mapping[str, Any]) -> Run:
        """Look into a record."""
        cell, resolved = record["cell"], record.get("resolved") or {}
        method = cell["method"]
        known = methods.METHODS.get(method)
        # A record that says all values is asked first: what was a default then may not be one today.
        settings = resolved.get("settings") or cell.get("settings") or {}
        recipe = dict(resolved.get("recipe") or cell.get("recipe") or {})
        epochs = recipe.pop("epochs", None)
        environment = record.get("environment") or {}
        return Run(
            method=method,
            stream=cell["stream"],
            backbone=cell["backbone"],
            order=cell.get("order", "A"),
            seed=cell.get("seed", 0),
            fraction=float(cell.get("fraction", 1.0)),
            settings=_unlike(settings, {} if known is None else describe_all(known.settings())),
            recipe=_unlike(recipe, describe(Recipe())),
            network=cell.get("network") or {},
            epochs=epochs,
            machine=tuple(environment.get(key) for key in ("machine", "threads")),
            rows=record["rows"],
            cell=cell,
        )

    @property
    def tasks(self) -> int:
        """How many tasks were learned."""
        return len(self.rows)

    @property
    def place(self) -> tuple[Any, ...]:
        """What runs have to share to stand in one table."""
        epochs = -1 if self.epochs is None else self.epochs
        return self.stream, self.backbone, text(self.network), self.fraction, self.tasks, epochs

    @property
    def kind(self) -> tuple[Any, ...]:
        """What runs have to share to be repeats of each other, under other orders and seeds."""
        return *self.place, self.method, text(self.settings), text(self.recipe), self.shows_first

    @property
    def shows_first(self) -> bool:
        """Whether the order is called first-K: the run is there to show what comes of K as the first task."""
        return re.fullmatch(r"first-\d+", self.order) is not None

    @property
    def first(self) -> int:
        """The identity of the first task."""
        return int(self.rows[0]["identity"])

    def sorting(self) -> tuple[Any, ...]:
        """Where in a table the run stands: methods as they are registered, the plainest settings first."""
        known = list(methods.METHODS)
        rank = known.index(self.method) if self.method in known else len(known)
        return *self.place, rank, *self.kind[-4:], self.first if self.shows_first else -1, self.order, self.seed

    def first_decides(self) -> bool:
        """Whether tasks depend on the first one and on themselves alone; no if the method cannot be made any more."""
        try:
            recipe = Recipe()
            made = methods.make(self.method, methods.Context(_unbuilt, recipe), **(self.cell.get("settings") or {}))
        except (HalrpError, TypeError, ValueError):
            return False
        return made.first_decides

    def number(self, position: int, name: str) -> float | None:
        """A size or time at a position; None if the record does not say."""
        value = self.rows[position].get(name)
        return None if value is None else float(value)


def load(paths: Iterable[str | os.PathLike[str]]) -> Loaded:
    """Read the records in files, and in folders and all that is below them; what cannot be used is listed with why.

    Of two records of the same cell the newer file counts. Hidden files and folders are passed over.
    """
    found: dict[str, tuple[Path, Record]] = {}
    problems = []
    for path in _files(paths):
        try:
            if path.suffix == runner.UNFINISHED:
                problems.append(Problem(path, "unfinished", _progress(path)))
                continue
            record = _read(path)
        except _OtherFileError as error:
            problems.append(Problem(path, "other", str(error)))
            continue
        except HalrpError as error:
            problems.append(Problem(path, "damaged", str(error).removeprefix(f"{path} is ")))
            continue
        run = Run.of(record)
        name = json.dumps([run.kind, run.order, run.seed])
        if name in found:
            older, newer = sorted(((path, record), found[name]), key=lambda one: (one[0].stat().st_mtime_ns, one[0]))
            same = runner.without_times(older[1])["rows"] == runner.without_times(newer[1])["rows"]
            note = "with the same results" if same else "with OTHER results"
            problems.append(Problem(older[0], "duplicate", f"{newer[0]} is a newer record of the same cell, {note}"))
            found[name] = newer
        else:
            found[name] = path, record
    return Loaded([record for _, record in found.values()], problems)


def text(values: Mapping[str, Any]) -> str:
    """Settings as a short text: "growth_per_task=0.026, view=full"."""
    return ", ".join(f"{_short(name)}={_short(value)}" for name, value in sorted(values.items()))


def _short(value: object) -> str:
    if isinstance(value, float):
        return format(value, ".6g")
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, separators=(",", ":"))


def _unlike(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or defaults[name] != value}


def _unbuilt(classes: int, seed: int) -> nn.Module:
    raise AssertionError("a method builds a network only when it learns")


class _OtherFileError(HalrpError):
    """The file is whole, and no record."""


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file():
            found.setdefault(path.resolve(), path)
        elif not path.is_dir():
            raise SettingError(f"{path} does not exist; name a record, or a folder of records")
        for one in sorted(path.rglob("*")) if path.is_dir() else ():
            hidden = any(part.startswith(".") for part in one.relative_to(path).parts)
            if one.suffix in (".json", runner.UNFINISHED) and one.is_file() and not hidden:
                found.setdefault(one.resolve(), one)
    return list(found.values())


def _progress(path: Path) -> str:
    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["facts"])
        done, wanted = len(facts["rows"]), facts["cell"].get("tasks")
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as e:
        raise DamagedError(f"not the state of a run ({type(e).__name__}: {e})") from e
    return f"{done}{'' if wanted is None else f' of {wanted}'} tasks done"


def _read(path: Path) -> Record:
    """Read a record whose every value is of the right kind."""
    try:
        found = json.loads(atomic.read(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON ({type(error).__name__}: {error})") from error
    if not isinstance(found, dict) or "cell" not in found:
        raise _OtherFileError("not a record of a run")
    record = runner.read(path)
    cell, rows = record["cell"], record["rows"]
    try:
        both = cell, record.get("resolved") or {}
        parts = [record.get("environment"), *(part.get(n) for part in both for n in ("settings", "recipe", "network"))]
        good = {
            "configuration": all(_printable(cell.get(name)) for name in ("method", "stream", "backbone"))
            and _printable(cell.get("order", "A"))
            and isinstance(cell.get("seed", 0), int)
            and _number(cell.get("fraction", 1.0))
            and 0 < cell.get("fraction", 1.0) <= 1
            and all(part is None or isinstance(part, dict) for part in parts)
            and all(isinstance((part.get("recipe") or {}).get("epochs", 0), int) for part in both),
            "identities": all(isinstance(row["identity"], int) for row in rows)
            and len({row["identity"] for row in rows}) == len(rows),
            "accuracies": all(one is None or (_number(one) and one <= 1) for row in rows for one in row["test"]),
            "sizes or times": all(row.get(name) is None or _number(row[name]) for row in rows for name in NUMBERS),
        }
        if wrong := [name for name, fine in good.items() if not fine]:
            raise DamagedError(f"a record with impossible {', '.join(wrong)}; move it away")
        Run.of(record).sorting()
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"not a whole record ({type(error).__name__}: {error}); move it away") from error
    return record


def _printable(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
