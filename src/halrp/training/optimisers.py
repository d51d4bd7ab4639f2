"""Optimisers and schedulers of torch, by name, class or function: which a recipe may have, and how they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halrp.errors import SettingError

NAMED: dict[str, type[Optimizer]] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
"""Optimisers that a recipe names; the step of each is fused."""
_REFUSED = {
    torch.optim.LBFGS: "evaluates the loss several times in a step",
    torch.optim.SparseAdam: "takes sparse gradients only",
}
_STEPS = ("T_max", "total_steps", "total_iters")
"""What torch's schedulers call the number of steps."""


def _classes(module: Any, root: type) -> dict[str, type]:
    kinds = [k for k in vars(module).values() if isinstance(k, type) and issubclass(k, root) and k is not root]
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}


TORCH: dict[str, type] = _classes(torch.optim, Optimizer) | _classes(lr_scheduler, LRScheduler)
"""Torch's own optimisers and schedulers, by the name with which a task's file records them."""


def refuse_optimiser(optimiser: object) -> None:
    """Raise for what no training can be optimised with."""
    kind = _class_of(optimiser)
    if isinstance(optimiser, str) or not callable(optimiser):
        if optimiser not in NAMED:
            raise SettingError(
                f"Recipe(optimiser={optimiser!r}) is unknown; choose {', '.join(map(repr, NAMED))}, a class of "
                "torch.optim, or a function of parameter groups that returns an optimiser"
            )
    elif kind in _REFUSED:
        raise SettingError(f"Recipe(optimiser={name_of(optimiser)}) {_REFUSED[kind]}; choose another, such as 'adam'")
    elif isinstance(optimiser, functools.partial) and kind is not None and "lr" in optimiser.keywords:
        raise SettingError(
            f"Recipe(optimiser={name_of(optimiser)}) has a rate of its own, {optimiser.keywords['lr']!r}; give it as "
            f"Recipe(lr={optimiser.keywords['lr']!r})"
        )


def refuse_scheduler(scheduler: object) -> None:
    """Raise for what no learning rate can follow."""
    if scheduler is None:
        return
    if not callable(scheduler):
        raise SettingError(
            f"Recipe(scheduler={scheduler!r}) cannot be called; give a class of torch.optim.lr_scheduler or a function "
            "of the optimiser and the number of steps"
        )
    kind = _class_of(scheduler)
    if kind is not None and issubclass(kind, ReduceLROnPlateau):
        raise SettingError(
            "Recipe(scheduler=ReduceLROnPlateau) follows a score and not the steps; choose another, or use patience"
        )


def make_optimiser(make: str | Callable[..., Any], groups: list[dict[str, Any]], **options: Any) -> Optimizer:
    """The optimiser of some parameter groups in torch's form; `options` are those of a named one."""
    parameters = {id(p) for group in groups for p in group["params"]}
    try:
        made = NAMED[make](groups, fused=True, **options) if isinstance(make, str) else make(groups)  # type: ignore[call-arg]
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"Recipe(optimiser={name_of(make)}) cannot be made for these parameters: {error}") from error
    if not isinstance(made, Optimizer):
        raise SettingError(
            f"Recipe(optimiser={name_of(make)}) gives {type(made).__name__}; it must return a torch.optim.Optimizer"
        )
    if {id(p) for group in made.param_groups for p in group["params"]} != parameters:
        raise SettingError(
            f"Recipe(optimiser={name_of(make)}) optimises other parameters than those of the groups that it is given; "
            "pass all of them on"
        )
    return made


def make_scheduler(make: Callable[..., Any], optimiser: Optimizer, steps: int) -> LRScheduler:
    """The scheduler of an optimiser over a number of steps.

    A class of torch, or a partial of one, gets the number as the argument that means it, unless it has it already.
    """
    kind = _class_of(make)
    try:
        if kind is None:
            made = make(optimiser, steps)
        else:
            given = make.keywords if isinstance(make, functools.partial) else {}
            total = [
                n for n in _STEPS if n in inspect.signature(kind).parameters and not given.keys() & {*_STEPS, "epochs"}
            ]
            made = make(optimiser, **dict.fromkeys(total, steps))
    except (TypeError, ValueError) as error:
        raise SettingError(f"Recipe(scheduler={name_of(make)}) cannot be made for {steps} steps: {error}") from error
    if not isinstance(made, LRScheduler):
        raise SettingError(
            f"Recipe(scheduler={name_of(make)}) gives {type(made).__name__}; it must return an LRScheduler"
        )
    return made


def name_of(make: Any) -> str:
    """A name of what makes an optimiser or a scheduler, for messages."""
    make = make.func if isinstance(make, functools.partial) else make
    return repr(make) if isinstance(make, str) else getattr(make, "__qualname__", type(make).__qualname__)


def _class_of(make: object) -> type | None:
    """The class that is called in the end, if that is known."""
    while isinstance(make, functools.partial):
        make = make.func
    return make if isinstance(make, type) else None
