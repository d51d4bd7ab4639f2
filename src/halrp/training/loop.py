"""The one training loop: cross-entropy by fused Adam or SGD over in-memory batches.

A `Recipe` says how long and how fast; a `Training` is one run of it on one module, advanced epoch by epoch, so that
a caller may look at validation data in between and go on. Everything random in an epoch is seeded by the names of
the run and the epoch's number. The loop waits for the device once per epoch.

Penalties are applied as gradients, in closed form and on top of the loss's: `l2` is λ/2·‖w‖² (the optimiser's coupled
weight decay adds λ·w), `l1` is λ·|w|₁ (adds λ·sign w). Nothing is built on the autograd tape for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DataError, DivergedError, SettingError
from halrp.training.batches import Augment, Data, InMemory, Loaded, refuse_no_batch
from halrp.training.checkpoint import Checkpoints

LATER: dict[str, object] = {"later": True}
"""Marks a setting that files of earlier versions do not have: it is written only if it is not at its default."""


@dataclass(frozen=True)
class Recipe:
    """How a task is trained."""

    epochs: int = 20
    """Passes over the data: all of them for the base; warm-up and fine-tuning together for a later task."""
    batch: int = 128
    """Examples per step (a user's own DataLoader keeps its own)."""
    lr: float = 1e-3
    """The optimiser's learning rate at the start of every stage."""
    schedule: Literal["exponential", "cosine", "constant"] = "exponential"
    """How the rate falls, step by step: by `decay` per pass, along half a cosine to zero, or not at all."""
    decay: float = 0.95
    """Factor per pass of the exponential schedule."""
    decay_examples: float | None = None
    """Examples that count as one pass for `decay`; None means the task's own number. The released code of the paper
    uses 50000 / tasks × fraction for every data set."""
    shuffle: bool = True
    """Draw a new order of the examples for every epoch. Off: the stored order, every time."""
    gradient_scale: float = 1.0
    """Factor on every gradient; Adam feels it only through its epsilon, SGD as a factor on `lr`. The released code of
    the paper uses 10."""
    autocast: torch.dtype | None = None
    """Lower precision for forward passes, for example torch.bfloat16. None: the model's own."""
    channels_last: bool = True
    """Keep pictures and kernels of two-dimensional convolutions with channels last, which is faster."""
    drop_last: bool = field(default=False, metadata=LATER)
    """Leave out the examples that do not fill a last batch, others in every epoch (a user's own DataLoader has its own
    setting)."""
    optimiser: Literal["adam", "sgd"] = field(default="adam", metadata=LATER)
    """What turns gradients into steps."""
    momentum: float = field(default=0.0, metadata=LATER)
    """SGD's momentum."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        passes = self.decay_examples
        for name, good, remedy in (
            ("epochs", isinstance(self.epochs, int) and self.epochs >= 1, "a whole number of at least 1"),
            ("batch", isinstance(self.batch, int) and self.batch >= 1, "a whole number of at least 1"),
            ("lr", 0 < self.lr < math.inf, "a finite number above 0, such as 1e-3"),
            ("decay", 0 < self.decay <= 1, "a factor in (0, 1], such as 0.95"),
            ("decay_examples", passes is None or 0 < passes < math.inf, "a number above 0, or None for the task's own"),
            ("gradient_scale", 0 < self.gradient_scale < math.inf, "a finite number above 0; 1 changes nothing"),
            ("momentum", 0 <= self.momentum < 1, "a factor in [0, 1), such as 0.9"),
        ):
            if not good:
                raise SettingError(f"Recipe({name}={getattr(self, name)!r}) is out of range; give {remedy}")
        if self.schedule not in ("exponential", "cosine", "constant"):
            raise SettingError(
                f"Recipe(schedule={self.schedule!r}) is unknown; choose 'exponential', 'cosine' or 'constant'"
            )
        if self.optimiser not in ("adam", "sgd"):
            raise SettingError(f"Recipe(optimiser={self.optimiser!r}) is unknown; choose 'adam' or 'sgd'")
        if self.momentum and self.optimiser == "adam":
            raise SettingError(
                f"Recipe(momentum={self.momentum!r}) means nothing to Adam; choose optimiser='sgd', or give momentum=0"
            )

    def rate(self, step: int, steps: int, batch: float, examples: int) -> float:
        """The learning rate of a step out of `steps`, each over a batch of a task of so many examples."""
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        return self.lr * math.pow(self.decay, step * batch / (self.decay_examples or examples))


@dataclass(frozen=True)
class Progress:
    """Where a training stands, as told to a progress callback."""

    task: str
    stage: str
    epoch: int
    """Finished epochs of this stage."""
    epochs: int
    step: int
    """Finished steps of the running epoch; 0 when an epoch has just ended."""
    steps: int
    loss: float | None
    """Mean loss of the epoch that has just ended; None inside an epoch."""
    seconds: float
    """Since the stage began."""


Notify = Callable[[Progress], None]


@dataclass(frozen=True)
class Group:
    """Parameters that share a penalty and a learning rate."""

    parameters: Sequence[nn.Parameter]
    l1: float = 0.0
    l2: float = 0.0
    lr: float = 1.0
    """Factor on the recipe's learning rate."""


def cross_entropy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of the module's logits."""
    return F.cross_entropy(module(x), y)


def autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in lower precision; nothing when `dtype` is None."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _optimiser(groups: Sequence[Group], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser, fused, with each group's own l2 as coupled weight decay."""
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

    _TELL_EVERY = 0.5
    """Seconds between progress reports inside an epoch."""

    def __init__(
        self,
        module: nn.Module,
        groups: Iterable[Group],
        data: Data,
        recipe: Recipe,
        *,
        epochs: int,
        names: tuple[object, ...],
        task: str = "",
        stage: str = "",
        notify: Notify | None = None,
        loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = cross_entropy,
        checkpoints: Checkpoints | None = None,
        augment: Augment | None = None,
        after_backward: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a run of `epochs` whose randomness is a function of `names` and the epoch.

        With `checkpoints` the state after every epoch is kept there, and one that is found is gone on from. `augment`
        changes the inputs of every batch. `after_backward` may change the gradients, which hold the l1 penalty and
        not yet the optimiser's l2, before every step; `after_step` may change the parameters, in place, after it. A
        hook that keeps a state of its own is the caller's to restore.
        """
        if augment is not None and not callable(augment):
            raise SettingError(
                f"{task}: augment={augment!r} cannot be called; give augment(x, generator) -> x, or None"
            )
        if recipe.drop_last and isinstance(data, InMemory):
            refuse_no_batch(data.examples, recipe.batch, task)
            data = replace(data, drop_last=True)
        self.module, self.data, self.recipe, self.epochs = module, data, recipe, epochs
        self.task, self.stage, self.epoch = task, stage, 0
        self._names, self._notify, self._loss, self._augment = names, notify, loss, augment
        self._after_backward, self._after_step = after_backward, after_step
        self._groups = [group for group in groups if group.parameters]
        self._device = self._groups[0].parameters[0].device
        # A loader has its own batch size, and no batch is larger than the task.
        own = data.examples / data.steps(recipe.batch) if isinstance(data, Loaded) else recipe.batch
        self._batch = min(own, data.examples)
        self._optimiser = _optimiser(self._groups, recipe)
        self._step = 0
        self._seconds = 0.0
        self._checkpoints = checkpoints
        found = None if checkpoints is None else checkpoints.load(stage)
        if found is not None:
            self._restore(*found)

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that an epoch changes, but the optimiser's moments: parameters and buffers."""
        parameters = [p for group in self._groups for p in group.parameters]
        state: dict[str, Tensor] = {f"parameter/{i}": parameter for i, parameter in enumerate(parameters)}
        # The frozen weight of an adapted layer is a buffer too, and as large as the base.
        buffers = {n: b for n, b in self.module.named_buffers() if not n.endswith("base_weight")}
        return state | {f"buffer/{name}": buffer for name, buffer in buffers.items()}

    def _moments(self) -> dict[str, Tensor]:
        """The tensors of the optimiser."""
        moments = self._optimiser.state_dict()["state"]
        return {f"moment/{i}/{key}": t for i, found in moments.items() for key, t in found.items()}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go on from a kept state; one that does not fit the module is ignored."""
        state = self._state()
        kept = {key: tensor for key, tensor in tensors.items() if not key.startswith("moment/")}
        if {key: t.shape for key, t in kept.items()} != {key: t.shape for key, t in state.items()}:
            return
        parameters = [p for group in self._groups for p in group.parameters]
        moments: dict[int, dict[str, Tensor]] = {}
        for key in tensors.keys() - kept.keys():
            _, index, name = key.split("/")
            moment = tensors[key]
            if moment.dim():  # the fused step reads a parameter and its moments in the order of memory
                moment = torch.empty_like(parameters[int(index)]).copy_(moment)
            moments.setdefault(int(index), {})[name] = moment
        with torch.no_grad():
            for key, tensor in state.items():
                tensor.copy_(kept[key])
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self.epoch, self._step, self._seconds = facts["epoch"], facts["step"], facts["seconds"]

    def run(self, until: int | None = None) -> Training:
        """Train to the end of epoch `until` (default: all epochs); the module is left in evaluation mode."""
        until = self.epochs if until is None else min(until, self.epochs)
        self.module.train()
        try:
            while self.epoch < until:
                self._one_epoch()
        finally:
            self.module.eval()
        if not all(bool(p.isfinite().all()) for group in self._groups for p in group.parameters):
            raise DivergedError(
                f"{self.task}: a parameter is no longer finite after {self.stage}; lower Recipe(lr={self.recipe.lr:g})"
            )
        return self

    def _one_epoch(self) -> None:
        recipe, began = self.recipe, time.perf_counter()
        steps = self.data.steps(recipe.batch)
        total, seen = torch.zeros((), device=self._device), 0
        told = began
        with seeding.isolated(*self._names, self.epoch, device=self._device):
            shuffle = seeding.generator(*self._names, "order", self.epoch) if recipe.shuffle else None
            chance = seeding.generator(*self._names, "augment", self.epoch)
            for number, (x, y) in enumerate(self.data.batches(recipe.batch, shuffle)):
                if self._augment is not None:
                    x = self._augmented(self._augment, x, chance)
                total += self._one_step(x, y, steps) * y.shape[0]
                seen += y.shape[0]
                now = time.perf_counter()
                if self._notify is not None and now - told > self._TELL_EVERY:
                    told = now
                    self._tell(number + 1, steps, None, self._seconds + now - began)
        loss = float(total) / max(seen, 1)
        if not math.isfinite(loss):
            raise DivergedError(
                f"{self.task}: the loss became {loss} in epoch {self.epoch + 1} of {self.epochs} ({self.stage}); "
                f"lower Recipe(lr={recipe.lr:g}) or check the scale of the inputs"
            )
        self.epoch += 1
        self._seconds += time.perf_counter() - began
        if self._checkpoints is not None and self._checkpoints.due():
            facts = {"epoch": self.epoch, "step": self._step, "seconds": self._seconds}
            self._checkpoints.save(self.stage, self._state() | self._moments(), facts)
        self._tell(0, steps, loss, self._seconds)

    def _one_step(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        recipe = self.recipe
        rate = recipe.rate(self._step, steps * self.epochs, self._batch, self.data.examples)
        for own, group in zip(self._groups, self._optimiser.param_groups, strict=True):
            group["lr"] = rate * own.lr
        with autocast(recipe.autocast, self._device):
            loss = self._loss(self.module, x, y)
        self._optimiser.zero_grad(set_to_none=True)
        (loss * recipe.gradient_scale if recipe.gradient_scale != 1.0 else loss).backward()
        for penalised in self._groups:
            if penalised.l1:
                for parameter in penalised.parameters:
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter.detach().sign(), alpha=penalised.l1 * recipe.gradient_scale)
        if self._after_backward is not None:
            self._after_backward()
            self._arrange_gradients()
        self._optimiser.step()
        if self._after_step is not None:
            with torch.no_grad():
                self._after_step()
        self._step += 1
        return loss.detach()

    def _augmented(self, augment: Augment, x: Tensor, chance: torch.Generator) -> Tensor:
        with torch.no_grad():
            found = augment(x, chance)
        if not isinstance(found, Tensor):
            raise DataError(
                f"{self.task}: augment gives {type(found).__name__}; it must return a tensor like its input"
            )
        for what in ("shape", "dtype", "device"):
            if getattr(found, what) != getattr(x, what):
                raise DataError(
                    f"{self.task}: augment changes the {what} of a batch from {getattr(x, what)} to "
                    f"{getattr(found, what)}; it must keep shape, dtype and device"
                )
        return found

    def _arrange_gradients(self) -> None:
        """Lay gradients that a hook has put in out like their parameters: the fused step reads both as memory lies."""
        for group in self._groups:
            for parameter in group.parameters:
                if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                    parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)

    def _tell(self, step: int, steps: int, loss: float | None, seconds: float) -> None:
        if self._notify is not None:
            with seeding.isolated("progress", device=self._device):  # what a callback draws must not change the task
                self._notify(Progress(self.task, self.stage, self.epoch, self.epochs, step, steps, loss, seconds))


@torch.no_grad()
def evaluate(module: nn.Module, data: Data, batch: int = 512, dtype: torch.dtype | None = None) -> tuple[float, float]:
    """Mean cross-entropy and accuracy (0 … 1) of a module in evaluation mode over a task's data."""
    loss: Tensor | float = 0.0
    hits: Tensor | float = 0.0
    seen = 0
    for x, y in data.batches(batch, None):
        with autocast(dtype, y.device):
            logits = module(x).float()
        loss = loss + F.cross_entropy(logits, y, reduction="sum")
        hits = hits + (logits.argmax(1) == y).sum()
        seen += y.shape[0]
    return float(loss) / seen, float(hits) / seen
