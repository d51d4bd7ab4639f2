"""halrp with a bound on the bytes of a task, through its public interface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

from benchmarks.pretrained.domain import Domain, Task
from benchmarks.pretrained.methods import Setting, Stored
from benchmarks.pretrained.training import EPOCHS, predict
from halrp import FromProbe, Halrp, Learner, Recipe


@dataclass(frozen=True)
class Delta:
    """A delta of at most `bytes` bytes."""

    bytes: int
    variant: str = "default"
    start: Setting = field(default_factory=dict)
    """Fields of `FromProbe` that are not as by default."""

    def grid(self, domain: Domain, shots: int) -> tuple[Setting, ...]:
        """The one setting that there is: a user gives a bound and nothing else."""
        return ({"bytes": self.bytes, "variant": self.variant, **self.start},)

    def fit(self, domain: Domain, task: Task, setting: Setting) -> Iterator[Stored]:
        """Learn the task as long as other methods do, all else by the library's defaults; its file counts."""
        method = Halrp.budget(bytes_per_task=setting["bytes"])
        learner = Learner(
            domain.base(),
            head=nn.Linear(domain.width, task.classes),
            base="given",
            method=replace(method, start=FromProbe(**self.start)) if self.start else method,
            recipe=Recipe.auto(epochs=EPOCHS, batch=domain.batch(task.shots)),
            seed=task.seed,
            progress=None,
        )
        delta = learner.learn(task.name, task.train, val=task.val)
        yield Stored("file", delta.bytes, partial(predict, partial(learner.predict, task=task.name)))
