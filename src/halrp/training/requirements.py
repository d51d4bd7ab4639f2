"""What the settings of a recipe need of a task's data, checked before anything is trained."""

from __future__ import annotations

from halrp.errors import SettingError
from halrp.training.batches import Data, InMemory
from halrp.training.recipe import Recipe


def refuse_unsuited_data(recipe: Recipe, train: Data, val: object, task: str) -> None:
    """Raise for data with which a setting of the recipe cannot be followed."""
    refuse_no_validation(recipe, val, task)
    if recipe.balanced:
        refuse_unbalanced(train, task)


def refuse_no_validation(recipe: Recipe, val: object, task: str) -> None:
    """Raise if epochs are compared and there is nothing to compare them by."""
    if recipe.patience is not None and val is None:
        raise SettingError(
            f"{task}: Recipe(patience={recipe.patience}) compares epochs by their validation score, and there are no "
            "validation data; give val=..., or patience=None"
        )


def refuse_unbalanced(train: Data, task: str) -> InMemory:
    """The data, whose examples can be drawn by class; raises if they cannot."""
    if not isinstance(train, InMemory):
        raise SettingError(
            f"{task}: Recipe(balanced=True) draws from data in memory; pass (x, y) tensors, or give your DataLoader a "
            "torch.utils.data.WeightedRandomSampler"
        )
    if train.y.dim() != 1 or train.y.is_floating_point():
        raise SettingError(
            f"{task}: Recipe(balanced=True) needs one class per example, and the targets are {train.y.dtype} of shape "
            f"{tuple(train.y.shape)}; give balanced=False"
        )
    return train
