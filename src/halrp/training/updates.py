"""From gradients to parameters: everything that happens between a backward pass and the next forward pass.

In order: penalties l1, the caller's hook, clipping, penalties l2, the optimiser's step, the rate of the next step, the
average. Penalties are applied as gradients, in closed form: `l2` is λ/2·‖w‖² (adds λ·w; Adam and SGD do it as
their coupled weight decay), `l1` is λ·|w|₁ (adds λ·sign w). Nothing is built on the autograd tape for them, and nothing
waits for the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from halrp.training.ema import MovingAverage
from halrp.training.groups import Group
from halrp.training.loss_scaling import check_scale, scale_of, scaler_for
from halrp.training.master_weights import MasterWeights
from halrp.training.optimiser_state import after_a_step, fitting, memory_of, remember
from halrp.training.optimisers import make_optimiser, make_scheduler
from halrp.training.recipe import Recipe
from halrp.training.saved_state import check_tensors
from halrp.training.tail_average import TailAverage

Rate = Callable[[int], float]
"""The learning rate of a step."""


class Updates:
    """Steps of an optimiser on groups of parameters, as a recipe sets them."""

    def __init__(self, groups: Sequence[Group], recipe: Recipe, rate: Rate, steps: int) -> None:
        """Prepare `steps` steps, each with the learning rate `rate(step)` unless the recipe has a scheduler."""
        self.recipe, self.rate = recipe, rate
        self.groups = [group for group in groups if group.parameters]
        self.parameters = [parameter for group in self.groups for parameter in group.parameters]
        self.device = self.parameters[0].device
        self._weights = MasterWeights(self.parameters)
        self.optimised = self._weights.optimised
        """What the optimiser steps on: the parameters, or their copies in float32."""
        self.optimiser = _optimiser(self.groups, self.optimised, recipe)
        make = recipe.scheduler
        self._scheduler = None if make is None else make_scheduler(make, self.optimiser, steps)
        self._initial = memory_of(self.optimiser, self.optimised).groups
        self._average = _average(self.optimised, recipe, steps)
        self._scaler = scaler_for(recipe.autocast, self.parameters)
        self.step = 0
        """Finished steps."""
        self._trained: list[Tensor] | None = None
        """The parameters that training resumes from, while others are evaluated."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of the step."""
        loss = loss * self.recipe.gradient_scale if self.recipe.gradient_scale != 1.0 else loss
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def begin(self) -> None:
        """Begin a step: no gradients yet, and the step's learning rate."""
        self.clear_gradients()
        if self._scheduler is None:
            rate = self.rate(self.step)
            for options in self.optimiser.param_groups:
                options["lr"] = rate * options.get("rate_factor", 1.0)

    def clear_gradients(self) -> None:
        """Free the memory of all gradients."""
        for parameter in (*self.parameters, *self.optimised):
            parameter.grad = None

    def end(self, after_backward: Callable[[], None] | None, after_step: Callable[[], None] | None) -> None:
        """Take the step; the hooks may change gradients before it, and parameters after it."""
        if self._scaler is not None:
            self._scaler.unscale_(self.optimiser)
        self._add_l1_gradients()
        if after_backward is not None:
            after_backward()
            self._match_gradient_layout()
        self._weights.take_gradients()
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.optimised, self.recipe.clip)
        if not _couples(self.recipe):
            self._add_l2_gradients()
        if self._scaler is None:
            self.optimiser.step()
        else:
            self._scaler.step(self.optimiser)
            self._scaler.update()
        self._weights.write()
        if after_step is not None:
            with torch.no_grad():
                after_step()
            self._weights.read()
        if self._scheduler is not None:
            self._scheduler.step()
        if self._average is not None:
            self._average.update(self.optimised, self.step)
        self.step += 1

    def _add_l1_gradients(self) -> None:
        for group in self.groups:
            for parameter in group.parameters if group.l1 else ():
                if parameter.grad is not None:
                    alpha = group.l1 * self.recipe.gradient_scale
                    parameter.grad.add_(parameter.detach().sign(), alpha=alpha)

    def _add_l2_gradients(self) -> None:
        optimised = iter(self.optimised)
        for group in self.groups:
            for parameter in [next(optimised) for _ in group.parameters]:
                if group.l2 and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=group.l2 * self.recipe.gradient_scale)

    def _match_gradient_layout(self) -> None:
        """Give gradients that a hook has replaced the strides of their parameters: the fused step assumes them."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)

    # ---- the parameters that are trained, and those that are evaluated -----------------------------------------

    def evaluate(self, averaged: bool = True) -> None:
        """Set the parameters to those that are evaluated and committed: their average, if there is one.

        An optimiser may have an average of its own, behind the methods `eval` and `train`. Unless `averaged`, that is
        the only one.
        """
        switch = getattr(self.optimiser, "eval", None)
        begun = averaged and self._average is not None and self._average.has_begun(self.step)
        average = self._average if begun else None
        if self._trained is not None or (average is None and switch is None):
            return
        self._trained = [parameter.detach().clone() for parameter in self.optimised]
        if switch is not None:
            switch()
        if average is not None:
            self._set(average.averages)
        self._weights.write()

    def train(self) -> None:
        """Set the parameters to those that training resumes from, bit for bit."""
        switch = getattr(self.optimiser, "train", None)
        if switch is not None:
            switch()
        if self._trained is not None:
            self._set(self._trained)
            self._weights.write()
            self._trained = None

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.optimised, values, strict=True):
            parameter.copy_(value)

    # ---- state ---------------------------------------------------------------------------------------------------

    def copies(self) -> int:
        """The most tensors like each parameter that a saved state may have."""
        return 1 + (3 if isinstance(self.recipe.optimiser, str) else 8) + (self._average is not None)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step changes: parameters, the average, and what the optimiser remembers."""
        return self._values() | memory_of(self.optimiser, self.optimised).tensors

    def _values(self) -> dict[str, Tensor]:
        averages = [] if self._average is None else self._average.averages
        values: dict[str, Tensor] = {f"parameter/{i}": parameter for i, parameter in enumerate(self.optimised)}
        return values | {f"average/{i}": average for i, average in enumerate(averages)}

    def facts(self) -> dict[str, Any]:
        """Every number that steps have changed, as JSON values."""
        memory = memory_of(self.optimiser, self.optimised)
        changed = [
            {name: value for name, value in present.items() if name not in before or value != before[name]}
            for present, before in zip(memory.groups, self._initial, strict=True)
        ]
        facts: dict[str, Any] = {"step": self.step}
        if any(changed):
            facts["groups"] = changed
        if memory.numbers:
            facts["numbers"] = memory.numbers
        return facts if self._scaler is None else facts | {"scaler": scale_of(self._scaler)}

    def fitting(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], step: int) -> Callable[[], None]:
        """What restores a saved state; `UnfitError` if it is not one of this training after `step` steps."""
        values = self._values()
        moments = {key: tensor for key, tensor in tensors.items() if key.startswith("moment/")}
        check_tensors({key: tensor for key, tensor in tensors.items() if key not in moments}, values)
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in self.optimised]
        like = after_a_step(_optimiser(self.groups, copies, self.recipe), copies)
        memory = fitting(moments, facts, like, step)
        scale = None if self._scaler is None else check_scale(facts.get("scaler"))

        def restore() -> None:
            with torch.no_grad():
                for key, value in values.items():
                    value.copy_(tensors[key])
            self._weights.write()
            self._replay(step)
            remember(self.optimiser, self.optimised, memory, like)
            if self._scaler is not None and scale is not None:
                self._scaler.load_state_dict({**self._scaler.state_dict(), **scale})
            self.step = step

        return restore

    def _replay(self, steps: int) -> None:
        """Step the scheduler as often as it was: a rate that each step multiplies is then bit-identical."""
        with warnings.catch_warnings():  # torch expects a step of the optimiser in between
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps if self._scheduler is not None else 0):
                self._scheduler.step()  # type: ignore[union-attr]


def _couples(recipe: Recipe) -> bool:
    """Whether the optimiser's weight decay is the gradient of a penalty l2."""
    return recipe.optimiser in ("adam", "sgd")


def _average(parameters: Sequence[Tensor], recipe: Recipe, steps: int) -> MovingAverage | TailAverage | None:
    if recipe.average:
        return TailAverage(parameters, recipe.average, steps)
    return None if recipe.ema is None else MovingAverage(parameters, recipe.ema)


def _optimiser(groups: Sequence[Group], optimised: Sequence[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser of parameters, or of their copies, group by group."""
    rest = iter(optimised)
    options: list[dict[str, Any]] = []
    for group in groups:
        parameters = [next(rest) for _ in group.parameters]
        options.append({"params": parameters, "lr": recipe.lr * group.lr, "rate_factor": group.lr})
        decay = recipe.weight_decay if group.decays else 0.0
        if _couples(recipe):
            options[-1]["weight_decay"] = group.l2 * recipe.gradient_scale + (decay or 0.0)
        elif decay is not None:
            options[-1]["weight_decay"] = decay
    if recipe.optimiser != "sgd":
        return make_optimiser(recipe.optimiser, options)
    optimiser = make_optimiser("sgd", options, momentum=recipe.momentum)
    if recipe.momentum:
        # From zero the first step is the same; a parameter that gets its first gradient later needs a buffer by then.
        for parameter in optimised:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser
