"""HALRP as a method of the laboratory: the library's `Learner` and nothing else."""

from __future__ import annotations

from torch import Tensor

from halrp import Halrp, Learner
from halrp.lab.methods.contract import Context, Size
from halrp.lab.streams import Task


class HalrpMethod:
    """One frozen base, made by the first task, and a low-rank delta for each later one."""

    def __init__(self, context: Context, method: Halrp | None = None) -> None:
        """Take the run's context and the composition of the method."""
        self.context, self.method = context, method
        self.learner: Learner | None = None

    def learn(self, task: Task) -> None:
        """Learn the base, or a delta."""
        if self.learner is None:
            context = self.context
            self.learner = Learner(
                context.build(task.classes, context.seed),
                head="head",
                method=self.method,
                recipe=context.recipe,
                seed=context.seed,
                progress=context.progress,
            )
        self.learner.learn(task.name, task.train, task.val, classes=task.classes)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task at a position."""
        assert self.learner is not None, "learn a task first"
        return self.learner.predict(x, list(self.learner.tasks)[task])

    def stored(self) -> Size:
        """The base with its buffers, and every delta."""
        assert self.learner is not None, "learn a task first"
        base, deltas = self.learner.base_size, self.learner.tasks.values()
        return Size(base[0] + sum(d.parameters for d in deltas), base[1] + sum(d.bytes for d in deltas))
