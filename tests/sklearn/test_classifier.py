"""`HalrpClassifier`: what scikit-learn's checks do not ask, from reproducible bits to many tasks on one base."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import shuffle
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.errors import DataError, HalrpError, MissingPackageError, SettingError, TaskError
from halrp.objectives import Classification, MultiLabel
from halrp.sklearn import HalrpClassifier, tabular_network
from halrp.sklearn.tabular import Standardise
from tests.helpers import FAST, digest, net, tiny_task

Array = NDArray[Any]
QUICK = Recipe(epochs=2, batch=32, lr=3e-3)
X, Y = shuffle(*load_digits(return_X_y=True), random_state=0)
TRAIN, TEST = slice(0, 400), slice(400, 1000)


def small(**settings: Any) -> HalrpClassifier:
    """A classifier that learns in a moment."""
    given: dict[str, Any] = {"recipe": QUICK, "random_state": 0} | settings
    return HalrpClassifier(**given)


@pytest.fixture(scope="module")
def base() -> HalrpClassifier:
    """A fitted classifier of ten digits whose learner others may copy."""
    return HalrpClassifier(task="digits", random_state=0).fit(X[TRAIN], Y[TRAIN])


@pytest.fixture
def shared(base: HalrpClassifier) -> Learner:
    """A learner with a base, for one test."""
    return copy.deepcopy(base.learner_)


# ---- alone --------------------------------------------------------------------------------------------------------


def test_it_learns_digits(base: HalrpClassifier) -> None:
    assert base.score(X[TEST], Y[TEST]) > 0.9  # measured: 0.965
    assert base.predict_proba(X[TEST]).sum(1) == pytest.approx(1, abs=1e-6)
    assert base.delta_.is_base


def test_the_same_seed_gives_the_same_bits_and_another_gives_others() -> None:
    fitted = [small(random_state=seed).fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]) for seed in (0, 0, 1)]
    assert np.array_equal(fitted[0], fitted[1])
    assert not np.array_equal(fitted[0], fitted[2])


def test_numpys_generator_is_drawn_from_as_scikit_learn_does() -> None:
    first, second = (small(random_state=np.random.RandomState(3)).fit(X[TRAIN], Y[TRAIN]) for _ in range(2))
    assert first.learner_.seed == second.learner_.seed
    drawn = small(random_state=first.learner_.seed).fit(X[TRAIN], Y[TRAIN])
    assert np.array_equal(drawn.predict_proba(X[TEST]), second.predict_proba(X[TEST]))


@pytest.mark.parametrize("labels", [np.array(["no", "yes"]), np.array([-1, 1]), np.array([False, True])])
def test_labels_of_any_type_come_back_and_are_the_tasks_class_names(labels: Array) -> None:
    classifier = small().fit(X[TRAIN], labels[Y[TRAIN] % 2])
    predicted = classifier.predict(X[TEST])
    assert predicted.dtype == labels.dtype
    assert set(predicted) == set(labels)
    answer = classifier.learner_.answer(torch.tensor(X[TEST]), "task")
    assert list(answer.labels) == [str(label) for label in predicted]


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="one class"):
        small().fit(X[:10], np.zeros(10))


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_the_units_of_columns_do_not_matter(offset: float) -> None:
    # An offset of 1e8 leaves float32 no digit of the digits' pixels, which run from 0 to 16.
    plain = small().fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST])
    units = np.logspace(-3, 3, X.shape[1])
    other = small().fit(X[TRAIN] * units + offset, Y[TRAIN]).predict_proba(X[TEST] * units + offset)
    assert np.abs(other - plain).mean() < 1e-3  # column 0.001 · pixel + 1e8 has 5 digits left in float64


def test_a_column_that_does_not_vary_is_only_centred() -> None:
    standardise = Standardise(2)
    standardise.fit(np.array([[0.1, 1.0], [0.1, 3.0], [0.1, 5.0]]))
    deviation = np.std([1.0, 3.0, 5.0])
    expected = torch.tensor([[0.0, -2 / deviation], [1.0, 0.0]], dtype=torch.float32)
    torch.testing.assert_close(standardise(torch.tensor([[0.1, 1.0], [1.1, 3.0]])), expected, atol=1e-7, rtol=1e-6)


def test_the_exported_network_takes_raw_columns(base: HalrpClassifier) -> None:
    logits = base.learner_.export("digits")(torch.tensor(X[TEST]))
    torch.testing.assert_close(logits.softmax(1), torch.tensor(base.predict_proba(X[TEST])), rtol=1e-4, atol=1e-6)


def test_a_store_is_opened_with_the_default_architecture(base: HalrpClassifier, tmp_path: Path) -> None:
    base.learner_.save(tmp_path)
    loaded = Learner.load(tmp_path, tabular_network(64, 10))
    rows = torch.tensor(X[TEST])
    assert torch.equal(loaded.predict(rows, "digits"), base.learner_.predict(rows, "digits"))


def test_it_works_in_pipelines_and_cross_validation() -> None:
    scores = cross_val_score(make_pipeline(StandardScaler(), small()), X[TRAIN], Y[TRAIN], cv=2)
    assert (scores > 0.5).all()  # measured: 0.725 and 0.700 after two epochs


def test_validation_data_are_held_out_and_used() -> None:
    recipe = Recipe(epochs=30, batch=32, lr=3e-3, patience=2)
    classifier = small(recipe=recipe, validation_fraction=0.25).fit(X[TRAIN], Y[TRAIN])
    assert classifier.score(X[TEST], Y[TEST]) > 0.8
    with pytest.raises(HalrpError, match="validation"):
        small(recipe=recipe).fit(X[TRAIN], Y[TRAIN])


def test_pickles_and_deep_copies_predict_the_same_bits(shared: Learner) -> None:
    classifier = small(learner=shared, task="parity").fit(X[TRAIN], Y[TRAIN] % 2)
    expected = classifier.predict_proba(X[TEST])
    for other in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert np.array_equal(other.predict_proba(X[TEST]), expected)
        assert other.learner is other.learner_


def test_columns_of_frames_have_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[TRAIN], columns=[f"pixel {i}" for i in range(64)])
    classifier = small().fit(frame, Y[TRAIN])
    assert list(classifier.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[frame.columns[::-1]])


# ---- objectives ---------------------------------------------------------------------------------------------------


def test_several_labels_per_example_are_learned() -> None:
    labels = np.stack([Y % 2 == 1, Y >= 5, np.isin(Y, [0, 6, 8, 9])], axis=1).astype(int)
    classifier = HalrpClassifier(random_state=0).fit(X[TRAIN], labels[TRAIN])
    predicted = classifier.predict(X[TEST])
    assert predicted.dtype == labels.dtype
    assert (predicted == labels[TEST]).mean(0).min() > 0.9  # measured: 0.955
    assert np.array_equal(classifier.predict_proba(X[TEST]) >= 0.5, predicted)
    assert list(classifier.classes_) == [0, 1, 2]


def test_classes_can_be_weighed() -> None:
    rare = np.isin(Y, [3]).astype(int)
    counts = [
        HalrpClassifier(objective=Classification(weights=weights), recipe=QUICK, random_state=0)
        .fit(X[TRAIN], rare[TRAIN])
        .predict(X[TEST])
        .sum()
        for weights in (None, "balanced", (1.0, 1e4))
    ]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("objective", [MultiLabel(), Classification(classes=7), "cross-entropy"])
def test_an_objective_that_does_not_suit_the_labels_is_refused(objective: Any) -> None:
    with pytest.raises(SettingError, match="does not suit these targets; give a Classification"):
        small(objective=objective).fit(X[TRAIN], Y[TRAIN])


# ---- models -------------------------------------------------------------------------------------------------------


def test_a_given_model_stays_the_base_and_is_not_changed() -> None:
    model = net("conv")
    before = digest(model)
    x, y = (part.numpy() for part in tiny_task("conv"))
    classifier = HalrpClassifier(model, base="given", head="fc", recipe=FAST, random_state=0).fit(x, y)
    assert digest(model) == before
    assert not classifier.delta_.is_base
    assert classifier.n_features_in_ == 3  # the channels of pictures
    learner = Learner(net("conv"), base="given", head="fc", recipe=FAST, seed=0, progress=None)
    learner.learn("task", (torch.tensor(x), torch.tensor(y)))
    assert np.array_equal(classifier.predict_proba(x), learner.answer(torch.tensor(x), "task").probabilities.numpy())


class Wide(nn.Module):
    """A network of a user, in double precision."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, 100, dtype=torch.float64)
        self.head = nn.Linear(100, outputs, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x).relu())
        return logits


def test_a_function_makes_the_model_from_the_seed() -> None:
    state = torch.get_rng_state()
    first, second = (small(model=Wide, random_state=1).fit(X[TRAIN] / 16, Y[TRAIN] % 3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.predict_proba(X[TEST] / 16).dtype == np.float64
    assert np.array_equal(first.predict_proba(X[TEST] / 16), second.predict_proba(X[TEST] / 16))
    hidden = first.learner_.module("task").get_parameter("hidden.weight")
    assert hidden.shape == (100, 64)


# ---- many tasks on one base -----------------------------------------------------------------------------------------


def test_tasks_share_a_base_and_stay_as_they_are(shared: Learner) -> None:
    digits = shared.answer(torch.tensor(X[TEST]), "digits").probabilities
    parity = HalrpClassifier(learner=shared, task="parity").fit(X[TRAIN], Y[TRAIN] % 2)
    before = parity.predict_proba(X[TEST])
    halves = HalrpClassifier(learner=shared, task="halves").fit(X[TRAIN], Y[TRAIN] >= 5)
    assert list(shared.tasks) == ["digits", "parity", "halves"]
    assert torch.equal(shared.answer(torch.tensor(X[TEST]), "digits").probabilities, digits)
    assert np.array_equal(parity.predict_proba(X[TEST]), before)
    # Measured: 0.968 and 0.968, with files of a sixth of the base.
    assert parity.score(X[TEST], Y[TEST] % 2) > 0.9
    assert halves.score(X[TEST], Y[TEST] >= 5) > 0.9
    assert max(parity.delta_.bytes, halves.delta_.bytes) < shared.base_size.bytes / 4


def test_clones_learn_in_copies_of_the_shared_learner(shared: Learner) -> None:
    classifier = small(learner=shared, task="parity")
    assert cross_val_score(classifier, X[TRAIN], Y[TRAIN] % 2, cv=2).min() > 0.5
    search = GridSearchCV(classifier, {"method": [Halrp.budget(), Halrp.budget(20_000)]}, cv=2)
    search.fit(X[TRAIN], Y[TRAIN] % 2)
    assert list(shared.tasks) == ["digits"]
    assert list(search.best_estimator_.learner_.tasks) == ["digits", "parity"]
    assert clone(classifier.fit(X[TRAIN], Y[TRAIN] % 2)).learner is not shared
    assert list(shared.tasks) == ["digits", "parity"]


def test_settings_of_an_estimator_hold_for_its_task_and_not_for_the_learner(shared: Learner) -> None:
    method, recipe, seed = shared.method, shared.recipe, shared.seed
    tight = Halrp.budget(4_000)
    classifier = small(learner=shared, task="parity", method=tight, random_state=7).fit(X[TRAIN], Y[TRAIN] % 2)
    assert classifier.delta_.bytes <= 4_000
    assert classifier.delta_.provenance["seed"] == 7
    assert classifier.delta_.provenance["recipe"]["epochs"] == 2
    assert (shared.method, shared.recipe, shared.seed) == (method, recipe, seed)
    with pytest.raises(HalrpError):
        small(learner=shared, task="other", method=Halrp.budget(10)).fit(X[TRAIN], Y[TRAIN] % 2)
    assert (shared.method, shared.recipe, shared.seed) == (method, recipe, seed)


def test_fitting_again_makes_a_new_version_and_the_older_estimator_notices(shared: Learner) -> None:
    older = small(learner=shared, task="parity").fit(X[TRAIN], Y[TRAIN] % 2)
    newer = small(learner=shared, task="parity").fit(X[TRAIN], Y[TRAIN] % 3)
    assert newer.predict_proba(X[TEST]).shape[1] == 3
    assert len(shared.versions("parity")) == 1
    with pytest.raises(TaskError, match="'parity' was learned again"):
        older.predict(X[TEST])
    shared.remove("parity")
    with pytest.raises(TaskError, match="'parity' is not in its learner any more"):
        newer.predict(X[TEST])
    assert older.fit(X[TRAIN], Y[TRAIN] % 2).predict_proba(X[TEST]).shape[1] == 2


def test_a_method_that_prunes_committed_tasks_is_no_reason_to_refuse(shared: Learner) -> None:
    shared.method = Halrp.official()
    parity, halves = (small(learner=shared, task=name) for name in ("parity", "halves"))
    parity.fit(X[TRAIN], Y[TRAIN] % 2)
    halves.fit(X[TRAIN], Y[TRAIN] >= 5)
    assert shared.tasks["parity"] is not parity.delta_
    assert parity.predict(X[TEST]).shape == (600,)


def test_a_learner_without_a_base_gets_it_from_the_first_estimator() -> None:
    learner = Learner(tabular_network(64, 10), recipe=QUICK, progress=None)
    for name in ("first", "second"):
        HalrpClassifier(learner=learner, task=name).fit(X[TRAIN], Y[TRAIN])
    assert [delta.is_base for delta in learner.tasks.values()] == [True, False]


# ---- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learner": "birds"}, "is no halrp.Learner"),
        ({"learner": Learner(net("mlp")), "task": "a", "model": net("mlp")}, "the learner has its model"),
        ({"learner": Learner(net("mlp")), "task": "a", "base": "given"}, "the learner has its base"),
        ({"learner": Learner(net("mlp"))}, "needs the name of the task"),
        ({"base": "given"}, "needs the model"),
        ({"base": "other"}, "choose 'first' or 'given'"),
        ({"model": 3}, "neither an nn.Module nor a function"),
        ({"validation_fraction": 1.5}, "give a share in"),
        ({"hidden_layer_sizes": ()}, "at least one hidden layer"),
        ({"hidden_layer_sizes": (64, 0)}, "at least one hidden layer"),
        ({"hidden_layer_sizes": 64}, "at least one hidden layer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_are_refused_by_fit(settings: dict[str, Any], message: str) -> None:
    classifier = HalrpClassifier(**settings)
    with pytest.raises(SettingError, match=message):
        classifier.fit(X[:20], Y[:20])
    with pytest.raises(NotFittedError):
        classifier.predict(X[:20])


def test_inputs_that_the_shared_base_cannot_take_are_refused(shared: Learner) -> None:
    with pytest.raises(DataError, match=r"rows of 64 columns, not inputs of shape \(2, 10\)"):
        small(learner=shared, task="narrow").fit(X[TRAIN, :10], Y[TRAIN])
    assert list(shared.tasks) == ["digits"]


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("sklearn.", "halrp.sklearn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'halrp\[sklearn\]'"):
        importlib.import_module("halrp.sklearn")
