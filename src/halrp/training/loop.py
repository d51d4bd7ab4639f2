"""The training loop: fused Adam or SGD over the batches of a task.

A `Training` is one stage of a task's learning on one module, advanced epoch by epoch, so that a caller may evaluate in
between and continue. Everything random in an epoch is seeded by the stage's `seed_key` and the number of the epoch. The
loop waits for the device once per epoch.

Penalties are applied as gradients, in closed form and on top of the loss's: `l2` is λ/2·‖w‖² (the optimiser's coupled
weight decay adds λ·w), `l1` is λ·|w|₁ (adds λ·sign w). Nothing is built on the autograd tape for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DataError, DivergedError, SettingError
from halrp.objectives import classification
from halrp.training.batches import Augment, Data, InMemory, Loaded, refuse_no_batch
from halrp.training.checkpoint import SMALL, Checkpoints
from halrp.training.master_weights import MasterWeights
from halrp.training.progress import Notify, Progress
from halrp.training.recipe import Recipe, autocast
from halrp.training.saved_state import MOMENTS, Position, UnfitError, check_tensors, moments_of, position_of


@dataclass(frozen=True)
class Group:
    """Parameters that share a penalty and a learning rate."""

    parameters: Sequence[nn.Parameter]
    l1: float = 0.0
    l2: float = 0.0
    lr: float = 1.0
    """Factor on the recipe's learning rate."""


@dataclass(frozen=True)
class Stage:
    """A stage of a task's learning: the base, warm-up or fine-tuning."""

    epochs: int
    seed_key: tuple[object, ...]
    """What every random draw is a function of, together with the number of the epoch."""
    task: str = ""
    """The task's name in progress reports and errors."""
    name: str = ""
    """The stage's name in progress reports, errors and checkpoints."""


def supervised_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The objective's loss of the module's outputs: mean cross-entropy."""
    return classification.loss(module(x), y)


@dataclass(frozen=True)
class Hooks:
    """What a caller may change in a training. A hook that has a state must restore it itself after an interruption."""

    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = supervised_loss
    """`loss(module, x, y)`, a scalar tensor to minimise."""
    augment: Augment | None = None
    """Changes the inputs of every batch."""
    after_backward: Callable[[], None] | None = None
    """May change the gradients before a step; they include the l1 penalty, and not yet the optimiser's l2."""
    after_step: Callable[[], None] | None = None
    """May change the parameters in place after a step."""


def _optimiser(groups: Sequence[Group], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser, fused, with the l2 of each group as coupled weight decay."""
    options = [{"params": list(g.parameters), "weight_decay": g.l2 * recipe.gradient_scale} for g in groups]
    if recipe.optimiser == "adam":
        return torch.optim.Adam(options, lr=recipe.lr, fused=True)
    optimiser = torch.optim.SGD(options, lr=recipe.lr, momentum=recipe.momentum, fused=True)
    if recipe.momentum:
        # From zero the first step is the same; a parameter that gets its first gradient later needs a buffer by then.
        for parameter in (p for group in groups for p in group.parameters):
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


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
    ) -> None:
        """Prepare a stage. With `checkpoints` its state is saved there after epochs, and resumed from there."""
        hooks = Hooks() if hooks is None else hooks
        if hooks.augment is not None and not callable(hooks.augment):
            raise SettingError(
                f"{stage.task}: augment={hooks.augment!r} cannot be called; give augment(x, generator) -> x, or None"
            )
        if recipe.drop_last and isinstance(data, InMemory):
            refuse_no_batch(data.examples, recipe.batch, stage.task)
            data = replace(data, drop_last=True)
        self.module, self.data, self.recipe, self.stage = module, data, recipe, stage
        self.epochs, self.epoch = stage.epochs, 0
        self._hooks, self._notify, self._checkpoints = hooks, notify, checkpoints
        self._groups = [group for group in groups if group.parameters]
        self._parameters = [parameter for group in self._groups for parameter in group.parameters]
        self._device = self._parameters[0].device
        # A loader has its own batch size, and no batch is larger than the task.
        batch = data.examples / data.steps(recipe.batch) if isinstance(data, Loaded) else recipe.batch
        self._batch = min(batch, data.examples)
        self._weights = MasterWeights(self._parameters)
        optimised = iter(self._weights.optimised)
        self._optimiser = _optimiser(
            [replace(group, parameters=[next(optimised) for _ in group.parameters]) for group in self._groups], recipe
        )
        self._step = 0
        self._seconds = 0.0
        self.without_gradient: list[nn.Parameter] = list(self._parameters)
        """The parameters that no step of this object gave a gradient; none if it resumed a training."""
        if checkpoints is not None:
            self._resume(checkpoints)

    def run(self, until: int | None = None) -> Training:
        """Train to the end of epoch `until` (default: all epochs); the module is left in evaluation mode."""
        until = self.epochs if until is None else min(until, self.epochs)
        self.module.train()
        try:
            while self.epoch < until:
                self._train_epoch()
        finally:
            self.module.eval()
            for parameter in (*self._parameters, *self._weights.optimised):
                parameter.grad = None
        if not all(bool(parameter.isfinite().all()) for parameter in self._parameters):
            raise DivergedError(
                f"{self.stage.task}: a parameter is no longer finite after {self.stage.name}; "
                f"lower Recipe(lr={self.recipe.lr:g})"
            )
        return self

    def _train_epoch(self) -> None:
        recipe, began = self.recipe, time.perf_counter()
        steps = self.data.steps(recipe.batch)
        total, seen = torch.zeros((), device=self._device), 0
        reported = began
        seed_key = self.stage.seed_key
        with seeding.isolated(*seed_key, self.epoch, device=self._device):
            shuffle = seeding.generator(*seed_key, "order", self.epoch) if recipe.shuffle else None
            noise = seeding.generator(*seed_key, "augment", self.epoch)
            for number, (x, y) in enumerate(self.data.batches(recipe.batch, shuffle)):
                total += self._train_step(self._augmented(x, noise), y, steps) * y.shape[0]
                seen += y.shape[0]
                now = time.perf_counter()
                if now - reported > self.REPORT_EVERY:
                    reported = now
                    self._report(number + 1, steps, None, self._seconds + now - began)
        loss = float(total) / max(seen, 1)
        if not math.isfinite(loss):
            raise DivergedError(
                f"{self.stage.task}: the loss became {loss} in epoch {self.epoch + 1} of {self.epochs} "
                f"({self.stage.name}); lower Recipe(lr={recipe.lr:g}) or check the scale of the inputs"
            )
        self.epoch += 1
        self._seconds += time.perf_counter() - began
        if self._checkpoints is not None and self._checkpoints.due():
            position = {"epoch": self.epoch, "step": self._step, "seconds": self._seconds}
            self._checkpoints.save(self.stage.name, self._state() | self._moments(), position)
        self._report(0, steps, loss, self._seconds)

    def _train_step(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        recipe, hooks = self.recipe, self._hooks
        rate = recipe.rate(self._step, steps * self.epochs, self._batch, self.data.examples)
        for group, options in zip(self._groups, self._optimiser.param_groups, strict=True):
            options["lr"] = rate * group.lr
        with autocast(recipe.autocast, self._device):
            loss = hooks.loss(self.module, x, y)
        for parameter in self._parameters:
            parameter.grad = None
        (loss * recipe.gradient_scale if recipe.gradient_scale != 1.0 else loss).backward()
        if self.without_gradient:
            self.without_gradient = [parameter for parameter in self.without_gradient if parameter.grad is None]
        self._add_l1_gradients()
        if hooks.after_backward is not None:
            hooks.after_backward()
            self._match_gradient_layout()
        self._weights.take_gradients()
        self._optimiser.step()
        self._weights.write()
        if hooks.after_step is not None:
            with torch.no_grad():
                hooks.after_step()
            self._weights.read()
        self._step += 1
        return loss.detach()

    def _augmented(self, x: Tensor, noise: torch.Generator) -> Tensor:
        if self._hooks.augment is None:
            return x
        with torch.no_grad():
            augmented = self._hooks.augment(x, noise)
        if not isinstance(augmented, Tensor):
            raise DataError(
                f"{self.stage.task}: augment gives {type(augmented).__name__}; it must return a tensor like its input"
            )
        for attribute in ("shape", "dtype", "device"):
            before, after = getattr(x, attribute), getattr(augmented, attribute)
            if before != after:
                raise DataError(
                    f"{self.stage.task}: augment changes the {attribute} of a batch from {before} to {after}; "
                    "it must keep shape, dtype and device"
                )
        return augmented

    def _add_l1_gradients(self) -> None:
        for group in self._groups:
            for parameter in group.parameters if group.l1 else ():
                if parameter.grad is not None:
                    alpha = group.l1 * self.recipe.gradient_scale
                    parameter.grad.add_(parameter.detach().sign(), alpha=alpha)

    def _match_gradient_layout(self) -> None:
        """Give gradients that a hook has replaced the strides of their parameters: the fused step assumes them."""
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)

    def _report(self, step: int, steps: int, loss: float | None, seconds: float) -> None:
        if self._notify is not None:
            stage = self.stage
            with seeding.isolated("progress", device=self._device):  # a callback's draws must not change the task
                self._notify(Progress(stage.task, stage.name, self.epoch, stage.epochs, step, steps, loss, seconds))

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that an epoch changes, except the optimiser's moments: parameters and buffers."""
        state: dict[str, Tensor] = {f"parameter/{i}": parameter for i, parameter in enumerate(self._weights.optimised)}
        # The frozen weight of an adapted layer is a buffer too, and as large as the base.
        buffers = {n: b for n, b in self.module.named_buffers() if not n.endswith("base_weight")}
        return state | {f"buffer/{name}": buffer for name, buffer in buffers.items()}

    def _moments(self) -> dict[str, Tensor]:
        """The tensors of the optimiser."""
        moments = self._optimiser.state_dict()["state"]
        return {f"moment/{i}/{key}": t for i, tensors in moments.items() for key, t in tensors.items()}

    def _resume(self, checkpoints: Checkpoints) -> None:
        """Resume from the saved state of the stage; one that does not fit is set aside and the stage starts again."""
        state = self._state()
        # Parameters, buffers, and up to two moments of each parameter, with some room for names.
        limit = SMALL + sum(4 * t.numel() * t.element_size() + 1024 for t in state.values())
        saved = checkpoints.load(self.stage.name, limit)
        if saved is None:
            return
        tensors, facts = saved
        moments = {key: tensor for key, tensor in tensors.items() if key.startswith("moment/")}
        kinds = MOMENTS[type(self._optimiser).__name__]
        if self.recipe.optimiser == "sgd" and not self.recipe.momentum:
            kinds = frozenset()
        # The batches of a loader may be others in every pass.
        steps = None if isinstance(self.data, Loaded) else self.data.steps(self.recipe.batch)
        try:
            position = position_of(facts, self.epochs, steps)
            check_tensors({key: tensor for key, tensor in tensors.items() if key not in moments}, state)
            by_parameter = moments_of(moments, self._weights.optimised, kinds, position.step)
        except UnfitError as error:
            checkpoints.reject(self.stage.name, str(error))
            return
        self._restore({key: tensors[key] for key in state}, by_parameter, position)

    def _restore(
        self, tensors: Mapping[str, Tensor], moments: Mapping[int, dict[str, Tensor]], position: Position
    ) -> None:
        state = self._state()
        for index, parts in moments.items():
            for name, moment in parts.items():
                if moment.dim():  # the fused step assumes that a moment has the strides of its parameter
                    parts[name] = torch.empty_like(self._weights.optimised[index]).copy_(moment)
        with torch.no_grad():
            for key, tensor in state.items():
                tensor.copy_(tensors[key])
        self._weights.write()
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.epoch, self._step, self._seconds = position
        self.without_gradient = []
