"""The content of a store as plain JSON values: tasks in order, ranks, what each part takes, what training gained."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from halrp.errors import UnknownTaskError
from halrp.method.outcome import Outcome, outcome_of
from halrp.model.delta import Delta
from halrp.store import task_file
from halrp.store.store import Store
from halrp.tools import file_parts
from halrp.tools.listing import listing


def summary(folder: str | os.PathLike[str], names: Collection[str] = ()) -> dict[str, Any]:
    """Read a store's manifest and the files of its tasks, or of some of them; the base is not read."""
    store = Store(folder)
    manifest = store.manifest()
    missing = [name for name in names if name not in manifest.tasks]
    if missing:
        raise UnknownTaskError(f"{store.folder} has no task {missing[0]!r}; halrp inspect {store.folder} lists them")
    layouts, content = store.layouts(manifest), listing(folder, manifest)
    content["tasks"] = [
        task | _task(task_file.read(store.content(entry), layouts, str(store.folder / entry.file)))
        for task, entry in zip(content["tasks"], manifest.tasks.values(), strict=True)
        if not names or task["name"] in names
    ]
    return content


def _task(delta: Delta) -> dict[str, Any]:
    predicted = sum(layer.predicted for layer in delta.recovered.values())
    recovered = sum(layer.predicted * layer.share for layer in delta.recovered.values())
    return {
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
