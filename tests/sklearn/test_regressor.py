"""`HalrpRegressor`: units, shapes, and numbers as tasks on the base of a classifier."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_score
from sklearn.utils import shuffle

from halrp import Recipe
from halrp.errors import SettingError
from halrp.objectives import Classification, Regression
from halrp.sklearn import HalrpClassifier, HalrpRegressor

QUICK = Recipe(epochs=2, batch=32, lr=3e-3)
X, Y = load_diabetes(return_X_y=True)


def small(**settings: Any) -> HalrpRegressor:
    """A regressor that learns in a moment."""
    given: dict[str, Any] = {"recipe": QUICK, "random_state": 0} | settings
    return HalrpRegressor(**given)


def test_it_learns_diabetes() -> None:
    folds = KFold(5, shuffle=True, random_state=0)
    scores = cross_val_score(HalrpRegressor(random_state=0), X, Y, cv=folds)
    assert scores.mean() > 0.35  # measured: 0.424; scikit-learn's network of the same size: 0.395


@pytest.mark.parametrize(("scale", "offset"), [(1000.0, 0.0), (1.0, 1e9)])
def test_the_units_of_targets_do_not_matter(scale: float, offset: float) -> None:
    plain = small().fit(X, Y).predict(X)
    other = small().fit(X, scale * Y + offset).predict(X)
    assert other.dtype == np.float64
    # Standard units differ by the rounding of float64 at 1e9, 1e-7 of the targets' 77, and training amplifies it.
    assert np.abs((other - offset) / scale - plain).max() < 1e-3 * plain.std()


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_predictions_have_the_shape_of_targets(shape: tuple[int, ...]) -> None:
    predicted = small().fit(X, Y.reshape(shape)).predict(X[:7])
    assert predicted.shape == Y[:7].reshape(shape).shape


def test_several_numbers_are_learned_at_once_each_in_its_units() -> None:
    several = np.stack([Y, 1e4 + 1e6 * X[:, 2], 1e-3 * X[:, 8] ** 2], axis=1)
    regressor = HalrpRegressor(random_state=0).fit(X[:300], several[:300])
    predicted = regressor.predict(X[300:])
    assert predicted.shape == (142, 3)
    scores = r2_score(several[300:], predicted, multioutput="raw_values")
    assert (scores > [0.35, 0.95, 0.9]).all(), scores  # measured: 0.469, 0.992, 0.979


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second, other = (small(random_state=seed).fit(X, Y).predict(X) for seed in (0, 0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_regression_shares_the_base_of_a_classification() -> None:
    pixels, digit = shuffle(*load_digits(return_X_y=True), random_state=0)
    ink = pixels.sum(1)
    classifier = HalrpClassifier(task="digit", random_state=0).fit(pixels[:400], digit[:400])
    before = classifier.predict_proba(pixels)
    regressor = HalrpRegressor(learner=classifier.learner_, task="ink").fit(pixels[:400], ink[:400])
    assert regressor.score(pixels[400:], ink[400:]) > 0.9  # measured: 0.985
    assert np.array_equal(classifier.predict_proba(pixels), before)
    assert list(classifier.learner_.tasks) == ["digit", "ink"]
    assert np.array_equal(copy.deepcopy(regressor).predict(pixels), regressor.predict(pixels))


def test_an_objective_with_other_settings_is_used() -> None:
    outlier = np.where(np.arange(len(Y)) == 0, 1e6, Y)
    errors = {
        error: np.abs(HalrpRegressor(objective=Regression(error=error), random_state=0).fit(X, outlier).predict(X) - Y)
        for error in ("squared", "huber")
    }
    assert np.median(errors["huber"]) < np.median(errors["squared"])


@pytest.mark.parametrize("objective", [Classification(), Regression(values=3), "squared"])
def test_an_objective_that_does_not_suit_the_targets_is_refused(objective: Any) -> None:
    with pytest.raises(SettingError, match="does not suit these targets; give a Regression"):
        small(objective=objective).fit(X, Y)


def test_answers_depend_on_other_rows_only_by_the_rounding_of_the_network() -> None:
    regressor = small().fit(X, Y)
    together = regressor.predict(X[:50])
    alone = np.concatenate([regressor.predict(row[None]) for row in X[:50]])
    # Rounding of float32 through three layers, in standard units.
    assert np.abs(together - alone).max() < 1e-5 * Y.std()
