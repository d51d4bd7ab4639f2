"""Classification, of one label per example or of several: `HalrpClassifier`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from halrp.errors import DataError
from halrp.objectives import Classification, MultiLabel
from halrp.sklearn.estimator import TaskEstimator


class HalrpClassifier(ClassifierMixin, TaskEstimator):
    """A task with labels, as an estimator of scikit-learn; `TaskEstimator` has the settings.

    >>> HalrpClassifier(random_state=0).fit(X, y).predict_proba(X_new)

    Labels (N,) are one per example, of any type. A table (N, labels) of 0 and 1 is any number of labels per example.
    """

    classes_: np.ndarray
    """The labels, in order. Where they are not 0 … n−1, the task has them as class names."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the task from inputs (N, features) and labels."""
        X, y = self._validated(X, y=y, multi_output=True)
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            self._learn(X, y, MultiLabel(y.shape[1]))
            self.classes_ = np.arange(y.shape[1])
            return self
        classes, indices = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"{type(self).__name__} needs at least two classes, but y has one class: {classes[0]!r}")
        numbered = classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes)))
        names = None if numbered else [str(label) for label in classes]
        self._learn(X, indices, Classification(len(classes)), names)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row, (N,), or which labels are present, (N, labels)."""
        answer = self._decoded(self._outputs(X))
        if hasattr(answer, "present"):
            present: np.ndarray = answer.present.cpu().numpy().astype(int)
            return present
        labels: np.ndarray = self.classes_[answer.indices.cpu().numpy()]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each label, in the order of `classes_`, (N, labels)."""
        probabilities: np.ndarray = self._decoded(self._outputs(X)).probabilities.cpu().numpy()
        return probabilities

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's checks and searches need to know."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
