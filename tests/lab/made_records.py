"""Records made by hand, in the current format and in the older one, and their frames."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from halrp.lab.records import frames
from halrp.lab.records.frames import Frame
from halrp.lab.records.schema import Record
from halrp.lab.records.state_file import Saved, pack
from halrp.lab.records.summary import summarise

ENVIRONMENT = {"machine": "x86_64", "threads": 1}


def parsed(raw: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Records as typed values."""
    return [Record.of(record) for record in raw]


def runs_of(raw: Iterable[Mapping[str, Any]], among: Iterable[Mapping[str, Any]] | None = None) -> Frame:
    """One row per run; `among` are all records, to compare with."""
    chosen = parsed(raw)
    everything = frames.runs(chosen if among is None else parsed(among))
    return everything[[record in chosen for record in everything["record"]]] if among is not None else everything


def groups_of(raw: Iterable[Mapping[str, Any]], among: Iterable[Mapping[str, Any]] | None = None) -> Frame:
    """One row per method and settings; `among` are all records, to compare with."""
    among = None if among is None else [*among]
    return summarise(runs_of(raw, among), None if among is None else runs_of(among))


def made(
    test: Sequence[Sequence[float | None]],
    identities: Sequence[int] | None = None,
    method: str = "halrp-budget",
    *,
    bytes: Sequence[float | None] | None = None,
    seconds: Sequence[float] | None = None,
    threads: int = 1,
    **cell: Any,
) -> dict[str, Any]:
    """A record of today: `test[i]` are the accuracies after position i, `bytes` are four times the parameters."""
    identities = range(len(test)) if identities is None else identities
    bytes = [1000.0 + 100 * i for i in range(len(test))] if bytes is None else bytes
    rows = []
    for position, (accuracies, identity, size) in enumerate(zip(test, identities, bytes, strict=True)):
        row: dict[str, Any] = {"position": position, "identity": identity, "task": f"task {identity}", "classes": 2}
        row |= {"examples": 10, "val": list(accuracies), "test": list(accuracies)}
        if size is not None:
            row |= {"parameters": size / 4, "bytes": size, "counted": size / 5}
        row |= {"seconds": 2.0 if seconds is None else seconds[position], "stages": {}, "peak_bytes": 10**6 + position}
        rows.append(row)
    values: dict[str, Any] = {"method": method, "stream": "digits", "backbone": "mlp", "tasks": len(test)} | cell
    recipe = {"epochs": 3} | values.pop("recipe", {})
    values |= {"recipe": recipe}
    resolved = values | {"settings": values.get("settings", {}), "recipe": recipe}
    return {"cell": values, "resolved": resolved, "environment": ENVIRONMENT | {"threads": threads}, "rows": rows}


def stable(
    final: dict[int, float], identities: Sequence[int], method: str = "halrp-budget", **more: Any
) -> dict[str, Any]:
    """A record in which no accuracy ever changes; `final` has them by identity."""
    accuracies = [final[identity] for identity in identities]
    return made([accuracies[: i + 1] for i in range(len(accuracies))], identities, method, **more)


def older(record: dict[str, Any]) -> dict[str, Any]:
    """The same record in the older format."""
    cell = {"order": "A", "seed": 0, "fraction": 1.0, "settings": {}, "tasks": None} | record["cell"]
    lacking = ("val", "counted", "stages", "peak_bytes")
    rows = [{name: value for name, value in row.items() if name not in lacking} for row in record["rows"]]
    return {"cell": cell, "environment": record["environment"], "rows": rows}


def put(folder: Path, name: str, content: object, age: int = 0) -> Path:
    """Write a file and set its time of modification back by `age` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return path


def unfinished(folder: Path, name: str, record: dict[str, Any], done: int) -> Path:
    """Write what is left of a run that was stopped after some tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = {"cell": record["cell"], "resolved": record.get("resolved")}
    tensors = safetensors.torch.save({"w": torch.zeros(2)})
    (folder / name).write_bytes(pack(Saved(origin, ["data"] * done, record["rows"][:done], {}, tensors)))
    return folder / name
