"""Finding and reading records: which files hold one, and why each of the others is left out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from halrp.errors import DamagedError, HalrpError, SettingError
from halrp.lab.records import schema, state_file
from halrp.lab.records.schema import UNFINISHED, NotARecord, Raw, Record
from halrp.store import atomic


class Problem(NamedTuple):
    """A file that no table uses."""

    path: Path
    kind: str
    """One of damaged, unfinished, duplicate, and other for JSON that is not a record."""
    reason: str


class Loaded(NamedTuple):
    """The usable records, and the files that were left out."""

    records: list[Record]
    problems: list[Problem]


class _Read(NamedTuple):
    path: Path
    raw: Raw
    record: Record

    def age(self) -> tuple[int, Path]:
        return self.path.stat().st_mtime_ns, self.path


def load(paths: Iterable[str | os.PathLike[str]]) -> Loaded:
    """Read the records in files and, recursively, in folders; files that cannot be used are listed with the reason.

    Of two records of the same cell the newer file counts. Hidden files and folders are skipped.
    """
    newest: dict[str, _Read] = {}
    problems = []
    for path in _files(paths):
        try:
            if path.suffix == UNFINISHED:
                problems.append(Problem(path, "unfinished", _progress(path)))
                continue
            raw = _read(path)
            entry = _Read(path, raw, schema.check(raw))
        except NotARecord as error:
            problems.append(Problem(path, "other", str(error)))
            continue
        except HalrpError as error:
            problems.append(Problem(path, "damaged", str(error).removeprefix(f"{path} is ")))
            continue
        key = json.dumps([entry.record.repetition, entry.record.order, entry.record.seed])
        if key in newest:
            older, entry = sorted((entry, newest[key]), key=_Read.age)
            problems.append(_duplicate(older, entry))
        newest[key] = entry
    return Loaded([entry.record for entry in newest.values()], problems)


def _duplicate(older: _Read, newer: _Read) -> Problem:
    same = schema.without_times(older.raw)["rows"] == schema.without_times(newer.raw)["rows"]
    note = "with the same results" if same else "with OTHER results"
    return Problem(older.path, "duplicate", f"{newer.path} is a newer record of the same cell, {note}")


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every candidate once, however often it is named."""
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file():
            files.setdefault(path.resolve(), path)
        elif not path.is_dir():
            raise SettingError(f"{path} does not exist; name a record, or a folder of records")
        for inner in sorted(path.rglob("*")) if path.is_dir() else ():
            hidden = any(part.startswith(".") for part in inner.relative_to(path).parts)
            if inner.suffix in (".json", UNFINISHED) and inner.is_file() and not hidden:
                files.setdefault(inner.resolve(), inner)
    return list(files.values())


def _progress(path: Path) -> str:
    """How far an interrupted run came."""
    saved = state_file.read(path, tensors=False)
    total = schema.tasks_of(saved.cell)
    return f"{len(saved.rows)}{'' if total is None else f' of {total}'} tasks done"


def _read(path: Path) -> Raw:
    """A record as JSON, distinguished from other JSON that lies beside records."""
    try:
        content = json.loads(atomic.read(path, schema.LARGEST))
    except DamagedError as error:
        raise DamagedError(f"not readable ({str(error).removeprefix(f'{path} ')})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict) or "cell" not in content:
        raise NotARecord("not a record of a run")
    return schema.complete(content, path)
