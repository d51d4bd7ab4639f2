"""The scikit-learn door: tasks of a learner as estimators, with `fit`, `predict` and `score`.

>>> first = HalrpClassifier(task="birds").fit(X, y)  # trains the base
>>> second = HalrpClassifier(learner=first.learner_, task="cars").fit(X2, y2)  # a delta on it

Needs scikit-learn (`pip install 'halrp[sklearn]'`), which nothing else in the library imports.
"""

from halrp.errors import MissingPackageError

try:
    import sklearn as _sklearn  # noqa: F401  (only whether it is there)
except ImportError as error:
    raise MissingPackageError("halrp.sklearn needs scikit-learn; run: pip install 'halrp[sklearn]'") from error

from halrp.sklearn.classifier import HalrpClassifier
from halrp.sklearn.regressor import HalrpRegressor
from halrp.sklearn.tabular import tabular_network

__all__ = ["HalrpClassifier", "HalrpRegressor", "tabular_network"]
