"""The file of a task that nobody has learned yet, as a learner with default settings would write it.

A file names its task, its settings and its budget, so its exact size depends on them. Where data decide a setting, the
one with the longest text is taken, so that a size that is foreseen is enough.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import Tensor, nn

from halrp._version import __version__
from halrp.method import outcome
from halrp.method.from_probe import FromProbe
from halrp.method.method import Halrp
from halrp.method.protocols import Allocator
from halrp.method.task_costs import Costs
from halrp.model.call import Call
from halrp.model.codec import Precision
from halrp.model.description import Description
from halrp.model.layers.head import outputs_of
from halrp.model.layers.registry import family_for
from halrp.model.layout import Layout
from halrp.model.plan import Plan
from halrp.model.size import Size
from halrp.model.views import redrawn_buffers
from halrp.objectives import Objective, described
from halrp.provenance import call_settings, describe, method_settings
from halrp.training import auto
from halrp.training.recipe import Recipe

BaseChoice = Literal["given", "first"]
"""The base of a learner: the model as it is given, or as the first task trains it."""
NAME = "n" * 40
"""Stands for the name of a task."""
EXAMPLES = 160
"""A number of training examples for which the text of the default recipe is as long as for any."""
START = FromProbe()
"""How tasks on a given base start by default."""


def default_recipe(examples: int, base: BaseChoice) -> Recipe:
    """The recipe of a task with that number of training examples, if a learner is given none."""
    values = auto.choices(examples, base == "given")
    return replace(Recipe.auto(), **{name: choice.value for name, choice in values.items()})


@dataclass(frozen=True)
class Foreseen:
    """A task on a model: with the default method and recipe, validation data, seed 0 and no class names."""

    model: nn.Module
    plan: Plan
    objective: Objective
    call: Call
    precision: Precision
    """Of components."""
    base: BaseChoice

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters and buffers of the model."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @cached_property
    def layout(self) -> Layout:
        """What tasks may own; a fingerprint has as many letters as any other."""
        return Layout.of("0" * 64, self.plan, self.tensors)

    @property
    def size(self) -> Size:
        """Of the base."""
        return Size.of(self.tensors.values())

    @property
    def classes(self) -> int:
        """The number of the task's outputs: the objective's, or else the model's."""
        present = outputs_of(self.model.get_submodule(self.plan.output)) or 0
        return (self.objective.outputs if self.plan.head else None) or present

    @property
    def costs(self) -> Costs:
        """What the task costs, whole or part by part."""
        return Costs(self.layout, self.precision, self.description, self.method.rest, self.redrawn)

    @cached_property
    def redrawn(self) -> frozenset[str]:
        """The buffers of a new head that are not the base's."""
        return redrawn_buffers(self.model, self.plan)

    @property
    def method(self) -> Halrp:
        """The default method."""
        return Halrp.budget(precision=self.precision)

    @property
    def rest(self) -> Precision:
        """The precision of scales, head, norms, biases and other small parameters."""
        return START.precision if self.base == "given" else self.method.rest

    @property
    def with_components(self) -> list[str]:
        """The adapted weights that components are offered for."""
        return [name for name in self.plan.named("adapted") if self.base == "first" or name not in self.tables]

    @cached_property
    def tables(self) -> Collection[str]:
        """The adapted weights of which few rows are read at a time: on a given base, only their columns are scaled."""
        owners = dict(self.model.named_modules())
        adapted = self.plan.named("adapted")
        return {name for name in adapted if family_for(owners[name.rpartition(".")[0]]).reads_few_rows}

    def description(self, view: str, allocate: Allocator) -> Description:
        """All of the task that is not a tensor; its allocation is part of it."""
        method = replace(self.method, allocate=allocate)
        provenance: dict[str, Any] = {
            "halrp": __version__,
            "method": method_settings(method),
            "recipe": describe(default_recipe(EXAMPLES, self.base)),
            "seed": 0,
        }
        provenance[outcome.KEY] = outcome.BLANK if self.base == "given" else outcome.BLANK_END
        return Description(
            task=NAME,
            classes=self.classes,
            view=view,
            precision=self.precision,
            objective=described(self.objective),
            provenance=provenance | call_settings(self.call),
        )
