"""What a method makes of examples whose task is not known.

A method that can tell tasks apart (`Method.identify`) is measured on the test data of every task after the last one.
Where each task has classes of its own, an answer is right if the task and the class are; where all tasks have the same
classes in other domains, if the class is, whatever the task.
"""

from __future__ import annotations

from typing import Any

import torch

from halrp.lab.methods import Method
from halrp.lab.streams import Stream, Task


def measure(method: Method, stream: Stream, newest: Task) -> dict[str, Any]:
    """The shares of rows of each task whose task, and whose answer, is right; empty if the method cannot tell tasks.

    `newest` is the last task, which is loaded already. The others are loaded again one at a time, and only if the
    method can tell tasks, so that the memory of a run does not grow with its tasks' data.
    """
    identified, right = [], []
    last = len(stream) - 1
    for position in reversed(range(len(stream))):
        x, y = (newest if position == last else stream[position]).test
        positions = method.identify(x)
        if positions is None:
            return {}
        positions = positions.cpu()
        same = positions == position
        answers = torch.full_like(y, -1)
        for other in positions.unique().tolist():
            rows = positions == other
            answers[rows] = method.predict(x[rows], other).argmax(1).cpu()
        correct = answers == y
        identified.append(_share(same))
        right.append(_share(correct if stream.same_classes else correct & same))
    return {"identified": identified[::-1], "inferred": right[::-1]}


def _share(rows: torch.Tensor) -> float:
    return round(float(rows.double().mean()), 6)
