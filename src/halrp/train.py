"""The one training loop: cross-entropy by fused Adam over in-memory batches.

A `Recipe` says how long and how fast; a `Training` is one run of it on one module, advanced epoch by epoch, so that
a caller may look at validation data in between and go on. Everything random in an epoch is seeded by the names of
the run and the epoch's number. The loop waits for the device once per epoch.

Penalties are applied as gradients, in closed form and on top of the loss's: `l2` is λ/2·‖w‖² (Adam's coupled weight
decay adds λ·w), `l1` is λ·|w|₁ (adds λ·sign w). Nothing is built on the autograd tape for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from halrp import draws
from halrp.checkpoint import Checkpoints
from halrp.data import Data, Loaded
from halrp.errors import DivergedError, SettingError


@dataclass(frozen=True)
class Recipe:
    """How a task is trained."""

    epochs: int = 20
    """Passes over the data: all of them for the base; warm-up and fine-tuning together for a later task."""
    batch: int = 128
    """Examples per step (a user's own DataLoader keeps its own)."""
    lr: float = 1e-3
    """Adam's learning rate at the start of every stage."""
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
    """Factor on every gradient; Adam feels it only through its epsilon. The released code of the paper uses 10."""
    autocast: torch.dtype | None = None
    """Lower precision for forward passes, for example torch.bfloat16. None: the model's own."""
    channels_last: bool = True
    """Keep pictures and kernels of two-dimensional convolutions with channels last, which is faster."""

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
        ):
            if not good:
                raise SettingError(f"Recipe({name}={getattr(self, name)!r}) is out of range; give {remedy}")
        if self.schedule not in ("exponential", "cosine", "constant"):
            raise SettingError(
                f"Recipe(schedule={self.schedule!r}) is unknown; choose 'exponential', 'cosine' or 'constant'"
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
    """Parameters that share a penalty."""

    parameters: Sequence[nn.Parameter]
    l1: float = 0.0
    l2: float = 0.0


def cross_entropy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of the module's logits."""
    return F.cross_entropy(module(x), y)


def autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in lower precision; nothing when `dtype` is None."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


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
    ) -> None:
        """Prepare a run of `epochs` whose randomness is a function of `names` and the epoch.

        With `checkpoints` the state after every epoch is kept there, and one that is found is gone on from.
        """
        self.module, self.data, self.recipe, self.epochs = module, data, recipe, epochs
        self.task, self.stage, self.epoch = task, stage, 0
        self._names, self._notify, self._loss = names, notify, loss
        self._groups = [group for group in groups if group.parameters]
        self._device = self._groups[0].parameters[0].device
        # A loader has its own batch size, and no batch is larger than the task.
        own = data.examples / data.steps(recipe.batch) if isinstance(data, Loaded) else recipe.batch
        self._batch = min(own, data.examples)
        scale = recipe.gradient_scale
        self._optimiser = torch.optim.Adam(
            [{"params": list(g.parameters), "weight_decay": g.l2 * scale} for g in self._groups],
            lr=recipe.lr,
            fused=True,
        )
        self._step = 0
        self._seconds = 0.0
        self._checkpoints = checkpoints
        found = None if checkpoints is None else checkpoints.load(stage)
        if found is not None:
            self._restore(*found)

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that an epoch changes: parameters, buffers, and the optimiser's moments."""
        parameters = [p for group in self._groups for p in group.parameters]
        state: dict[str, Tensor] = {f"parameter/{i}": parameter for i, parameter in enumerate(parameters)}
        # The frozen weight of an adapted layer is a buffer too, and as large as the base.
        buffers = {n: b for n, b in self.module.named_buffers() if not n.endswith("base_weight")}
        state |= {f"buffer/{name}": buffer for name, buffer in buffers.items()}
        moments = self._optimiser.state_dict()["state"]
        return state | {f"moment/{i}/{key}": t for i, found in moments.items() for key, t in found.items()}

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
        with draws.isolated(*self._names, self.epoch, device=self._device):
            shuffle = draws.generator(*self._names, "order", self.epoch) if recipe.shuffle else None
            for number, (x, y) in enumerate(self.data.batches(recipe.batch, shuffle)):
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
        if self._checkpoints is not None:
            facts = {"epoch": self.epoch, "step": self._step, "seconds": self._seconds}
            self._checkpoints.save(self.stage, self._state(), facts)
        self._tell(0, steps, loss, self._seconds)

    def _one_step(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        recipe = self.recipe
        rate = recipe.rate(self._step, steps * self.epochs, self._batch, self.data.examples)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        with autocast(recipe.autocast, self._device):
            loss = self._loss(self.module, x, y)
        self._optimiser.zero_grad(set_to_none=True)
        (loss * recipe.gradient_scale if recipe.gradient_scale != 1.0 else loss).backward()
        for penalised in self._groups:
            if penalised.l1:
                for parameter in penalised.parameters:
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter.detach().sign(), alpha=penalised.l1 * recipe.gradient_scale)
        self._optimiser.step()
        self._step += 1
        return loss.detach()

    def _tell(self, step: int, steps: int, loss: float | None, seconds: float) -> None:
        if self._notify is not None:
            with draws.isolated("progress", device=self._device):  # what a callback draws must not change the task
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
