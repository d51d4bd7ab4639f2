"""From outputs to what they mean: labels, values, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from halrp.errors import SettingError
from halrp.model.delta import Delta
from halrp.objectives import Classification, Objective, restored
from halrp.objectives.classification import decode


def answers(delta_of: Callable[[str | None], Delta], outputs: Tensor, task: str | Sequence[str | None] | None) -> Any:
    """What outputs (N, ...) of a task, or of a task per row, mean; `delta_of` gives the delta of a task."""
    if task is None or isinstance(task, str):
        delta = delta_of(task)
        return _objective(delta).decode(outputs, delta.class_names)
    deltas = {name: delta_of(name) for name in dict.fromkeys(task)}
    objectives = {name: _objective(delta) for name, delta in deltas.items()}
    if all(isinstance(objective, Classification) for objective in objectives.values()):
        return decode(outputs, [deltas[name].class_names for name in task])
    rows = []
    for name, row in zip(task, outputs.split(1), strict=True):
        narrowed = row.narrow(objectives[name].width_dim, 0, deltas[name].classes)
        rows.append(objectives[name].decode(narrowed, deltas[name].class_names))
    return rows


def _objective(delta: Delta) -> Objective:
    task = delta.task or "the base's narrowed task"
    objective = restored(delta.objective, delta.classes, task)
    if delta.class_names is not None and len(delta.class_names) != objective.named:
        raise SettingError(f"{task}: its file has {len(delta.class_names)} class names for {objective.named} classes")
    return objective
