"""The learning of one task: what the trainings of all its stages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from halrp.training.batches import TaskData
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.progress import Notify
from halrp.training.recipe import Recipe


@dataclass(frozen=True)
class TaskRun:
    """A task's data and settings, from which the training of each of its stages is made."""

    task: str
    data: TaskData
    recipe: Recipe
    seed_key: tuple[object, ...]
    """What every random draw of the task is a function of: seed, base fingerprint, task name."""
    notify: Notify | None = None
    checkpoints: Checkpoints | None = None

    def training(self, stage: str, module: nn.Module, groups: Sequence[Group], epochs: int) -> Training:
        """The training of a stage. Variants of one stage, "fine-tune: mean" and "fine-tune: full", draw alike."""
        return Training(
            module,
            groups,
            self.data.train,
            self.recipe,
            Stage(epochs, (*self.seed_key, stage.partition(":")[0]), self.task, stage),
            Hooks(augment=self.data.augment),
            self.notify,
            self.checkpoints,
        )

    def finish(self) -> None:
        """Remove the checkpoints of a task that is committed."""
        if self.checkpoints is not None:
            self.checkpoints.clear()
