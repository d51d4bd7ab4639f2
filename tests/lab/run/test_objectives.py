"""Tasks that are no classifications run in the laboratory: methods learn their loss, records hold their score."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from halrp.lab import methods
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.run.runner import score
from halrp.lab.streams import Split, Task
from halrp.objectives import Regression


def brightness(task: Task) -> Task:
    """A task with two numbers of each picture in place of its class: its mean, and that of its upper half."""

    def targets(split: Split) -> Split:
        values = torch.stack([split.x.flatten(1).mean(1), split.x[:, :, : split.x.shape[2] // 2].flatten(1).mean(1)], 1)
        return split._replace(y=10 * values + 3)

    train, val, test = map(targets, (task.train, task.val, task.test))
    return replace(task, train=train, val=val, test=test, classes=2, kind=Regression().fitted([train.y], "train"))


@pytest.mark.parametrize("name", ["stl", "finetune", "halrp-budget"])
def test_a_stream_of_regressions_is_learned_and_scored_by_its_objective(name: str) -> None:
    tasks = [brightness(task) for task in tiny_tasks()[:2]]
    context = tiny_context(2, recipe=replace(TINY, epochs=20))
    method = methods.make(name, context, **({"growth_per_task": 0.5} if name == "halrp-budget" else {}))
    for task in tasks:
        method.learn(task)
    for position, task in enumerate(tasks):
        outputs = method.predict(task.test.x, position)
        explained = score(method, task, task.test, position)
        assert explained == pytest.approx(float(task.objective.score(outputs, task.test.y)), abs=1e-6)
    assert score(method, task, task.train, position) > 0.7, "the last task was learned; the mean alone has 0"
