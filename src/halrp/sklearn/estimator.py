"""What classifier and regressor have in common: `TaskEstimator`, one task of a learner behind scikit-learn's verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_number
from halrp.errors import SettingError, TaskError
from halrp.learner import Learner
from halrp.method.method import Halrp
from halrp.model.delta import Delta
from halrp.objectives import Classification, Objective, restored
from halrp.sklearn import tabular
from halrp.training.recipe import Recipe

Pair = tuple[np.ndarray, np.ndarray]
"""Inputs and targets."""
MakeModel = Callable[[int, int], nn.Module]
"""`make(features, outputs)`: a model for rows of some features; the last layer gives the outputs."""


class TaskEstimator(BaseEstimator):
    """One task: learned by `fit`, on a learner that the estimator makes or that it shares with others.

    Alone, an estimator makes a learner of its own each time it is fitted. With `learner` it learns its task there: the
    base is shared, a task that the learner already has is replaced by a new version, and clones, as cross-validation
    makes them, learn in copies of the learner, so that nothing they try is committed.
    """

    learner_: Learner
    """The learner that the task was learned on; pass it to other estimators as `learner`."""
    task_: str
    delta_: Delta
    """What the task owns: its bytes, ranks and provenance."""

    def __init__(
        self,
        model: nn.Module | MakeModel | None = None,
        *,
        learner: Learner | None = None,
        task: str | None = None,
        base: Literal["first", "given"] = "first",
        head: Any = None,
        objective: Objective | None = None,
        hidden_layer_sizes: Sequence[int] = (64, 64),
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        validation_fraction: float | None = None,
        random_state: Any = None,
    ) -> None:
        """Take settings; `fit` checks them.

        `model` is a module, a function of (features, outputs) that makes one, or by default a network for tables with
        hidden layers of `hidden_layer_sizes`, which standardises its inputs. A module is copied and never changed; with
        `base="given"` its weights are the base, with "first" the task trains them. `head` is that of `Learner`, and
        `objective` that of `Learner.learn`, if the estimator's default is to have other settings.

        `learner` is what several estimators share, instead of a model, and `task` the name of the task there. `method`
        and `recipe` are by default those of the learner. `validation_fraction` of the rows are held out as validation
        data, for `Recipe(patience=...)` and for what `Learner.learn` decides by them. An integer as `random_state` is
        the seed of `Learner`; None draws one, or leaves a shared learner its own.
        """
        self.model = model
        self.learner = learner
        self.task = task
        self.base = base
        self.head = head
        self.objective = objective
        self.hidden_layer_sizes = hidden_layer_sizes
        self.method = method
        self.recipe = recipe
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    # ---- learning -------------------------------------------------------------------------------------------------

    def _validated(self, X: Any, **settings: Any) -> Any:
        """Inputs as an array of numbers, (N, features), or of any shape that a given model may take."""
        nd = self.model is not None or self.learner is not None
        return validate_data(self, X, allow_nd=nd, **settings)

    def _learn(self, X: np.ndarray, y: np.ndarray, default: Objective, names: Sequence[str] | None = None) -> None:
        """Learn the task from checked inputs and encoded targets, by the objective that was given or the default."""
        self._refuse_settings()
        objective, seed = self._objective(default), self._seed()
        train, held_out = self._split(X, y, seed, stratified=isinstance(objective, Classification))
        learner = self._made(train[0], cast(int, objective.outputs), seed) if self.learner is None else self.learner
        name = "task" if self.task is None else self.task
        with _settings(learner, method=self.method, recipe=self.recipe, seed=seed):
            delta = learner.learn(
                name,
                _task_data(learner, *train),
                None if held_out is None else _task_data(learner, *held_out),
                class_names=names,
                objective=objective,
                replace=name in learner.tasks or name in learner.damaged,
            )
        self.learner_, self.task_, self.delta_ = learner, name, delta

    def _split(self, X: np.ndarray, y: np.ndarray, seed: int, stratified: bool) -> tuple[Pair, Pair | None]:
        """What is trained on and what is held out, if anything is."""
        if self.validation_fraction is None:
            return (X, y), None
        settings = {"test_size": self.validation_fraction, "random_state": seed % 2**32}
        rows, held_out, targets, their_targets = train_test_split(X, y, stratify=y if stratified else None, **settings)
        return (rows, targets), (held_out, their_targets)

    def _refuse_settings(self) -> None:
        kind = type(self).__name__
        if self.learner is not None:
            if not isinstance(self.learner, Learner):
                raise SettingError(f"{kind}(learner={self.learner!r}) is no halrp.Learner; give one, or None")
            for name, default in (("model", None), ("base", "first"), ("head", None)):
                if getattr(self, name) != default:
                    raise SettingError(f"{kind}(learner=..., {name}=...): the learner has its {name}; drop one of both")
            if self.task is None:
                raise SettingError(f"{kind}(learner=...) needs the name of the task, such as task='birds'")
        elif self.model is None and self.base == "given":
            raise SettingError(f"{kind}(base='given') needs the model that is given; pass model=..., or base='first'")
        elif self.model is not None and not callable(self.model):
            raise SettingError(
                f"{kind}(model={self.model!r}) is neither an nn.Module nor a function of (features, outputs)"
            )
        fraction = self.validation_fraction
        if fraction is not None and not (is_number(fraction) and 0 < fraction < 1):
            raise SettingError(f"{kind}(validation_fraction={fraction!r}): give a share in (0, 1), or None")

    def _objective(self, default: Objective) -> Objective:
        """The objective that was given, which must be of the default's kind and width, or the default."""
        given = self.objective
        if given is None:
            return default
        if not isinstance(given, type(default)) or given.outputs not in (None, default.outputs):
            raise SettingError(
                f"{type(self).__name__}(objective={given!r}) does not suit these targets; give a "
                f"{type(default).__name__} that leaves open what the targets show, or None"
            )
        return given.with_outputs(cast(int, default.outputs))

    def _seed(self) -> int:
        """An integer is the seed itself, None that of a shared learner; otherwise it is drawn as scikit-learn does."""
        if self.random_state is None and self.learner is not None:
            return self.learner.seed
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _made(self, rows: np.ndarray, outputs: int, seed: int) -> Learner:
        """A new learner for this task alone. Weights that are drawn depend on the seed and on nothing else."""
        recipe, model = self.recipe, self.model
        with seeding.isolated(seed, "model", device=torch.device("cpu")):
            if model is None:
                model = tabular.fitted_network(rows, outputs, self.hidden_layer_sizes)
                recipe = tabular.RECIPE if recipe is None else recipe
            elif not isinstance(model, nn.Module):
                model = model(rows.shape[1], outputs)
        return Learner(
            model, head=self.head, method=self.method, recipe=recipe, seed=seed, base=self.base, progress=None
        )

    # ---- copying --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Everything, and whether the learner's task is still the one that was fitted."""
        state: dict[str, Any] = super().__getstate__()
        fitted = state.get("delta_")
        current = fitted is not None and state["learner_"].tasks.get(state["task_"]) is fitted
        return {**state, "_is_current": current}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over the learner's task, which a copied learner has bound to its own base."""
        current = state.get("_is_current", False)
        super().__setstate__({name: value for name, value in state.items() if name != "_is_current"})
        if current:
            self.delta_ = self.learner_.tasks[self.task_]

    # ---- predicting -----------------------------------------------------------------------------------------------

    def _outputs(self, X: Any) -> Tensor:
        """What the task's network gives for inputs, (N, outputs)."""
        check_is_fitted(self, "learner_")
        rows = self._validated(X, reset=False)
        delta = self.learner_.tasks.get(self.task_)
        if delta is None or not (delta is self.delta_ or self.learner_.method.compress.changes_committed):
            done = "is not in its learner any more" if delta is None else "was learned again"
            raise TaskError(
                f"{self.task_!r} {done} since this {type(self).__name__} was fitted, so its answers would be another "
                "task's; fit it again, or use the estimator that learned the task last"
            )
        return self.learner_.predict(_inputs(self.learner_, rows), self.task_)

    def _decoded(self, outputs: Tensor) -> Any:
        """What outputs mean, by the task's objective."""
        return restored(self.delta_.objective, self.delta_.classes, self.task_).decode(outputs)


def _inputs(learner: Learner, rows: np.ndarray) -> Tensor:
    """Inputs as a new tensor in the type of the network's first numbers."""
    numbers = learner._committed.body.module.state_dict().values()
    dtype = next(number.dtype for number in numbers if number.is_floating_point())
    return torch.tensor(rows).to(dtype)


def _task_data(learner: Learner, rows: np.ndarray, targets: np.ndarray) -> tuple[Tensor, Tensor]:
    return _inputs(learner, rows), torch.tensor(targets)


@contextmanager
def _settings(learner: Learner, **given: Any) -> Iterator[None]:
    """Let a learner have other settings inside the block, while no other thread learns."""
    with seeding.exclusive():
        before = {name: vars(learner)[name] for name in ("_method", "_recipe", "seed")}
        try:
            for name, value in given.items():
                if value is not None:
                    setattr(learner, name, value)
            yield
        finally:
            vars(learner).update(before)
