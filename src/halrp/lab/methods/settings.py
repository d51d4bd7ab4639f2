"""Settings that several methods share: the mode of training, and checks that name the method and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from halrp.errors import SettingError
from halrp.training.recipe import Recipe

Mode = Literal["paper", "official"]
"""Trained by the run's recipe, as in the HALRP paper's comparison, or as in the method's own published code."""
MODES = ("paper", "official")


def check_choice(method: str, setting: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless the value of a setting is one of the choices."""
    if value not in choices:
        *most, last = map(repr, choices)
        raise SettingError(f"{method}({setting}={value!r}) is unknown; choose {', '.join(most)} or {last}")


def official_recipe(recipe: Recipe, **changes: Any) -> Recipe:
    """A recipe with a constant learning rate, no momentum and unscaled gradients, and then with `changes`."""
    plain: dict[str, Any] = {"schedule": "constant", "momentum": 0.0, "gradient_scale": 1.0}
    return replace(recipe, **(plain | changes))
