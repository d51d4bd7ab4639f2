"""Regression, of one number per example or of several: `HalrpRegressor`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from halrp.objectives import Regression
from halrp.sklearn.estimator import TaskEstimator


class HalrpRegressor(MultiOutputMixin, RegressorMixin, TaskEstimator):
    """A task with numbers as targets, as an estimator of scikit-learn; `TaskEstimator` has the settings.

    >>> HalrpRegressor(random_state=0).fit(X, y).predict(X_new)

    Targets are (N,), or (N, values) for several at once; they are learned in standard units and answered in theirs.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the task from inputs (N, features) and targets."""
        X, y = self._validated(X, y=y, multi_output=True, y_numeric=True)
        self._learn(X, y.astype(np.float64), Regression(1 if y.ndim == 1 else y.shape[1]))
        self._shape = y.shape[1:]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The numbers of each row, in the shape that the targets had."""
        values: np.ndarray = self._decoded(self._outputs(X).double()).values.cpu().numpy()
        return values.reshape(len(values), *self._shape)
