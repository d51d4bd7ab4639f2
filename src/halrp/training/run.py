"""The learning of one task: what the trainings of all its stages share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from torch import nn

from halrp import seeding
from halrp.training.batches import TaskData
from halrp.training.checkpoint import Checkpoints
from halrp.training.distributed import Processes, agreed
from halrp.training.evaluate import evaluate
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.progress import Notify, Stop
from halrp.training.recipe import Recipe
from halrp.training.stopping import Validation


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
    processes: Processes | None = None
    """The processes that learn the task together."""

    prefix: str = ""
    """What the names of stages begin with."""
    stop: Stop = field(default_factory=Stop)
    """Whether the training of the task is to end, in every stage."""

    def training(
        self,
        stage: str,
        module: nn.Module,
        groups: Sequence[Group],
        epochs: int,
        is_final: bool = True,
        frozen_statistics: bool = False,
        keep_best: bool = False,
        drops: bool = False,
        settle: Callable[[], None] | None = None,
    ) -> Training:
        """The training of a stage. Variants of one stage, "fine-tune: mean" and "fine-tune: full", draw alike.

        A stage that is not final is only a start, and all of its steps are taken as they are: it has no early stopping,
        no average and no exact statistics. With `drops`, the recipe's dropout is used.
        """
        recipe = self.recipe if drops else replace(self.recipe, dropout=0.0)
        if not is_final:
            recipe = replace(recipe, patience=None, average=0.0, exact_statistics=False)
        return Training(
            module,
            groups,
            self.data.train,
            recipe,
            Stage(epochs, (*self.seed_key, stage.partition(":")[0]), self.task, f"{self.prefix}{stage}"),
            Hooks(augment=self.data.augment, settle=settle),
            self.notify,
            self.checkpoints,
            None if self.data.val is None else self._validate,
            self.stop,
            self.processes,
            frozen_statistics,
            keep_best,
        )

    def rehearsal(self, data: TaskData) -> TaskRun:
        """The same task on other data, with stages and checkpoints of its own."""
        return replace(self, data=data, prefix="rehearsal of ")

    def _validate(self, module: nn.Module) -> Validation:
        assert self.data.val is not None
        return Validation(*evaluate(module, self.data.val, self.recipe.batch, self.recipe.autocast, self.processes))

    def validation(self, module: nn.Module) -> Validation | None:
        """Loss and score of a module on the validation data, if there are any."""
        if self.data.val is None:
            return None
        with self._validating(module.eval()):
            return self._validate(module)

    def guess(self, module: nn.Module) -> float | None:
        """The score of the best constant answer to the validation data, if there are any and it is known."""
        val = self.data.val
        if val is None:
            return None
        with agreed(self.processes, self.task), self._validating(module):
            return self.data.objective.constant_score(y for _, y in val.batches(self.recipe.batch, None))

    def _validating(self, module: nn.Module) -> AbstractContextManager[None]:
        """The draws of a pass over the validation data: a loader may draw its order."""
        return seeding.isolated(*self.seed_key, "validation", device=next(module.parameters()).device)

    def finish(self) -> None:
        """Remove the checkpoints of a task that is committed."""
        if self.checkpoints is not None:
            self.checkpoints.clear()
