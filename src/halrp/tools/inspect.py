"""The content of a store as plain JSON values: tasks in order, ranks, what each part takes, what training gained."""

from __future__ import annotations

import os
from typing import Any

from halrp.method.outcome import Outcome, outcome_of
from halrp.model.delta import Delta
from halrp.store import task_file
from halrp.store.folder import TRASH
from halrp.store.manifest import Entry
from halrp.store.store import Store
from halrp.tools import file_parts


def summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a store's manifest and task files; the base is not read."""
    store = Store(folder)
    manifest = store.manifest()
    layouts = store.layouts(manifest)
    tasks = [
        _task(name, entry, task_file.read(store.content(entry), layouts, str(store.folder / entry.file)))
        | {"versions": [old._asdict() for old in manifest.versions.get(name, ())]}
        for name, entry in manifest.tasks.items()
    ]
    return {
        "store": str(store.folder),
        "version": manifest.version,
        "head": manifest.head,
        "fingerprint": manifest.fingerprint,
        "identity": manifest.identity,
        "generation": manifest.generation,
        "base_bytes": manifest.base.bytes,
        "tasks": tasks,
        "bytes": sum({entry.file: entry.bytes for entry in manifest.entries}.values()),
        "trash_bytes": sum(path.stat().st_size for path in (store.folder / TRASH).rglob("*") if path.is_file()),
        "separate_bytes": manifest.base.bytes * len(tasks),
    }


def _task(name: str, entry: Entry, delta: Delta) -> dict[str, Any]:
    predicted = sum(layer.predicted for layer in delta.recovered.values())
    recovered = sum(layer.predicted * layer.share for layer in delta.recovered.values())
    return {
        "name": name,
        "file": entry.file,
        "bytes": entry.bytes,
        "objective": dict(delta.objective),
        "classes": delta.classes,
        "class_names": None if delta.class_names is None else list(delta.class_names),
        "base": delta.is_base,
        "view": delta.view,
        "precision": "per part" if delta.has_parts else delta.precision,
        "ranks": delta.ranks,
        "dense": [weight for weight in delta.dense if delta.layout.by_name[weight].kind == "adapted"],
        "groups": {
            group: part._asdict() | {"precisions": list(part.precisions)}
            for group, part in file_parts.groups(delta).items()
        },
        "parts": {key: part._asdict() for key, part in delta.stored.items()},
        "outcome": _outcome(outcome_of(delta.provenance)),
        "predicted_loss": predicted,
        "recovered_loss": recovered,
        "layers": {
            weight: {"importance": layer.importance, "predicted_loss": layer.predicted, "explained": layer.share}
            for weight, layer in delta.recovered.items()
        },
        "provenance": dict(delta.provenance),
    }


def _outcome(outcome: Outcome | None) -> dict[str, Any] | None:
    """What a task gained over its start on validation data, in numbers and in words; None if that was not measured."""
    if outcome is None:
        return None
    start = None if outcome.start is None else outcome.start._asdict()
    numbers = {"start": start, "end": outcome.end._asdict(), "epoch": outcome.epoch, "guess": outcome.guess}
    return numbers | {"text": str(outcome)}
