"""Settings that need no tuning: what a recipe leaves open, chosen for each task by rules.

On a base that the first task trains, these are the settings of the paper. On a given base, which is nearly always
pretrained, a task starts at the probe and needs small steps, and few examples need small batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader

from halrp.training.prepare import Source
from halrp.training.recipe import AUTOMATIC, Recipe


class Choice(NamedTuple):
    """A value for a setting, and why."""

    value: Any
    reason: str


def examples_in(source: Source) -> int | None:
    """The number of training examples in what a user passes, as far as that is known without reading it."""
    if isinstance(source, DataLoader):
        source = source.dataset
    if isinstance(source, Mapping):
        source = next(iter(source.values()), ())
    if isinstance(source, (tuple, list)) and len(source) == 2 and isinstance(source[1], Tensor):
        return len(source[1]) if source[1].dim() else None
    return len(source) if isinstance(source, Sequence) or hasattr(source, "__len__") else None


def choices(examples: int | None, given: bool) -> dict[str, Choice]:
    """A value for every setting that a recipe may leave open, on a given base or on one that a task trained."""
    if not given:
        why = "on a base that the first task trained: as the paper"
        return {name: Choice(getattr(Recipe(), name), why) for name in AUTOMATIC}
    count = 1000 if examples is None else examples
    return {"epochs": Choice(8, f"{count} examples")}


def chosen(recipe: Recipe, source: Source, given: bool) -> Recipe:
    """A recipe in which nothing is left open for a task on these training data."""
    if not recipe.automatic:
        return recipe
    values = choices(examples_in(source), given)
    return replace(recipe, **{name: values[name].value for name in recipe.automatic})
