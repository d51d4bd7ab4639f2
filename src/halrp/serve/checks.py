"""Arguments of a prediction, checked, and errors of a model, named by the inputs that it met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from halrp.checks import is_whole
from halrp.errors import DataError, HalrpError, SettingError, UnknownTaskError
from halrp.model import batch as tree
from halrp.model.batch import Batch


def check_predict(given: Any, task: Any, batch: Any) -> Batch:
    """The inputs as a batch; refuses inputs without tensors or rows, names that are none, no batch."""
    x = tree.as_batch(given, "predict")
    if tree.rows(x) == 0:
        raise DataError("predict: x has no rows; pass at least one example")
    if not is_whole(batch, 1):
        raise SettingError(f"predict: batch={batch!r} is no number of rows; give a whole number of at least 1")
    if task is None or isinstance(task, str):
        return x
    if not isinstance(task, Sequence):
        raise UnknownTaskError(f"predict: task is a {type(task).__name__}; give a name, None, or a name for each row")
    for name in task:
        if name is not None and not isinstance(name, str):
            raise UnknownTaskError(f"predict: {name!r} among the tasks is no name; give texts, and None for the base's")
    return x


@contextmanager
def naming_inputs(x: Batch) -> Iterator[None]:
    """Turn what a model raises on inputs of a wrong shape or type into a `DataError` that names both."""
    try:
        yield
    except (HalrpError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError, TypeError, KeyError) as error:
        raise DataError(
            f"predict: the model fails on inputs of {tree.describe(x)} ({error}); pass inputs like those that the "
            "tasks were learned on"
        ) from error
