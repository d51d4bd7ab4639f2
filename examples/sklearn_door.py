"""Tasks as estimators of scikit-learn, on the data that it brings: lone ones, and three that share a base.

Run it: python examples/sklearn_door.py  (needs pip install 'halrp[sklearn]')
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from halrp import Recipe
from halrp.sklearn import HalrpClassifier, HalrpRegressor

Labels = NDArray[Any]

QUESTIONS: dict[str, Callable[[Labels], Labels]] = {
    "is it odd?": lambda digit: np.where(digit % 2 == 1, "odd", "even"),
    "is it at least 5?": lambda digit: digit >= 5,
    "has it a loop?": lambda digit: np.isin(digit, [0, 6, 8, 9]),
}
"""Three tasks about the same pictures, each a function of the digit."""


def cancer() -> None:
    """A lone estimator is a trained network; pipelines and cross-validation take it as any other."""
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), HalrpClassifier(random_state=0))
    scores = cross_val_score(pipeline, X, y, cv=5)
    print(f"breast cancer, five folds: {scores.mean():.1%} correct")


def diabetes() -> None:
    """Regression, and a search of the recipe: these 442 people are few, so that the weights should stay small."""
    X, y = load_diabetes(return_X_y=True)
    recipes = [Recipe(epochs=20, batch=32, lr=3e-3, optimiser="adamw", weight_decay=decay) for decay in (0.0, 1.0, 4.0)]
    search = GridSearchCV(HalrpRegressor(random_state=0), {"recipe": recipes}, cv=5)
    best = search.fit(X, y).best_params_["recipe"]
    print(f"diabetes, five folds: R² {search.best_score_:.2f}, with weight decay {best.weight_decay:g}")


def digits(rows: int = 50) -> None:
    """Ten digits train the base; then each question is learned from a few rows, as a small delta on it."""
    X_base, X, y_base, y = train_test_split(*load_digits(return_X_y=True), test_size=0.5, random_state=0)
    base = HalrpClassifier(task="ten digits", random_state=0).fit(X_base, y_base)
    learner = base.learner_
    print(f"ten digits: {base.score(X, y):.1%} correct, a base of {learner.base_size.bytes:,} bytes")
    first = base.predict_proba(X)
    print(f"questions about them, from {rows} rows each:")
    for question, answers in QUESTIONS.items():
        labels = answers(y)
        shared = HalrpClassifier(learner=learner, task=question).fit(X[:rows], labels[:rows])
        alone = HalrpClassifier(random_state=0).fit(X[:rows], labels[:rows])
        on_base, on_nothing = (estimator.score(X[rows:], labels[rows:]) for estimator in (shared, alone))
        print(f"{question} {on_base:.1%} correct, alone {on_nothing:.1%}, a delta of {shared.delta_.bytes:,} bytes")
    print(f"the first task's probabilities unchanged: {np.array_equal(base.predict_proba(X), first)}")


if __name__ == "__main__":
    cancer()
    diabetes()
    digits()
