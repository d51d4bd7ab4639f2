"""Raw records, one JSON object a line: appended atomically, and read by whoever resumes a run or writes a table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from halrp.store import atomic

Row = dict[str, Any]
KEY = ("network", "method", "setting", "task", "shots", "seed")
"""The fields that identify a fit."""


def key(row: Mapping[str, Any]) -> str:
    """What identifies a fit, as text."""
    return json.dumps([row[field] for field in KEY], sort_keys=True)


def read(path: Path) -> list[Row]:
    """The rows of a file that may not exist; the torn last line of a process that was killed is no row."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row, durably, after cutting off what a killed process left of a line; other processes wait."""
    atomic.make_folder(path.parent)
    line = json.dumps(row).encode() + b"\n"
    while (lock := atomic.take_lock(path)) is None:
        time.sleep(0.05)
    with lock:
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            lock.truncate(end)
        lock.write(line)
        os.fsync(lock.fileno())


def fits(rows: Iterable[Row]) -> list[Row]:
    """The rows that are fits."""
    return [row for row in rows if row["kind"] == "fit"]


def choice(rows: Iterable[Row], network: str, method: str, shots: int) -> Row | None:
    """The last row that says which setting a method has for a number of shots; earlier ones had other grids."""
    fields = {"kind": "choice", "network": network, "method": method, "shots": shots}
    return next((row for row in reversed(list(rows)) if fields.items() <= row.items()), None)
