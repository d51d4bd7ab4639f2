"""Learn a stream of tasks on one model: `Learner`.

`_learn_delta` is Algorithm 1 of the paper, one call per step. A task depends on the base and on its own data and on
nothing else, a committed task never changes, and a call that fails or is interrupted leaves the learner as it was.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halrp import parallel, seeding
from halrp._version import __version__
from halrp.errors import DataError, HeadError, SettingError, TaskError, UnknownTaskError, WrongBaseError
from halrp.method import importance
from halrp.method.budget import Budget, FixedCost
from halrp.method.compress import compress
from halrp.method.decompose import Whitened
from halrp.method.method import Halrp
from halrp.method.start import truncate
from halrp.method.tune import preferred, tuned, tuning
from halrp.model import views
from halrp.model.base import Base, check_outputs, evaluating
from halrp.model.delta import Delta
from halrp.model.factors import identity_factors
from halrp.model.inference import normalises_by_batch
from halrp.model.plan import plan
from halrp.model.size import Size
from halrp.provenance import describe, recalled_recipe
from halrp.serve.predictor import Predictor
from halrp.store import atomic
from halrp.store.store import Store
from halrp.training.batches import Augment, Data, Source, TaskData, prepare, refuse_batch_of_one
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Hooks, Stage, Training
from halrp.training.progress import Notify
from halrp.training.recipe import Recipe, autocast


class Learner:
    """Learns tasks on a model of yours, one small delta each, and predicts for any of them.

    The model is copied and never changed. With `base="first"` the first task trains the base, starting from the
    model's weights; with `base="given"` the model's weights are the base and every task is a delta.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | None = None,
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        base: Literal["first", "given"] = "first",
        store: str | os.PathLike[str] | Store | None = None,
        progress: Notify | None = None,
    ) -> None:
        """Take a model and settings.

        `head` names the classifier layer (found if it is the last one), `method` defaults to `Halrp.budget()`,
        `progress` is called as training goes on. With `store`, a folder, each task is committed there as it is
        learned, tasks already there are loaded, and a task that was interrupted goes on at its last finished epoch.
        """
        if base not in ("first", "given"):
            raise SettingError(f"Learner(base={base!r}) is unknown; choose 'first' or 'given'")
        self.method = Halrp.budget() if method is None else method
        self.recipe = Recipe() if recipe is None else recipe
        self.seed = seed
        self.progress = progress
        if self.recipe.epochs <= self.method.warm_up:
            raise SettingError(
                f"Recipe(epochs={self.recipe.epochs}) leaves nothing to fine-tune after "
                f"Halrp(warm_up={self.method.warm_up}); give more epochs"
            )
        channels_last = self.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in model.modules())
        self._initial = Base(views.clone(model), plan(model, head), channels_last)
        self._base = self._initial if base == "given" else None
        self._tasks: dict[str, Delta] = {}
        self._scores: dict[str, Mapping[str, Tensor]] = {}
        self._predictor: Predictor | None = None
        self._store = store if store is None or isinstance(store, Store) else Store(store)
        if self._store is not None and self._store.exists():
            self._restore(self._store)

    @property
    def tasks(self) -> Mapping[str, Delta]:
        """What each learned task owns, in the order of learning. Read-only."""
        return MappingProxyType(self._tasks)

    @property
    def scores(self) -> Mapping[str, Mapping[str, Tensor]]:
        """By task and adapted weight, the loss that each component was predicted to buy, (components,).

        Of the deltas that this very learner has learned: a file of a task has what was kept, not what was on offer.
        """
        return MappingProxyType(self._scores)

    @property
    def head(self) -> str:
        """The name of the head."""
        return self._body.plan.head

    @property
    def base_parameters(self) -> int:
        """The number of parameters of the base, with the head it was trained with."""
        return self._body.parameter_count

    @property
    def base_size(self) -> Size:
        """The numbers and bytes of the base, buffers and the head it was trained with included."""
        return self._body.size

    @property
    def device(self) -> torch.device:
        """Where the base lies; tasks follow it."""
        return self._body.device

    def learn(
        self,
        name: str,
        train: Source,
        val: Source | None = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        augment: Augment | None = None,
    ) -> Delta:
        """Learn a task and commit it.

        `train` and `val` are `(x, y)` tensors, a `Dataset` or a `DataLoader`; labels are 0 … classes−1, and `classes`
        defaults to the number of class names, or else to the largest label plus one. Validation data, if given,
        decide importance and view. `augment(x, generator)` changes the inputs of every batch that is trained on.
        """
        self._check_name(name)
        classes = len(class_names) if classes is None and class_names is not None else classes
        base = self._body
        with torch.enable_grad(), seeding.isolated(*self._names(name), device=base.device):
            data, classes = self._prepare(name, "train", train, classes)
            held_out = None if val is None else self._prepare(name, "val", val, classes)[0]
            if class_names is not None and len(class_names) != classes:
                raise TaskError(f"{name}: {len(class_names)} class names for {classes} classes; give one for each")
            if base.has_batch_norm:
                refuse_batch_of_one(data, self.recipe.batch, f"{name}: train")
            if held_out is not None and normalises_by_batch(base.module):
                refuse_batch_of_one(held_out, self.recipe.batch, f"{name}: val")
            names = None if class_names is None else tuple(map(str, class_names))
            task_data = TaskData(data, held_out, classes, names, augment)
            return (
                self._learn_base(name, task_data)
                if self._base is None
                else self._learn_delta(self._base, name, task_data)
            )

    def learn_many(self, tasks: parallel.TaskArguments, engine: parallel.Engine | None = None) -> dict[str, Delta]:
        """Learn several tasks and commit them in the given order; `engine`'s workers learn them side by side.

        `tasks` says by name what `learn` takes: `{"birds": ((x, y), (xv, yv)), …}`. An engine has `submit`, as the
        executors of `concurrent.futures` and Dask's clients do. Deltas are those of one-by-one learning, to the bit.
        The first task is learned here if there is no base. When a task fails, those before it stay committed.
        """
        arguments = {name: parallel.arguments_of(name, task_data) for name, task_data in tasks.items()}
        for name in arguments:
            self._check_name(name)
        here = [name for i, name in enumerate(arguments) if engine is None or (i == 0 and self._base is None)]
        found = {name: self.learn(name, **arguments.pop(name)) for name in here}
        if engine is not None and arguments:
            for name, delta in parallel.learned_apart(self, arguments, engine):
                self._commit(self._ready, {**self._tasks, name: delta}, None)
                found[name] = delta
        return found

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TaskError(f"a task's name must be a non-empty string, got {name!r}")
        if name in self._tasks:
            raise TaskError(f"task {name!r} is already learned and never changes; choose another name")

    def _learn_base(self, name: str, task_data: TaskData) -> Delta:
        checkpoints = self._checkpoints(name, task_data._replace(val=None))
        net = self._new_net(self._initial, name, task_data)
        adapted = self._initial.plan.named("adapted")
        weights = [parameter for n, parameter in net.named_parameters() if n in adapted]
        others = [p for n, p in net.named_parameters() if n not in adapted and p.requires_grad]
        groups = [Group(weights, l2=self.method.base_l2), Group(others)]
        self._training(name, "base", net, groups, task_data, self.recipe.epochs, checkpoints).run()
        base = Base(net, self._initial.plan, self._initial.channels_last)
        delta = Delta(
            name,
            task_data.classes,
            base.fingerprint,
            class_names=task_data.class_names,
            provenance=self._how(task_data),
        )
        self._commit(base, {name: delta}, checkpoints)
        return delta

    def _learn_delta(self, base: Base, name: str, task_data: TaskData) -> Delta:
        method, recipe, val, classes = self.method, self.recipe, task_data.val, task_data.classes
        checkpoints = self._checkpoints(name, task_data)
        # Warm up: train a copy of the base freely, to see where the task wants to go.
        net = self._new_net(base, name, task_data)
        everything = Group([parameter for parameter in net.parameters() if parameter.requires_grad])
        self._training(name, "warm-up", net, [everything], task_data, method.warm_up, checkpoints).run()
        # Importance: what an error in each free weight costs.
        weights = base.adapted_weights()
        free = {n: p for n, p in net.named_parameters() if n in weights}
        judge = task_data.train if val is None else val
        with evaluating(net):
            costs = method.importance(net, free, judge, recipe.batch)
            whitens = isinstance(method.decompose, Whitened)
            curvature = importance.curvature(net, free, judge, recipe.batch) if whitens else {}
        # Scales, decomposition, allocation: one start for each view of convolutions that is tried.
        owned = base.owned_tensors(net)
        how: dict[str, Any] = {
            "class_names": task_data.class_names,
            "provenance": self._how(task_data),
            "precision": method.precision,
        }
        fixed = [*_fixed(owned), FixedCost("file header", 0, self._header(base, name, classes, owned, how))]
        kernels = {n: base.plan.parameters[n].kernel for n in free}
        size = Size(base.parameter_count, base.size.bytes)
        starts = {
            view: truncate(
                {n: p.detach() for n, p in free.items()},
                weights,
                costs,
                curvature,
                method,
                {n: view if kernel else "full" for n, kernel in kernels.items()},
                fixed,
                size,
                seeding.generator(*self._names(name), "truncate", view),
            )
            for view in method.views(any(kernels.values()), val is not None)
        }
        # Fine-tune: each start for a while, then the one that validation data prefer to the end.
        runs = [tuning(base, method, view, start, owned, classes) for view, start in starts.items()]
        epochs = recipe.epochs - method.warm_up
        trainings = [
            self._training(name, f"fine-tune: {run.view}", run.net, run.groups, task_data, epochs, checkpoints)
            for run in runs
        ]
        best = 0 if val is None or len(runs) == 1 else preferred(trainings, method.trial, val, recipe, checkpoints)
        trainings[best].run()
        # Compress and commit.
        start, foreseen = runs[best].start, owned.keys()
        factors, owned = tuned(base, runs[best])
        roles = {n: base.plan.role(n) for n in owned}
        delta = Delta.pack(
            name, classes, base.fingerprint, factors, owned, roles, start.recovered, runs[best].view, **how
        )
        if isinstance(method.allocate, Budget):
            late = sorted(owned.keys() - foreseen - start.owned.keys())
            method.allocate.check(Size(delta.parameters, delta.bytes), size, late)
        self._commit(base, compress(method.compress, {**self._tasks, name: delta}, base.parameter_count), checkpoints)
        self._scores[name] = start.scores
        return self._tasks[name]

    def predict(self, x: Tensor, task: str | Sequence[str | None] | None, batch: int = 512) -> Tensor:
        """Logits of a task, in evaluation mode and without gradient; `None` is the base's own task.

        With a sequence of names, one per row, rows of different tasks go through the network together. The result is
        as wide as the widest task among them, and −inf where a row's task has no such class. A model that normalises
        by the statistics of the batch does so among the rows of one task, `batch` of them at a time.
        """
        if x.shape[0] == 0:
            raise DataError("predict: x has no rows; pass at least one example")
        x = self._body.prepare_inputs(x)
        with torch.no_grad(), autocast(self.recipe.autocast, self.device):
            if task is None or isinstance(task, str):
                return self._predicting.predict(x, task, batch)
            return self._predicting.predict_mixed(x, task, batch)

    def module(self, task: str | None) -> nn.Module:
        """A task as an `nn.Module` in evaluation mode that shares the base's tensors. Do not train it."""
        return self._ready.view(self._predicting.delta(task))

    def export(self, task: str | None) -> nn.Module:
        """A task as a plain module of the model's own classes, with merged weights, that shares nothing."""
        return self._ready.merged(self._predicting.delta(task))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the base and every task to a store; what is already there and equal is left as it is."""
        Store(folder).commit(self._ready, list(self._tasks.values()))

    @staticmethod
    def load(
        folder: str | os.PathLike[str],
        model: nn.Module,
        *,
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        progress: Notify | None = None,
    ) -> Learner:
        """Read a store's base and tasks into a learner.

        `model` gives the architecture; its weights do not matter. Without a `recipe` the one that the newest task was
        learned with is used, since its precision of forward passes belongs to the task's predictions.
        """
        store = Store(folder)
        try:
            head = store.manifest().head
            learner = Learner(model, head=head, method=method, recipe=recipe, seed=seed, progress=progress)
        except HeadError as error:
            raise WrongBaseError(f"the store {folder} was made with another model: {error}") from error
        learner._restore(store)
        if recipe is None and learner.tasks:
            learner.recipe = recalled_recipe(list(learner.tasks.values())[-1].provenance)
        return learner

    # ---- the steps' small parts -------------------------------------------------------------------------------

    @property
    def _body(self) -> Base:
        """The base, or what will become it."""
        return self._initial if self._base is None else self._base

    @property
    def _ready(self) -> Base:
        if self._base is None:
            raise UnknownTaskError("there is no base yet: learn a first task, or use Learner(..., base='given')")
        return self._base

    @property
    def _predicting(self) -> Predictor:
        if self._predictor is None:
            self._predictor = Predictor(self._ready, self._tasks)
        return self._predictor

    def _names(self, name: str) -> tuple[object, ...]:
        """What every random draw of a task is a function of."""
        return self.seed, None if self._base is None else self._base.fingerprint, name

    def _how(self, task_data: TaskData) -> dict[str, object]:
        how = {"halrp": __version__, "method": describe(self.method), "recipe": describe(self.recipe)}
        return (
            how | {"seed": self.seed} | ({} if task_data.augment is None else {"augment": describe(task_data.augment)})
        )

    def _prepare(self, name: str, part: str, source: Source, classes: int | None) -> tuple[Data, int]:
        return prepare(
            source,
            name=f"{name}: {part}",
            device=self.device,
            batch=self.recipe.batch,
            classes=classes,
            shuffle=self.recipe.shuffle,
            channels_last=self._body.channels_last,
            drop_last=self.recipe.drop_last and part == "train",
        )

    def _new_net(self, base: Base, name: str, task_data: TaskData) -> nn.Module:
        net = base.trainable(task_data.classes, *self._names(name))
        check_outputs(net, next(iter(task_data.train.batches(2, None)))[0], task_data.classes, self.head, name)
        return net

    def _training(
        self,
        name: str,
        stage: str,
        net: nn.Module,
        groups: list[Group],
        task_data: TaskData,
        epochs: int,
        checkpoints: Checkpoints | None,
    ) -> Training:
        return Training(
            net,
            groups,
            task_data.train,
            self.recipe,
            Stage(epochs, (*self._names(name), stage.partition(":")[0]), name, stage),
            Hooks(augment=task_data.augment),
            self.progress,
            checkpoints,
        )

    def _checkpoints(self, name: str, task_data: TaskData) -> Checkpoints | None:
        """Where this very task may have been interrupted: same names, data, method and recipe."""
        if self._store is None:
            return None
        examples = task_data.train.identity(), None if task_data.val is None else task_data.val.identity()
        parts = (*self._names(name), self._body.fingerprint, task_data.classes, *examples, self._how(task_data))
        key = atomic.checksum(repr(parts).encode())
        return Checkpoints(self._store.work_folder(name), key, self._store.checkpoint_every)

    def _header(self, base: Base, name: str, classes: int, owned: Mapping[str, Tensor], how: Mapping[str, Any]) -> int:
        """A bound on the bytes of a task's file that are not tensors: names, shapes and how it was learned."""
        factors = {n: identity_factors(w) for n, w in base.adapted_weights().items()}
        roles = {n: base.plan.role(n) for n in owned}
        return Delta.pack(name, classes, base.fingerprint, factors, owned, roles, view="mean", **how).header_bound()

    def _commit(self, base: Base, tasks: dict[str, Delta], checkpoints: Checkpoints | None) -> None:
        """Make tasks immutable: in the store first, if there is one, then here, all at once."""
        changed = [delta for name, delta in tasks.items() if self._tasks.get(name) is not delta]
        if self._store is not None:
            self._store.commit(base, changed, known=self._tasks)
        self._base, self._tasks, self._predictor = base, tasks, Predictor(base, tasks, self._predictor)
        if checkpoints is not None:
            checkpoints.clear()

    def _restore(self, store: Store) -> None:
        """Take over a store's base and tasks; nothing changes if it cannot be read."""
        base = store.read_base(self._initial)
        if self._base is not None and base.fingerprint != self._base.fingerprint:
            raise WrongBaseError(
                f"the store {store.folder} was made on a base with fingerprint {base.fingerprint[:12]}…, the given "
                f"model has {self._base.fingerprint[:12]}…; pass the model it was made with, or another folder"
            )
        self._base, self._tasks, self._predictor = base, store.read_all(base), None


def _fixed(owned: Mapping[str, Tensor]) -> list[FixedCost]:
    return [FixedCost(n, t.numel(), t.numel() * t.element_size()) for n, t in owned.items()]
