"""Arguments of a prediction, checked, and errors of a model, named by the inputs that it met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DataError, HalrpError, SettingError, UnknownTaskError


def check_predict(x: Any, task: Any, batch: Any) -> None:
    """Refuse what cannot be predicted: inputs that are no tensor or have no rows, names that are none, no batch."""
    if not isinstance(x, Tensor):
        raise DataError(f"predict: x is a {type(x).__name__}; pass a tensor, such as torch.as_tensor(x)")
    if x.dim() == 0 or x.is_meta:
        raise DataError(f"predict: x is {'a single number' if x.dim() == 0 else 'on the meta device'}; pass rows")
    if x.shape[0] == 0:
        raise DataError("predict: x has no rows; pass at least one example")
    if not is_whole(batch, 1):
        raise SettingError(f"predict: batch={batch!r} is no number of rows; give a whole number of at least 1")
    if task is None or isinstance(task, str):
        return
    if not isinstance(task, Sequence):
        raise UnknownTaskError(f"predict: task is a {type(task).__name__}; give a name, None, or a name for each row")
    for name in task:
        if name is not None and not isinstance(name, str):
            raise UnknownTaskError(f"predict: {name!r} among the tasks is no name; give texts, and None for the base's")


@contextmanager
def naming_inputs(x: Tensor) -> Iterator[None]:
    """Turn what a model raises on inputs of a wrong shape or type into a `DataError` that names both."""
    try:
        yield
    except (HalrpError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError) as error:
        raise DataError(
            f"predict: the model fails on inputs of shape {tuple(x.shape)} and type {x.dtype} ({error}); pass inputs "
            "like those that the tasks were learned on"
        ) from error
