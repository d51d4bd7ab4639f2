"""How a task is trained: `Recipe`, the settings of the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from halrp.checks import is_number, is_whole
from halrp.errors import SettingError
from halrp.training.optimisers import refuse_optimiser, refuse_scheduler

LATER: dict[str, object] = {"later": True}
"""Marks a setting that files of earlier versions do not have: it is written only if it is not at its default."""
BEYOND_PAPER = ("average", "exact_statistics", "dropout")
"""What can be chosen and the paper does not have."""
AUTOMATIC = ("epochs", "batch", "lr", "schedule", "rate_warm_up", "balanced_steps", *BEYOND_PAPER)
"""The settings that can be chosen for each task."""
MakeOptimiser: TypeAlias = Callable[[list[dict[str, Any]]], Optimizer]
"""`make(groups)`: an optimiser of parameter groups in torch's form. A class of torch.optim is one."""
MakeScheduler: TypeAlias = Callable[..., LRScheduler]
"""`make(optimiser, steps)`: a scheduler for a number of steps. A class of torch.optim.lr_scheduler is one."""


@dataclass(frozen=True)
class Rates:
    """Factors on the learning rate by kind of parameter; 0 keeps a kind as it is."""

    head: float = 1.0
    scales: float = 1.0
    """The scales r and s of adapted layers."""
    factors: float = 1.0
    """The factors p and q of adapted layers."""
    norms: float = 1.0
    biases: float = 1.0
    dense: float = 1.0
    """Every other weight: those of the base and of warm-up, and those that a task stores dense."""

    def __post_init__(self) -> None:
        """Refuse what is no factor."""
        for name, value in vars(self).items():
            if not is_number(value, 0):
                raise SettingError(f"Recipe(rates={{{name!r}: {value!r}}}) is out of range; give a factor of 0 or more")


@dataclass(frozen=True)
class Recipe:
    """How a task is trained."""

    epochs: int = 20
    """Passes over the data: all of them for the base; warm-up and fine-tuning together for a later task."""
    batch: int = 128
    """Examples per step (a DataLoader has its own batch size)."""
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
    """A new order of the examples for every epoch. Off: the stored order, every time."""
    gradient_scale: float = 1.0
    """Factor on every gradient; Adam sees it only through its epsilon, SGD like a factor on `lr`. The released code of
    the paper uses 10."""
    autocast: torch.dtype | None = None
    """Lower precision for forward passes: torch.bfloat16, or torch.float16 with a scaled loss. None: the model's
    own."""
    channels_last: bool = True
    """Keep pictures and kernels of two-dimensional convolutions with channels last, which is faster."""
    drop_last: bool = field(default=False, metadata=LATER)
    """Leave out the examples that do not fill a last batch, others in every epoch (a DataLoader has its own
    setting)."""
    optimiser: Literal["adam", "sgd", "adamw"] | MakeOptimiser = field(default="adam", metadata=LATER)
    """What turns gradients into steps: a name, a class of torch.optim, or a function of parameter groups, such as
    `functools.partial(torch.optim.RMSprop, alpha=0.9)`."""
    momentum: float = field(default=0.0, metadata=LATER)
    """SGD's momentum."""
    scheduler: MakeScheduler | None = field(default=None, metadata=LATER)
    """A scheduler in place of `schedule`, stepped after every step: a class of torch.optim.lr_scheduler, or a function
    of the optimiser and the number of steps."""
    rates: Rates | Mapping[str, float] = field(default=Rates(), metadata=LATER)
    """Factors on the learning rate by kind of parameter, such as `{"head": 10}`."""
    weight_decay: float | None = field(default=None, metadata=LATER)
    """The optimiser's weight decay of weights, not of norms, biases and scales: decoupled for AdamW, coupled for Adam
    and SGD. None: the optimiser's default."""
    clip: float | None = field(default=None, metadata=LATER)
    """The largest norm of the gradient of all parameters together; a longer one is shortened to it."""
    accumulate: int = field(default=1, metadata=LATER)
    """Batches per step. The loss of a step is the mean over the examples of all of them."""
    rate_warm_up: float = field(default=0, metadata=LATER)
    """Steps in which the rate rises linearly to its schedule; below 1, the share of a stage's steps."""
    ema: float | None = field(default=None, metadata=LATER)
    """Decay of a moving average of the parameters, such as 0.999. The average is evaluated and committed. At step t
    the decay is at most (1 + t) / (10 + t), so that the average forgets where a short training started."""
    patience: int | None = field(default=None, metadata=LATER)
    """Epochs without a better validation score after which a stage ends; the best epoch is committed. On equal scores
    the lower loss is better. Warm-up is not shortened."""
    balanced: bool = field(default=False, metadata=LATER)
    """Draw examples with replacement so that every class is equally likely (classes as labels, data in memory)."""
    compile: bool = field(default=False, metadata=LATER)
    """Compile forward and backward passes with torch.compile, which pays for long trainings of large models. Dropout
    then draws other numbers."""
    checkpoint_activations: Literal[False, True, "cheap"] = field(default=False, metadata=LATER)
    """Compute activations again in the backward pass instead of keeping them: less memory, more time. With "cheap" the
    results of products and convolutions are kept, and all else is computed again, which takes less time."""
    balanced_steps: bool = field(default=False, metadata=LATER)
    """Scale the rate of each part of a delta by the curvature of the loss along it, so that a step of any part changes
    the loss alike: by about the square of `lr`, if all its entries move. Where the start of a task measures no
    curvature, the rate is that of Adam all the same."""
    average: float = field(default=0.0, metadata=LATER)
    """Share of a stage's last steps over which parameters are averaged, such as 0.5. The average is evaluated and
    committed. Warm-up has none."""
    exact_statistics: bool = field(default=False, metadata=LATER)
    """Give batch norms the mean and variance of all training data, in one more pass, whenever a network is evaluated or
    committed, instead of a moving average over the last batches. Warm-up keeps the latter, and statistics that are
    frozen stay as they are."""
    dropout: float = field(default=0.0, metadata=LATER)
    """Share of the inputs of the last two linear layers before the head that is dropped at random while a task is
    fine-tuned. The base and warm-up train without."""
    automatic: tuple[str, ...] = field(default=(), metadata=LATER)
    """The settings that are chosen for each task when it is learned; see `Recipe.auto`."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        passes, warm_up = self.decay_examples, self.rate_warm_up
        for name, good, remedy in (
            ("epochs", isinstance(self.epochs, int) and self.epochs >= 1, "a whole number of at least 1"),
            ("batch", isinstance(self.batch, int) and self.batch >= 1, "a whole number of at least 1"),
            ("lr", 0 < self.lr < math.inf, "a finite number above 0, such as 1e-3"),
            ("decay", 0 < self.decay <= 1, "a factor in (0, 1], such as 0.95"),
            ("decay_examples", passes is None or 0 < passes < math.inf, "a number above 0, or None for the task's own"),
            ("gradient_scale", 0 < self.gradient_scale < math.inf, "a finite number above 0; 1 changes nothing"),
            ("momentum", 0 <= self.momentum < 1, "a factor in [0, 1), such as 0.9"),
            ("weight_decay", self.weight_decay is None or is_number(self.weight_decay, 0), "a number of 0 or more"),
            ("clip", self.clip is None or (is_number(self.clip) and self.clip > 0), "a norm above 0, or None"),
            ("accumulate", is_whole(self.accumulate, 1), "a whole number of at least 1"),
            ("rate_warm_up", is_number(warm_up, 0) and (warm_up < 1 or warm_up % 1 == 0), "steps, or a share below 1"),
            ("ema", self.ema is None or (is_number(self.ema, 0) and self.ema < 1), "a decay in [0, 1), or None"),
            ("patience", self.patience is None or is_whole(self.patience, 1), "a number of epochs of at least 1"),
            ("average", is_number(self.average, 0) and self.average <= 1, "a share in [0, 1], such as 0.5"),
            ("dropout", is_number(self.dropout, 0) and self.dropout < 1, "a share in [0, 1), such as 0.4"),
        ):
            if not good:
                raise SettingError(f"Recipe({name}={getattr(self, name)!r}) is out of range; give {remedy}")
        for name in ("balanced", "compile", "balanced_steps", "exact_statistics"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"Recipe({name}={getattr(self, name)!r}) is out of range; give True or False")
        again = self.checkpoint_activations
        if not isinstance(again, bool) and again != "cheap":
            raise SettingError(f"Recipe(checkpoint_activations={again!r}) is out of range; give True, False or 'cheap'")
        if self.schedule not in ("exponential", "cosine", "constant"):
            raise SettingError(
                f"Recipe(schedule={self.schedule!r}) is unknown; choose 'exponential', 'cosine' or 'constant'"
            )
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise SettingError(
                f"Recipe(autocast={self.autocast!r}) is unknown; give torch.bfloat16 or torch.float16, or None for the "
                "model's own"
            )
        object.__setattr__(self, "automatic", tuple(self.automatic))
        for name in self.automatic:
            if name not in AUTOMATIC:
                raise SettingError(f"Recipe(automatic=...) has {name!r}; what can be chosen is {', '.join(AUTOMATIC)}")
        refuse_optimiser(self.optimiser)
        refuse_scheduler(self.scheduler)
        if not isinstance(self.rates, Rates):
            object.__setattr__(self, "rates", _rates(self.rates))
        self._refuse_contradictions()

    @staticmethod
    def auto(**given: Any) -> Recipe:
        """A recipe that chooses for each task what is not `given`: epochs, batch, rates, and what is made of the end.

        `halrp.training.auto` has the rules. What was chosen is in the provenance of the task.
        """
        return Recipe(**given, automatic=tuple(name for name in AUTOMATIC if name not in given))

    def _refuse_contradictions(self) -> None:
        if self.momentum and self.optimiser != "sgd":
            name = "Adam" if self.optimiser == "adam" else "this optimiser"
            raise SettingError(
                f"Recipe(momentum={self.momentum!r}) means nothing to {name}; choose optimiser='sgd', or give "
                "momentum=0"
            )
        if self.scheduler is not None and self.rate_warm_up:
            raise SettingError(
                f"Recipe(rate_warm_up={self.rate_warm_up!r}) belongs to `schedule`; with a scheduler of your own, put "
                "the warm-up into it (torch.optim.lr_scheduler.SequentialLR), or give rate_warm_up=0"
            )
        if self.ema is not None and self.average:
            raise SettingError(
                f"Recipe(ema={self.ema!r}, average={self.average!r}): there is one average of the parameters; give "
                "ema=None or average=0"
            )
        if self.balanced and not self.shuffle:
            raise SettingError("Recipe(balanced=True, shuffle=False): drawing by class has no stored order; drop one")

    def rate(self, step: int, steps: int, batch: float, examples: int) -> float:
        """The learning rate of a step out of `steps`, each over `batch` of the task's `examples`."""
        if self.schedule == "constant":
            rate = self.lr
        elif self.schedule == "cosine":
            rate = self.lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        else:
            rate = self.lr * math.pow(self.decay, step * batch / (self.decay_examples or examples))
        warm_up = self.rate_warm_up if self.rate_warm_up >= 1 else self.rate_warm_up * steps
        return rate if step + 1 >= warm_up else rate * (step + 1) / warm_up


def _rates(given: Mapping[str, float]) -> Rates:
    kinds = [kind.name for kind in fields(Rates)]
    if not isinstance(given, Mapping):
        raise SettingError(f"Recipe(rates={given!r}) is no mapping; give factors by kind, such as {{'head': 10}}")
    for name in given:
        if name not in kinds:
            raise SettingError(f"Recipe(rates={{{name!r}: ...}}) is no kind of parameter; choose from {kinds}")
    return Rates(**given)


def autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in lower precision; nothing when `dtype` is None."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
