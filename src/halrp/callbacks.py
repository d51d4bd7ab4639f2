"""Progress callbacks that write the loss and the validation score of every epoch to where experiments are tracked.

>>> learner = Learner(model, progress=Several("bar", TensorBoard("runs/birds")))

Each needs a package of its own, which is imported when the callback is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from halrp.errors import SettingError
from halrp.training.bar import Show, notifier
from halrp.training.progress import Progress


class Several:
    """Reports to several callbacks, in turn."""

    def __init__(self, *shows: Show) -> None:
        """Take callbacks, and "bar" for a bar."""
        self._callbacks = [callback for callback in map(notifier, shows) if callback is not None]
        self.validates = any(getattr(callback, "validates", False) for callback in self._callbacks)

    def __call__(self, at: Progress) -> None:
        """Pass a report on."""
        for callback in self._callbacks:
            callback(at)

    def finish(self) -> None:
        """Pass on that a task has ended."""
        for callback in self._callbacks:
            getattr(callback, "finish", _nothing)()


class TensorBoard:
    """Writes scalars, `task/stage/loss` by epoch, to files that TensorBoard reads."""

    validates = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write to a folder."""
        module = _imported("torch.utils.tensorboard", "tensorboard", "halrp[tensorboard]")
        self._writer: Any = module.SummaryWriter(os.fspath(folder))

    def __call__(self, at: Progress) -> None:
        """Write the numbers of an epoch that has ended."""
        for name, value in _numbers(at).items():
            self._writer.add_scalar(name, value, at.epoch)

    def finish(self) -> None:
        """Make sure that the files have everything."""
        self._writer.flush()


class MLflow:
    """Logs metrics, `task/stage/loss` by epoch, to the active run of MLflow; `halrp.mlflow` logs the task itself."""

    validates = True

    def __init__(self) -> None:
        """Log to the run that is active when an epoch ends."""
        self._log: Callable[..., Any] = _imported("mlflow", "mlflow", "halrp[mlflow]").log_metrics

    def __call__(self, at: Progress) -> None:
        """Log the numbers of an epoch that has ended."""
        # MLflow refuses names with other characters.
        numbers = {re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII): value for name, value in _numbers(at).items()}
        if numbers:
            self._log(numbers, step=at.epoch)


class WandB:
    """Logs numbers, `task/stage/loss` with `task/stage/epoch`, to the active run of Weights & Biases."""

    validates = True

    def __init__(self) -> None:
        """Log to the run that is active when an epoch ends."""
        self._log: Callable[..., Any] = _imported("wandb", "wandb", "wandb").log

    def __call__(self, at: Progress) -> None:
        """Log the numbers of an epoch that has ended."""
        if numbers := _numbers(at):
            self._log(numbers | {f"{at.task}/{at.stage}/epoch": at.epoch})


def _numbers(at: Progress) -> dict[str, float]:
    """What was measured in an epoch that has ended, by name; nothing inside an epoch."""
    measured = {
        "loss": at.loss,
        "validation_loss": at.validation_loss,
        "validation_score": at.validation_score,
    }
    return {f"{at.task}/{at.stage}/{name}": value for name, value in measured.items() if value is not None}


def _imported(module: str, package: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingError(f"this callback needs the package {package}; run: pip install '{install}'") from error


def _nothing() -> None: ...
