"""Settings that need no tuning: what a recipe leaves open, chosen for each task by rules.

On a base that the first task trains, these are the settings of the paper, with half as large batches where a pass would
be a single step, and besides them an average over the last half of the steps, exact statistics of batch norms, and
dropout where a task takes many steps (`docs/results.md` has what each is worth). On a given base, which is nearly
always pretrained, a task starts at the probe and needs small steps, and few examples need small batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader

from halrp.training.prepare import Source
from halrp.training.recipe import AUTOMATIC, BEYOND_PAPER, Recipe

SOME = 1000
"""Examples that are assumed where nothing tells their number."""
LEAST_STEPS = 100
HALVED = 32
"""Examples from which on a single batch of all of them is halved: a batch norm needs rows."""
AVERAGE = 0.5
"""Share of the last steps whose parameters are averaged."""
DROPOUT = 0.4
DROPOUT_STEPS = 30
"""Steps of a task from which on dropout pays: with fewer of them it only delays."""


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


def steps_of(examples: int | None, recipe: Recipe, batch: int | None = None) -> int:
    """The number of steps that a task takes, as far as that is known; a loader has a `batch` of its own."""
    count = SOME if examples is None else max(1, examples)
    return recipe.epochs * math.ceil(count / ((batch or recipe.batch) * recipe.accumulate))


def batch_of(examples: int | None, most: int) -> int:
    """Half of the examples where a batch holds all of them; `most` where they are too many or too few for that."""
    return most if examples is None or not HALVED <= examples <= most else math.ceil(examples / 2)


def beyond_paper(steps: int) -> dict[str, Choice]:
    """What a task of a number of steps gets beyond the paper's settings, if it is not on a given base."""
    enough = steps >= DROPOUT_STEPS
    return {
        "average": Choice(AVERAGE, "on a base that the first task trained: the last steps scatter around a minimum"),
        "exact_statistics": Choice(True, "on a base that the first task trained: moving averages lag behind"),
        "dropout": Choice(DROPOUT if enough else 0.0, f"{steps} steps: from {DROPOUT_STEPS} on dropout pays"),
    }


def choices(examples: int | None, given: bool, steps: int | None = None) -> dict[str, Choice]:
    """A value for every setting that a recipe may leave open, on a given base or on one that a task trained.

    `steps` are those of the task, if they are not the paper's for these examples.
    """
    if not given:
        why, paper = "on a base that the first task trained: as the paper", Recipe()
        batch = batch_of(examples, paper.batch)
        steps = steps_of(examples, paper, batch) if steps is None else steps
        values = {name: Choice(getattr(paper, name), why) for name in AUTOMATIC} | beyond_paper(steps)
        if batch < paper.batch:
            values["batch"] = Choice(batch, f"{examples} training examples: a pass of two steps, not one")
        return values
    count = SOME if examples is None else max(1, examples)
    known = f"{count} training examples" if examples is not None else "a number of examples that nothing tells"
    batch = min(64, max(4, 2 ** round(math.log2(max(1, count / 10)))))
    epochs = min(30, max(8, math.ceil(LEAST_STEPS * batch / count)))
    return {
        "epochs": Choice(epochs, f"{known}: at least {LEAST_STEPS} steps, and 8 to 30 passes"),
        "batch": Choice(batch, f"{known}: about ten steps a pass, of 4 to 64 examples"),
        "lr": Choice(4e-3, "on a given base: a step of any part changes the loss by about lr²"),
        "schedule": Choice("cosine", "on a given base: the last epoch is the best one nearly always"),
        "rate_warm_up": Choice(0.1, "on a given base: Adam's first steps are as long as its later ones"),
        "balanced_steps": Choice(True, "on a given base: parts differ in curvature by orders of magnitude"),
    } | {name: Choice(getattr(Recipe(), name), "on a given base: as ever") for name in BEYOND_PAPER}


def chosen(recipe: Recipe, source: Source, given: bool) -> Recipe:
    """A recipe in which nothing is left open for a task on these training data."""
    batch = source.batch_size if isinstance(source, DataLoader) else None
    return chosen_for(recipe, examples_in(source), given, batch) if recipe.automatic else recipe


def chosen_for(recipe: Recipe, examples: int | None, given: bool, batch: int | None = None) -> Recipe:
    """A recipe in which nothing is left open for a number of examples; a loader has a `batch` of its own."""
    values = choices(examples, given)
    settled = replace(recipe, **{name: values[name].value for name in recipe.automatic if name not in BEYOND_PAPER})
    values = choices(examples, given, steps_of(examples, settled, batch))
    rest = {name: values[name].value for name in recipe.automatic if name in BEYOND_PAPER}
    if recipe.ema is not None:  # one average is enough
        rest.pop("average", None)
    return replace(settled, **rest)
