"""What classifier and regressor have in common: `TaskEstimator`, one task of a learner behind scikit-learn's verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Literal

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
from halrp.sklearn import tabular
from halrp.training.recipe import Recipe

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
        hidden_layer_sizes: Sequence[int] = (64, 64),
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        validation_fraction: float | None = None,
        random_state: Any = None,
    ) -> None:
        """Take settings; `fit` checks them.

        `model` is a module, a function of (features, outputs) that makes one, or by default a network for tables with
        hidden layers of `hidden_layer_sizes`, which standardises its inputs. A module is copied and never changed; with
        `base="given"` its weights are the base, with "first" the task trains them. `head` is that of `Learner`.

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

    def _learn(self, X: np.ndarray, y: np.ndarray, outputs: int, stratify: bool, **arguments: Any) -> None:
        """Learn the task from checked inputs and encoded targets; `arguments` are those of `Learner.learn`."""
        self._refuse_settings()
        seed = self._seed()
        val: tuple[Tensor, Tensor] | None = None
        rows, targets = X, y
        if self.validation_fraction is not None:
            rows, held_out, targets, held_out_targets = train_test_split(
                X, y, test_size=self.validation_fraction, stratify=y if stratify else None, random_state=seed
            )
        learner = self._made(rows, outputs, seed) if self.learner is None else self.learner
        if self.validation_fraction is not None:
            val = _inputs(learner, held_out), torch.tensor(held_out_targets)
        name = "task" if self.task is None else self.task
        given = {"method": self.method, "recipe": self.recipe, "seed": None if self.random_state is None else seed}
        with _settings(learner, {} if self.learner is None else given):
            again = name in learner.tasks or name in learner.damaged
            train = _inputs(learner, rows), torch.tensor(targets)
            delta = learner.learn(name, train, val, replace=again, **arguments)
        self.learner_, self.task_, self.delta_ = learner, name, delta

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

    def _seed(self) -> int:
        """An integer is the seed itself; otherwise it is drawn as scikit-learn does."""
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

    # ---- predicting -----------------------------------------------------------------------------------------------

    def _answer(self, X: Any) -> Any:
        """What the task answers for inputs (`Learner.answer`)."""
        check_is_fitted(self, "learner_")
        rows = self._validated(X, reset=False)
        delta = self.learner_.tasks.get(self.task_)
        if delta is None or not (delta is self.delta_ or self.learner_.method.compress.changes_committed):
            done = "is not in its learner any more" if delta is None else "was learned again"
            raise TaskError(
                f"{self.task_!r} {done} since this {type(self).__name__} was fitted, so its answers would be another "
                "task's; fit it again, or use the estimator that learned the task last"
            )
        return self.learner_.answer(_inputs(self.learner_, rows), self.task_)


def _inputs(learner: Learner, rows: np.ndarray) -> Tensor:
    """Inputs as a new tensor in the type of the network's first numbers."""
    numbers = learner._committed.body.module.state_dict().values()
    dtype = next(number.dtype for number in numbers if number.is_floating_point())
    return torch.tensor(rows).to(dtype)


@contextmanager
def _settings(learner: Learner, given: dict[str, Any]) -> Iterator[None]:
    """Let a learner have other settings inside the block, while no other thread uses it to learn."""
    with seeding.exclusive():
        before = {name: vars(learner)[name] for name in ("_method", "_recipe", "seed")}
        try:
            for name, value in given.items():
                if value is not None:
                    setattr(learner, name, value)
            yield
        finally:
            vars(learner).update(before)
