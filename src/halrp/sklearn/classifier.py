"""Classification: `HalrpClassifier`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from halrp.errors import DataError
from halrp.sklearn.estimator import TaskEstimator


class HalrpClassifier(ClassifierMixin, TaskEstimator):
    """A task with one label per example, as an estimator of scikit-learn; `TaskEstimator` has the settings.

    >>> HalrpClassifier(random_state=0).fit(X, y).predict_proba(X_new)
    """

    classes_: np.ndarray
    """The labels, in order. Where they are not 0 … n−1, the task has them as class names."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the task from inputs (N, features) and labels (N,) of any type."""
        X, y = self._validated(X, y=y)
        check_classification_targets(y)
        classes, indices = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"{type(self).__name__} needs at least two classes, but y has one class: {classes[0]!r}")
        numbered = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
        names = None if numbered else [str(label) for label in classes]
        self._learn(X, indices, len(classes), stratify=True, classes=len(classes), class_names=names)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row, (N,)."""
        indices = self._answer(X).indices.cpu().numpy()
        labels: np.ndarray = self.classes_[indices]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of `classes_`, (N, classes)."""
        probabilities: np.ndarray = self._answer(X).probabilities.cpu().numpy()
        return probabilities
