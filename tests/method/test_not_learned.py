"""A task that did not learn is not committed silently, and one that diverges on a given base is left at the probe."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from halrp import FromProbe, Halrp, Learner, Recipe, WarmUp
from halrp.cli.app import app
from halrp.errors import DivergedError, DivergedWarning, NotLearnedWarning
from halrp.method import probe
from halrp.method.outcome import outcome_of
from halrp.model.task_parts import name_of
from halrp.objectives import Regression
from halrp.tools.inspect import summary
from halrp.training.loop import Training
from tests.commands import invoke
from tests.helpers import CLASSES, net, tiny_task
from tests.training.processes import together

RECIPE = Recipe(epochs=12, batch=8, lr=0.01)
ROOMY = Halrp.budget(growth_per_task=0.9)
STARTS = {"warm-up": replace(ROOMY, start=WarmUp()), "probe": ROOMY}
DIVERGING = Recipe(epochs=3, batch=8, lr=1e25)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Tests of other things train too little for a score, so the suite ignores this warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotLearnedWarning)
        yield


def learner(start: str = "warm-up", **settings: Any) -> Learner:
    defaults: dict[str, Any] = {"method": STARTS[start], "recipe": RECIPE, "base": "given"}
    return Learner(net("mlp"), **defaults | settings)


def data(seed: int = 0) -> dict[str, Any]:
    x, y = tiny_task("mlp", seed, examples=48)
    return {"train": (x[:24], y[:24]), "val": (x[24:], y[24:])}


def wrong(seed: int = 0) -> dict[str, Any]:
    """Validation labels that are those of another class: whoever learns the task has none of them right."""
    x, y = data(seed)["val"]
    return data(seed) | {"val": (x, (y + 1) % CLASSES)}


MESSAGE = r"a: its score on the validation data, [0-9.]+, is no better than .* 0\.3333, .*lower Recipe\(lr=0\.01\)"


@pytest.mark.parametrize("start", STARTS)
def test_a_task_that_scores_no_more_than_its_largest_class_says_so_and_its_file_too(start: str, tmp_path: Path) -> None:
    result = learner(start, store=tmp_path)
    with pytest.warns(NotLearnedWarning, match=MESSAGE):
        delta = result.learn("a", **wrong())
    outcome = outcome_of(delta.provenance)
    assert outcome is not None
    assert outcome.is_guess
    assert outcome.guess == pytest.approx(1 / 3, abs=1e-4)
    shown = summary(tmp_path)["tasks"][0]["outcome"]
    assert shown["guess"] == outcome.guess
    assert "no better than guessing (33.3)" in shown["text"]
    assert "no better than guessing (33.3)" in invoke(app, "inspect", tmp_path).out


@pytest.mark.parametrize("start", STARTS)
def test_a_task_that_learned_reports_its_score_without_a_warning(start: str) -> None:
    delta = learner(start).learn("a", **data())
    outcome = outcome_of(delta.provenance)
    assert outcome is not None
    assert outcome.end.score > 0.9
    assert outcome.guess == pytest.approx(1 / 3, abs=1e-4)
    assert "guessing" not in str(outcome)
    assert (outcome.start is None) == (start == "warm-up")


def test_the_task_that_trains_the_base_reports_its_score_too() -> None:
    good = outcome_of(learner(base="first").learn("a", **data()).provenance)
    assert good is not None
    assert good.end.score > 0.9
    with pytest.warns(NotLearnedWarning, match=MESSAGE):
        learner(base="first").learn("a", **wrong())


@pytest.mark.parametrize("base", ["first", "given"])
def test_a_warning_that_is_an_error_commits_nothing(base: Any, tmp_path: Path) -> None:
    result = learner(base=base, store=tmp_path)
    with pytest.raises(NotLearnedWarning):
        result.learn("a", **wrong())
    assert not result.tasks


def test_a_regression_warns_below_the_mean() -> None:
    x, _ = tiny_task("mlp", examples=48)
    y = x[:, 0] + 0.5 * x[:, 1]
    good: dict[str, Any] = {"train": (x[:24], y[:24]), "val": (x[24:], y[24:])}
    learner("probe").learn("a", **good, objective=Regression())
    with pytest.warns(NotLearnedWarning, match="a: its score on the validation data, -"):
        learner("probe").learn("a", **good | {"val": (x[24:], -y[24:])}, objective=Regression())


def test_without_validation_data_nothing_is_compared() -> None:
    for start in STARTS:
        assert outcome_of(learner(start).learn("a", data()["train"]).provenance) is None


def test_where_fine_tuning_leaves_a_guess_the_start_is_kept_if_it_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Training.run

    def destroying(self: Training, until: int | None = None) -> Training:
        run(self, until)
        if self.stage.name.startswith("fine-tune"):
            with torch.no_grad():
                for parameter in self._updates.parameters:
                    parameter.zero_()
        return self

    monkeypatch.setattr(Training, "run", destroying)
    method = replace(STARTS["warm-up"], warm_up=8)
    for each in (method, replace(method, rest="int8", precision="int8")):
        result, task = learner(method=each), data()
        outcome = outcome_of(result.learn("a", **task).provenance)
        assert outcome is not None
        assert outcome.end.score > 0.6
        x, y = task["val"]
        assert float((result.predict(x, "a").argmax(1) == y).float().mean()) == pytest.approx(
            outcome.end.score, abs=0.05
        )


# ---- divergence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validated", [True, False])
def test_where_fine_tuning_diverges_the_probe_is_committed_with_a_warning(validated: bool) -> None:
    task = data() if validated else {"train": data()["train"]}
    result = learner("probe", recipe=DIVERGING)
    with pytest.warns(DivergedWarning, match=r"a: the loss became (nan|inf) .*lower Recipe\(lr=1e\+25\).*The probe"):
        delta = result.learn("a", **task)
    assert {name_of(key) for key in delta.precisions} == delta.layout.head
    x, y = data()["val"]
    assert float((result.predict(x, "a").argmax(1) == y).float().mean()) > 0.8
    outcome = outcome_of(delta.provenance)
    assert (outcome is not None) == validated
    assert outcome is None or outcome.epoch == 0


def test_where_there_is_no_rehearsal_either_the_probe_is_committed() -> None:
    result = learner(method=replace(ROOMY, start=FromProbe(held_out=0)), recipe=DIVERGING)
    with pytest.warns(DivergedWarning, match="The probe"):
        delta = result.learn("a", data()["train"])
    assert {name_of(key) for key in delta.precisions} == delta.layout.head


def test_a_warm_up_that_diverges_is_an_error_as_there_is_nothing_to_fall_back_to() -> None:
    with pytest.raises(DivergedError):
        learner("warm-up", recipe=DIVERGING).learn("a", **data())


def test_a_probe_that_is_not_finite_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: object, **__: object) -> probe.Probe:
        raise DivergedError("fitting the head on the base's features diverged")

    monkeypatch.setattr(probe, "fit", fit)
    with pytest.raises(DivergedError, match="fitting the head"):
        learner("probe").learn("a", **data())


# ---- two processes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["diverging", "guess"])
def test_two_processes_agree_on_what_is_committed(case: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"recipe": DIVERGING} if case == "diverging" else {}

    def work(rank: int) -> tuple[list[str], str, Tensor]:
        task = data() if case == "diverging" else wrong()
        result = learner("probe" if case == "diverging" else "warm-up", distributed=True, progress=None, **settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            delta = result.learn("a", **task)
        kinds = [each.category.__name__ for each in caught if "Warning" in each.category.__name__]
        return kinds, str(outcome_of(delta.provenance)), result.predict(task["val"][0], "a")

    first, second = together(work, tmp_path)
    assert first[:2] == second[:2]
    assert torch.equal(first[2], second[2])
    assert first[0] == ["DivergedWarning" if case == "diverging" else "NotLearnedWarning"]
