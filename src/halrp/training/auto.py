"""Settings that need no tuning: what a recipe leaves open, chosen for each task by rules.

On a base that the first task trains, these are the settings of the paper. On a given base, which is nearly always
pretrained, a task starts at the probe and needs small steps, and few examples need small batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader

from halrp.training.prepare import Source
from halrp.training.recipe import AUTOMATIC, Recipe

SOME = 1000
"""Examples that are assumed where nothing tells their number."""
LEAST_STEPS = 100


class Choice(NamedTuple):
    """A value for a setting, and why."""

    value: Any
    reason: str


def examples_in(source: Source) -> int | None:
    """The number of training examples in what a user passes, as far as that is known without reading it."""
    data: Any = source.dataset if isinstance(source, DataLoader) else source
    if isinstance(data, Mapping):
        data = next(iter(data.values()), None)
    elif isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[1], Tensor):
        data = data[1]
    try:
        return len(data)
    except TypeError:
        return None


def choices(examples: int | None, given: bool) -> dict[str, Choice]:
    """A value for every setting that a recipe may leave open, on a given base or on one that a task trained."""
    if not given:
        why = "on a base that the first task trained: as the paper"
        return {name: Choice(getattr(Recipe(), name), why) for name in AUTOMATIC}
    count = SOME if examples is None else max(1, examples)
    known = f"{count} training examples" if examples is not None else "a number of examples that nothing tells"
    batch = min(64, max(4, 2 ** round(math.log2(max(1, count / 10)))))
    epochs = min(30, max(8, math.ceil(LEAST_STEPS * batch / count)))
    return {
        "epochs": Choice(epochs, f"{known}: at least {LEAST_STEPS} steps, and 8 to 30 passes"),
        "batch": Choice(batch, f"{known}: about ten steps a pass, of 4 to 64 examples"),
        "lr": Choice(1e-3, "on a given base: a step of any part changes the loss by about lr²"),
        "schedule": Choice("cosine", "on a given base: the last epoch is the best one nearly always"),
        "rate_warm_up": Choice(0.1, "on a given base: Adam's first steps are as long as its later ones"),
        "balanced_steps": Choice(True, "on a given base: parts differ in curvature by orders of magnitude"),
    }


def chosen(recipe: Recipe, source: Source, given: bool) -> Recipe:
    """A recipe in which nothing is left open for a task on these training data."""
    if not recipe.automatic:
        return recipe
    values = choices(examples_in(source), given)
    return replace(recipe, **{name: values[name].value for name in recipe.automatic})
