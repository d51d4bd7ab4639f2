"""The training loop: steps of an optimiser over the batches of a task.

A `Training` is one stage of a task's learning on one module, advanced epoch by epoch, so that a caller may evaluate in
between and continue. Everything random in an epoch is seeded by the stage's `seed_key` and the number of the epoch. The
loop waits for the device once per epoch. What a step does with gradients is in `updates`; what several processes that
train together exchange, in `distributed`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import CheckpointWarning, DivergedError, SettingError
from halrp.model.batch import Batch
from halrp.model.layers.norm import freeze_statistics
from halrp.training import stopping
from halrp.training.accumulation import share_of, together
from halrp.training.activations import recomputed_activations, refuse_activations
from halrp.training.augmented import refuse_unlike
from halrp.training.batches import Data, InMemory, Loaded, loss_of
from halrp.training.checkpoint import SMALL, Checkpoints
from halrp.training.compiled import Compiled
from halrp.training.distributed import GradientAverage, Processes
from halrp.training.dropout import dropout
from halrp.training.exact_statistics import ExactStatistics
from halrp.training.groups import Group
from halrp.training.optimiser_state import UnsavableError
from halrp.training.prepare import refuse_no_batch
from halrp.training.progress import Notify, Progress, Stop, StopTraining
from halrp.training.recipe import Recipe, autocast
from halrp.training.requirements import refuse_no_validation, refuse_unbalanced
from halrp.training.saved_state import UnfitError, check_tensors, position_of
from halrp.training.shared_data import SharedDataset, exactly
from halrp.training.stage import Hooks, Loss, Stage, supervised_loss
from halrp.training.stopping import EarlyStopping, Validation
from halrp.training.updates import Rate, Updates

__all__ = ["Group", "Hooks", "Stage", "Training", "supervised_loss"]


class Training:
    """One stage of training of one module, advanced by `run`."""

    REPORT_EVERY = 0.5
    """Seconds between progress reports inside an epoch."""

    def __init__(
        self,
        module: nn.Module,
        groups: Iterable[Group],
        data: Data,
        recipe: Recipe,
        stage: Stage,
        hooks: Hooks | None = None,
        notify: Notify | None = None,
        checkpoints: Checkpoints | None = None,
        validate: Callable[[nn.Module], Validation] | None = None,
        stop: Stop | None = None,
        processes: Processes | None = None,
        frozen_statistics: bool = False,
        keep_best: bool = False,
    ) -> None:
        """Prepare a stage. With `checkpoints` its state is saved there after epochs, and resumed from there.

        `validate` measures the module on validation data. `stop` is shared by all stages that end when one is stopped.
        `processes` train together, each on its part of the data. With `frozen_statistics`, norm layers normalise by the
        running statistics that they have, in training too. With `keep_best` the module is left as it was when its
        validation score was best: before the first epoch, after the last, or with patience after any.
        """
        hooks = Hooks() if hooks is None else hooks
        if hooks.augment is not None and not callable(hooks.augment):
            raise SettingError(
                f"{stage.task}: augment={hooks.augment!r} cannot be called; give augment(x, generator) -> x, or None"
            )
        everything = data
        if recipe.drop_last and isinstance(data, InMemory):
            refuse_no_batch(data.examples, recipe.batch, stage.task)
            data = replace(data, drop_last=True)
        if recipe.balanced:
            data = replace(refuse_unbalanced(data, stage.task), by_class=True)
        refuse_no_validation(recipe, validate, stage.task)
        if recipe.checkpoint_activations:
            refuse_activations(module, recipe.checkpoint_activations)
        self.module, self.data, self.recipe, self.stage = module, data, recipe, stage
        self.epochs, self.epoch = stage.epochs, 0
        self._hooks, self._notify, self._checkpoints = hooks, notify, checkpoints
        loss: Loss = partial(loss_of, data) if hooks.loss is None else hooks.loss
        self._loss = Compiled(loss) if recipe.compile else loss
        self._weight = data.objective.weight if hooks.loss is None else len
        """What a batch counts in means over several."""
        self._validate, self._stop = validate, Stop() if stop is None else stop
        self._frozen, self._starts_at_best = frozen_statistics, keep_best and validate is not None
        exact = recipe.exact_statistics and not frozen_statistics
        self._statistics = ExactStatistics(module, everything, loss, recipe, stage.task) if exact else None
        waits = recipe.patience is not None or self._starts_at_best
        self._stopping = EarlyStopping(recipe.patience or stage.epochs + 1) if waits else None
        # A loader has batches of its own size, and no batch is larger than the task.
        batches = data.steps(recipe.batch)
        batch = data.examples / batches if isinstance(data, (Loaded, SharedDataset)) else recipe.batch
        self._batch = min(batch * recipe.accumulate, data.examples)
        self._steps = math.ceil(batches / recipe.accumulate)
        self._processes, groups = processes, list(groups)
        if processes is not None:
            parameters = [parameter for group in groups for parameter in group.parameters]
            processes.take_first(parameters, f"what {stage.name} trains")
        self._updates = Updates(groups, recipe, self._rate(), self._steps * self.epochs)
        self._average = None if processes is None else GradientAverage(processes, self._updates.parameters)
        self._device = self._updates.device
        self._validates = validate is not None and self._is_validated()
        self._seconds = 0.0
        self._unsaved: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        """The state after the last epoch, if it was not yet time to save it."""
        self.without_gradient: list[nn.Parameter] = list(self._updates.parameters)
        """The parameters that no step of this object gave a gradient; none if it resumed a training."""
        if checkpoints is not None:
            self._resume(checkpoints)

    def _rate(self) -> Rate:
        # Not a method of this object: in a circle, its network would outlive it until garbage is collected.
        steps = self._steps * self.epochs
        return partial(self.recipe.rate, steps=steps, batch=self._batch, examples=self.data.examples)

    def set_rate(self, lr: float) -> None:
        """Train on with another learning rate, from which the recipe's schedule starts."""
        self.recipe = replace(self.recipe, lr=lr)
        self._updates.rate = self._rate()

    @property
    def best_epoch(self) -> int:
        """The epoch that the module is left at when training is over; 0 is before the first."""
        return self.epoch if self._stopping is None or self._stopping.best is None else self._stopping.best.epoch

    @property
    def compared(self) -> tuple[Validation | None, Validation | None]:
        """Loss and score on the validation data before the first epoch and at the end, if they are compared."""
        return (None, None) if self._stopping is None else (self._stopping.start, self._stopping.end)

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left to train."""
        waited = self._stopping is not None and self._stopping.is_over(self.epoch)
        return self.epoch >= self.epochs or self._stop.requested or waited

    def run(self, until: int | None = None) -> Training:
        """Train to the end of epoch `until` (default: all epochs); the module is left in evaluation mode."""
        until = self.epochs if until is None else min(until, self.epochs)
        self._compare_start()
        self._train_mode()
        try:
            with ExitStack() as stack:
                if again := self.recipe.checkpoint_activations:
                    stack.enter_context(recomputed_activations(self.module, again))
                stack.enter_context(dropout(self.module, self.recipe.dropout))
                while self.epoch < until and not self.is_over:
                    self._train_epoch()
        except StopTraining:
            self._stop.requested = True
        except Exception:
            raise
        except BaseException:  # such as Ctrl-C
            self._save_unsaved()
            raise
        finally:
            self._evaluation_mode()
            self._updates.clear_gradients()
        self._measure_statistics()
        if self.is_over and self._stopping is not None:
            self._compare_end()
            self._stopping.restore(self._evaluated())
        elif self.is_over:
            self._settle()
        if not all(bool(parameter.isfinite().all()) for parameter in self._updates.parameters):
            raise DivergedError(
                f"{self.stage.task}: a parameter is no longer finite after {self.stage.name}; "
                f"lower Recipe(lr={self.recipe.lr:g})"
            )
        return self

    def _train_mode(self) -> None:
        if self._statistics is not None:
            self._statistics.restore()
        self.module.train()
        if self._frozen:
            freeze_statistics(self.module)
        self._updates.train()

    def _evaluation_mode(self, averaged: bool = True) -> None:
        self.module.eval()
        self._updates.evaluate(averaged)

    def _measure_statistics(self) -> None:
        """Give the norms of a module in evaluation mode their statistics over all training data, if that is wanted."""
        if self._statistics is not None:
            with seeding.isolated(*self.stage.seed_key, "statistics", device=self._device):  # a loader may draw
                self._statistics.measure(self._processes)

    def _train_epoch(self) -> None:
        recipe, began = self.recipe, time.perf_counter()
        total: Tensor = torch.zeros((), device=self._device)
        seen: Tensor | int = 0
        reported = began
        seed_key, processes = self.stage.seed_key, self._processes
        process = () if processes is None or processes.rank == 0 else ("process", processes.rank)
        with seeding.isolated(*seed_key, self.epoch, *process, device=self._device):
            shuffle = seeding.generator(*seed_key, "order", self.epoch) if recipe.shuffle else None
            noise = seeding.generator(*seed_key, "augment", self.epoch, *process)
            batches = self.data.batches(recipe.batch, shuffle)
            if processes is not None:
                batches = exactly(batches, self.data.steps(recipe.batch), self.stage.task)
            for number, of_step in enumerate(together(batches, recipe.accumulate)):
                weights = [self._weight(y) for _, y in of_step]
                whole = sum(weights)
                self._updates.begin()
                for (x, y), weight in zip(of_step, weights, strict=True):
                    share = 1.0 if len(weights) == 1 else share_of(weight, whole)
                    loss = self._backward(self._augmented(x, noise), y, share)
                    total += loss * weight
                    seen += weight
                if self._average is not None:
                    self._average(whole)
                if self.without_gradient:
                    self.without_gradient = [p for p in self.without_gradient if p.grad is None]
                self._updates.end(self._hooks.after_backward, self._hooks.after_step)
                now = time.perf_counter()
                if now - reported > self.REPORT_EVERY:
                    reported = now
                    self._report(number + 1, None, self._seconds + now - began)
        if processes is not None:
            total, seen = self._over_all(processes, total, seen)
        mean = float(total) / (float(seen) or 1.0)
        if not math.isfinite(mean):
            raise DivergedError(
                f"{self.stage.task}: the loss became {mean} in epoch {self.epoch + 1} of {self.epochs} "
                f"({self.stage.name}); lower Recipe(lr={recipe.lr:g}) or check the scale of the inputs"
            )
        self.epoch += 1
        validation = self._validation()
        self._seconds += time.perf_counter() - began
        self._save()
        self._report(0, mean, self._seconds, validation)
        if processes is not None:
            self._stop.requested = bool(processes.first(self._stop.requested))

    def _over_all(self, processes: Processes, total: Tensor, seen: Tensor | int) -> tuple[Tensor, Tensor]:
        """The epoch's loss over all processes, whose running statistics become their mean."""
        sums = torch.stack([total.double(), torch.as_tensor(seen, dtype=torch.float64, device=self._device)])
        processes.add_flat(sums)
        processes.average([buffer for buffer in self._buffers().values() if buffer.is_floating_point()])
        return sums[0], sums[1]

    def _backward(self, x: Batch, y: Tensor, share: Tensor | float) -> Tensor:
        """The loss of a batch, which is a share of a step; its gradients are added to those of the step."""
        with autocast(self.recipe.autocast, self._device):
            loss = self._loss(self.module, x, y)
        self._updates.backward(loss if isinstance(share, float) and share == 1.0 else loss * share)
        return loss.detach()

    def _augmented(self, x: Batch, noise: torch.Generator) -> Batch:
        if self._hooks.augment is None:
            return x
        with torch.no_grad():
            augmented = self._hooks.augment(x, noise)
        refuse_unlike(augmented, x, self.stage.task)
        return augmented

    def _is_validated(self) -> bool:
        """Whether somebody wants to know loss and score on the validation data after every epoch."""
        wanted = bool(self.recipe.patience is not None or getattr(self._notify, "validates", False))
        return wanted if self._processes is None else bool(self._processes.first(wanted))

    def _validation(self) -> Validation | None:
        """Loss and score on the validation data, where somebody wants to know them."""
        if self._validate is None or not self._validates:
            return None
        decides = self.recipe.patience is not None
        validation = self._measured(as_committed=decides or self._statistics is None)
        if self._stopping is not None and decides:
            self._stopping.update(self.epoch, validation, self._evaluated())
        self._train_mode()
        return validation

    def _compare_start(self) -> None:
        """Measure the start on the validation data, if the module is left there unless training makes it better."""
        if self._starts_at_best and self._stopping is not None and self._stopping.best is None:
            self._stopping.update(0, self._measured(), self._evaluated())

    def _compare_end(self) -> None:
        """Measure the end of training, if it is compared with the start alone; where that is better, half-way too."""
        if self._starts_at_best and self._stopping is not None and self.recipe.patience is None and self.epoch:
            self._stopping.update(self.epoch, self._measured(), self._evaluated())
            if self._stopping.go_halfway(self._evaluated()):
                self._stopping.update(self.epoch, self._measured(), self._evaluated(), is_end=False)

    def _measured(self, as_committed: bool = True) -> Validation:
        """Loss and score as the module would be committed, or, without a pass for its statistics, as it is trained."""
        assert self._validate is not None
        self._evaluation_mode(as_committed)
        if as_committed:
            self._measure_statistics()
        self._settle()
        with seeding.isolated(*self.stage.seed_key, "validation", device=self._device):  # a loader may draw its order
            return Validation(*self._validate(self.module))

    def _settle(self) -> None:
        if self._hooks.settle is not None and self.epoch:
            self._hooks.settle()

    def _report(self, step: int, loss: float | None, seconds: float, validation: Validation | None = None) -> None:
        if self._notify is not None:
            stage = self.stage
            at = Progress(stage.task, stage.name, self.epoch, stage.epochs, step, self._steps, loss, seconds)
            if validation is not None:
                at = replace(at, validation_loss=validation.loss, validation_score=validation.score)
            with seeding.isolated("progress", device=self._device):  # a callback's draws must not change the task
                try:
                    self._notify(at)
                except StopTraining:
                    if self._processes is None:
                        raise
                    self._stop.requested = True  # at the end of the epoch, in every process

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def _buffers(self) -> dict[str, Tensor]:
        # The frozen weight of an adapted layer is a buffer too, and as large as the base.
        return {f"buffer/{n}": b for n, b in self.module.named_buffers() if not n.endswith("base_weight")}

    def _evaluated(self) -> dict[str, Tensor]:
        """What early stopping remembers of an epoch: parameters and buffers of the module."""
        return {f"parameter/{i}": p for i, p in enumerate(self._updates.parameters)} | self._buffers()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Every tensor and number that an epoch changes."""
        tensors = self._updates.tensors() | self._buffers()
        facts = {"epoch": self.epoch, "seconds": self._seconds, **self._updates.facts()}
        if self._stopping is None:
            return tensors, facts
        return tensors | self._stopping.saved_tensors(), facts | self._stopping.facts()

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        try:
            tensors, facts = self._state()
        except UnsavableError as error:
            self._checkpoints = None
            warnings.warn(
                f"{self.stage.task}: the optimiser cannot be saved ({error}), so the stage starts again if it is "
                "interrupted; an optimiser whose state is tensors and numbers can be",
                CheckpointWarning,
                stacklevel=2,
            )
            return
        if self._checkpoints.due():
            self._checkpoints.save(self.stage.name, tensors, facts)
            self._unsaved = None
        else:
            self._unsaved = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}, facts

    def _save_unsaved(self) -> None:
        """Save the state after the last finished epoch, if that was not done when it ended."""
        if self._checkpoints is not None and self._unsaved is not None:
            self._checkpoints.save(self.stage.name, *self._unsaved)
            self._unsaved = None

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Resume from the saved state of the stage; one that does not fit is set aside and the stage starts again."""
        buffers, evaluated = self._buffers(), self._evaluated()
        # Parameters and moments, buffers, and once more both at the best epoch, with some room for names.
        copies = self._updates.copies() + 1
        limit = SMALL + sum(copies * t.numel() * max(4, t.element_size()) + 1024 * copies for t in evaluated.values())
        saved = checkpoints.load(self.stage.name, limit)
        if saved is None:
            return
        tensors, facts = saved
        best = {name: tensor for name, tensor in tensors.items() if name.startswith(stopping.PREFIX)}
        saved_buffers = {name: tensor for name, tensor in tensors.items() if name.startswith("buffer/")}
        updated = {name: t for name, t in tensors.items() if name not in best and name not in saved_buffers}
        # The batches of a loader may be others in every pass.
        steps = None if isinstance(self.data, Loaded) else self._steps
        try:
            position = position_of(facts, self.epochs, steps)
            check_tensors(saved_buffers, buffers)
            restore = self._updates.fitting(updated, facts, position.step)
            if self._stopping is not None:
                self._stopping.resume(best, facts, evaluated, position.epoch)
            elif best:
                raise UnfitError(f"it has {min(best)}")
        except UnfitError as error:
            checkpoints.reject(self.stage.name, str(error))
            return
        restore()
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(saved_buffers[name])
        self.epoch, self._seconds = position.epoch, position.seconds
        self.without_gradient = []
