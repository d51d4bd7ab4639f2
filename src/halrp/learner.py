"""Learn a stream of tasks on one model: `Learner`.

`_learn_delta` is Algorithm 1 of the paper, one call per step; its first half is a start of the method, as `WarmUp`. A
task depends on the base and on its own data and on nothing else, a committed task never changes, and a call that fails
or is interrupted leaves the learner unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halrp import parallel, seeding
from halrp.committed import Committed
from halrp.errors import HeadError, SettingError, WrongBaseError
from halrp.method.fine_tune import fine_tune, is_clearly_worse, or_its_start
from halrp.method.method import Halrp
from halrp.method.outcome import measured, outcome_of, reporting, warn_of_a_guess
from halrp.method.pack import packed
from halrp.method.start_choice import start_of
from halrp.model import proof, views
from halrp.model.appended import WithHead, as_stored, with_head
from halrp.model.base import Base
from halrp.model.batch import Batch, refuse_other_structure, structure, take
from halrp.model.call import Call, Pick
from halrp.model.commit_check import CommitCheck
from halrp.model.delta import Delta
from halrp.model.plan import plan
from halrp.model.precision import run_in
from halrp.model.size import Size
from halrp.objectives import Objective
from halrp.predictions import Predictions
from halrp.provenance import recalled_settings, refuse_other_call
from halrp.store.signing import AnyKey
from halrp.store.store import Store
from halrp.task_setup import TaskArguments, TaskSetup, check_epochs
from halrp.training import auto
from halrp.training.bar import Show, notifier
from halrp.training.batches import Augment
from halrp.training.distributed import Processes, agreed
from halrp.training.groups import Group, by_kind, by_role
from halrp.training.prepare import Source
from halrp.training.recipe import Recipe
from halrp.training.run import TaskRun
from halrp.training.shared_data import whole


class Learner(Predictions):
    """Learns tasks on a model of yours, one small delta each, and predicts for any of them.

    The model is copied and never changed. With `base="first"` the first task trains the base, starting from the
    model's weights; with `base="given"` the model's weights are the base and every task is a delta.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | nn.Module | Literal[False] | None = None,
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        base: Literal["first", "given"] = "first",
        store: str | os.PathLike[str] | Store | None = None,
        progress: Show = "auto",
        skip_damaged: bool = False,
        output: Pick = None,
        transform: Callable[[Batch], Batch] | None = None,
        distributed: bool = False,
    ) -> None:
        """Take a model and settings.

        `head` names what every task replaces: a layer (by default the last one), or a module whose layers are all drawn
        again for every task. A module instead of a name is put on top of the model's outputs and gets the width of each
        task. `head=False` keeps the model's outputs for every task.

        `method` defaults to `Halrp.budget()`, `recipe` to `Recipe.auto()`. `progress` is a callback, "bar", or None; by
        default a bar if there is a terminal. With `store`, a folder, every task is committed there when it is learned,
        tasks already there are loaded, and one that was interrupted resumes at its last checkpoint. `skip_damaged`
        leaves tasks of the store out that cannot be read, with a warning; `damaged` names them.

        Batches reach the model as `model(x)`, `model(*x)` or `model(**x)`, after `transform(x)` if there is one. Its
        outputs are a tensor, what is called `logits` in what it gives, or what `output` picks: a key or attribute, a
        position, or a function; for a head on top of the model, `output` picks the features.

        With `distributed`, the processes of torch's process group learn each task together: all call `learn` with the
        same arguments, each with its own loader if data come from one (docs/scaling.md). The first writes to the store.
        """
        if base not in ("first", "given"):
            raise SettingError(f"Learner(base={base!r}) is unknown; choose 'first' or 'given'")
        self._method: Halrp | SettingError = Halrp.budget() if method is None else method
        self._recipe: Recipe | SettingError = Recipe.auto() if recipe is None else recipe
        self.seed, self.distributed = seed, distributed
        notifier(progress)  # refuses what is none
        self.progress = progress
        model, name = with_head(model, head, output)
        call = Call(None if isinstance(model, WithHead) else output, transform)
        channels_last = self.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in model.modules())
        initial = Base(views.clone(model), plan(model, name), channels_last, counts_head=base == "first", call=call)
        check_epochs(self.method, self.recipe, initial if base == "given" else None)
        folder = store if store is None or isinstance(store, Store) else Store(store)
        self._committed = Committed(initial, base == "given", folder, skip_damaged)
        self._processes()  # refuses what cannot learn together
        self._refuse_other_call()
        self._scores: dict[str, Mapping[str, Tensor]] = {}

    @property
    def method(self) -> Halrp:
        """How tasks become deltas; a `SettingError` if a store was loaded whose method cannot be recalled."""
        if isinstance(self._method, SettingError):
            raise SettingError(f"{self._method}; pass Learner.load(..., method=...)") from self._method
        return self._method

    @method.setter
    def method(self, method: Halrp) -> None:
        self._method = method

    @property
    def recipe(self) -> Recipe:
        """How tasks are trained; a `SettingError` if a store was loaded whose recipe cannot be used."""
        if isinstance(self._recipe, SettingError):
            raise SettingError(f"{self._recipe}; pass Learner.load(..., recipe=...)") from self._recipe
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: Recipe) -> None:
        self._recipe = recipe

    @property
    def head(self) -> str:
        """The name of what every task replaces; "" if the model's own outputs are kept."""
        return self._committed.body.plan.head

    @property
    def base_parameters(self) -> int:
        """The number of parameters of the base, with the head it was trained with."""
        return self._committed.body.parameter_count

    @property
    def base_size(self) -> Size:
        """Entries and bytes of the base, with its buffers and the head it was trained with."""
        return self._committed.body.size

    @property
    def device(self) -> torch.device:
        """The device of the base; tasks follow it."""
        return self._committed.body.device

    def learn(
        self,
        name: str,
        train: Source,
        val: Source | None = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        augment: Augment | None = None,
        data_key: str | None = None,
        replace: bool = False,
        objective: Objective | None = None,
    ) -> Delta:
        """Learn a task and commit it.

        `train` and `val` are `(x, y)`, a mapping with `labels`, a `Dataset` or a `DataLoader`; x is a tensor, or a
        tuple or dict of tensors, rows first. `objective` says what outputs mean (`halrp.objectives`). By default it is
        classification with labels 0 … classes−1; `classes` is the number of class names, or else that of the labels,
        which must all occur. Validation data, if given, decide importance and view. `augment(x, generator)` changes the
        inputs of every batch trained on.

        With a store, an interrupted task resumes if its data are the same, which a hash of all examples tells. A
        `data_key`, such as "v3", stands for the data instead, if they are too large to be read once more.

        With `replace`, a new version of a learned task; the old one stays (`versions`, `revert`, `drop_versions`).
        """
        with seeding.exclusive():  # tasks that threads learn at once are learned in turn
            with agreed(self._processes(), str(name)):
                self._committed.check_name(name, replace)
                self._committed.check_store()
            setup, device = self._setup(train, self._committed.version(name) if replace else 0), self.device
            with setup.ending(name), torch.enable_grad(), seeding.isolated(*setup.seed_key(name), device=device):
                run = setup.prepare(TaskArguments(name, train, val, classes, class_names, augment, data_key, objective))
                return self._learn_delta(setup, run, replace) if setup.is_base else self._learn_base(setup, run)

    def learn_many(self, tasks: parallel.TaskArguments, engine: parallel.Engine | None = None) -> dict[str, Delta]:
        """Learn several tasks and commit them in the given order; the workers of an `engine` learn them in parallel.

        `tasks` gives by name what `learn` takes: `{"birds": ((x, y), (xv, yv)), …}`. An engine has `submit`, as the
        executors of `concurrent.futures` and Dask's clients do. Deltas are bit-identical to those of learning one by
        one. The first task is learned here if there is no base. When a task fails, those before it stay committed.
        Engines of processes are faster; threads of one process learn in turn, since they share its random generators.
        """
        if engine is not None and self.distributed:
            raise SettingError(
                "learn_many(engine=...) with Learner(distributed=True): tasks are learned by workers, or each by all "
                "processes together; leave one out"
            )
        arguments = {name: parallel.arguments_of(name, given) for name, given in tasks.items()}
        replaces = {name: bool(given.pop("replace", False)) for name, given in arguments.items()}
        for name in arguments:
            self._committed.check_name(name, replaces[name])
        self._committed.check_store()
        here = [name for i, name in enumerate(arguments) if engine is None or (i == 0 and self._committed.base is None)]
        learned = {name: self.learn(name, **arguments.pop(name), replace=replaces[name]) for name in here}
        if engine is not None and arguments:
            if not self.method.compress.independent:
                raise SettingError(
                    f"learn_many(engine=...) with {self.method.compress!r}: what it removes depends on the tasks "
                    "before, so they cannot be learned in parallel; use Halrp.budget(), or leave the engine out"
                )
            base = self._committed.ready
            settings: dict[str, Any] = {"method": self.method, "recipe": self.recipe, "seed": self.seed}
            settings |= {"output": base.call.output, "transform": base.call.transform}
            build = partial(_in_worker, counts_head=base.counts_head, head=self.head or False, **settings)
            for name, delta in parallel.learn_elsewhere(build, base, arguments, engine):
                with seeding.exclusive():
                    self._committed.commit(base, {**self.tasks, name: delta}, name, replaces[name])
                    self._scores.pop(name, None)
                learned[name] = delta
        return learned

    def _learn_base(self, setup: TaskSetup, run: TaskRun) -> Delta:
        """Train the model freely on the first task; the result is the base."""
        initial, plan = setup.body, setup.body.plan
        check, net = self._check(setup, run), initial.trainable(run.data.width, *run.seed_key)
        adapted = plan.named("adapted")
        weights = {n: parameter for n, parameter in net.named_parameters() if n in adapted}
        others = [p for n, p in net.named_parameters() if n not in adapted and p.requires_grad]
        groups = [Group(list(weights.values()), l2=self.method.base_l2), Group(others)]
        groups = by_kind(groups, by_role(plan, net.named_parameters()), run.recipe)
        training = run.training("base", net, groups, run.recipe.epochs).run(1)
        check.gradients(weights, training.without_gradient)
        training.run()
        check.base(initial, net)
        base = Base(net, plan, initial.channels_last, initial)
        outcome = measured(run, net)
        delta = reporting(Delta.pack(setup.description(run), base.layout, {}, {}), outcome)
        if (rule := self.method.prototypes) is not None:
            delta = rule.fitted(delta, base, run)
        warn_of_a_guess(run, outcome)
        self._committed.commit(base, {run.task: delta}, run.task, processes=run.processes)
        run.finish()
        return delta

    def _learn_delta(self, setup: TaskSetup, run: TaskRun, replaces: bool) -> Delta:
        """Algorithm 1: from a task's data to a committed delta on the base."""
        base, method, name = setup.body, setup.method, run.task
        check = self._check(setup, run)
        # Warm up, decompose and allocate: where fine-tuning starts. The network of the warm-up is gone afterwards.
        start, costs, trains = start_of(method, base), setup.costs(run), True
        if (rehearsal := start.rehearsal(run)) is not None:
            first = fine_tune(base, method, *start(base, method, rehearsal, check, costs), rehearsal)
            trains = not is_clearly_worse(first, rehearsal)
            del first
        starts, owned = start(base, method, run, check, costs)
        base_size = Size(base.parameter_count, base.size.bytes)
        # Fine-tune what the task owns.
        tuned = or_its_start(base, method, fine_tune(base, method, starts, owned, run, trains), owned, run)
        # Check, compress and commit.
        check.delta(base, tuned.net, tuned.factors, tuned.owned)
        delta = packed(setup.description(run, tuned.view), base, method, tuned, run, check.first)
        warn_of_a_guess(run, outcome_of(delta.provenance))
        late = sorted(tuned.owned.keys() - owned.keys() - tuned.start.dense.keys() - tuned.start.small.keys())
        method.allocate.check(Size(delta.parameters, delta.bytes), base_size, late)
        tasks = self._compressed({**self.tasks, name: delta}, name, base.parameter_count)
        self._committed.commit(base, tasks, name, replaces, run.processes)
        run.finish()
        self._scores[name] = tuned.start.scores
        return self.tasks[name]

    def module(self, task: str | None) -> nn.Module:
        """A task as an `nn.Module` in evaluation mode that shares the base's memory.

        It is yours: a tensor of it that is written to, by training or by hand, gets memory of its own, and nothing that
        is committed changes.
        If the task was learned in a lower precision, the module's forward passes are in it, wherever it is called.
        """
        delta = self._committed.predictor.delta(task)
        return run_in(self._committed.ready.private_view(delta), delta.autocast)

    def export(self, task: str | None) -> nn.Module:
        """A task as a plain module of the model's own classes, with merged weights, that shares nothing.

        If the task was learned in a lower precision, the module's forward passes are in it, wherever it is called.
        """
        delta = self._committed.predictor.delta(task)
        return run_in(self._committed.ready.merged(delta), delta.autocast)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the base and every task to a store; what is already there and equal is left as it is.

        Another task of the same name there raises `ConflictError`, and nothing changes. Old versions are not written.
        """
        self._committed.save(folder)

    @staticmethod
    def load(
        folder: str | os.PathLike[str],
        model: nn.Module,
        *,
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        seed: int | None = None,
        head: nn.Module | None = None,
        output: Pick = None,
        transform: Callable[[Batch], Batch] | None = None,
        progress: Show = "auto",
        verify_key: AnyKey = None,
        attach: bool = True,
        skip_damaged: bool = False,
        distributed: bool = False,
        check: bool = False,
    ) -> Learner:
        """Read a store's base and tasks into a learner, which commits later tasks there too.

        `model` gives the architecture; its weights do not matter. The store knows its head, also an nn.Linear on top of
        the model; another module that was put there must be given again as `head`. Method, recipe and seed that are not
        given are those that the newest task was learned with. A method with choices from outside this library cannot be
        recalled; then learning asks for `method`. Files hold no code: `output` and `transform`, if tasks were learned
        with them, must be given again. With `verify_key`, a key or its file, everything must be signed with that key.
        With `attach=False` the learner is a copy that never writes to the store.
        `skip_damaged` leaves tasks out that cannot be read, with a warning; `damaged` names them. With `check` each
        task must give the outputs that its file holds as a proof, or `InactiveError` names it.
        """
        store = Store(folder, verify_key=verify_key)
        try:
            manifest = store.manifest()
            stored, name = as_stored(model, manifest.head, store.layouts(manifest).values(), head, output)
            learner = Learner(stored, head=name, progress=progress, output=output, transform=transform)
        except HeadError as error:
            raise WrongBaseError(f"the store {folder} was made with another model: {error}") from error
        learner._committed.restore(store, skip_damaged)
        learner._refuse_other_call()
        if check:
            proof.check(learner.tasks.values(), learner._committed.ready)
        learner._committed.store = store if attach else None
        newest = list(learner.tasks.values())[-1].provenance if learner.tasks else None
        learner._method, learner._recipe, learner.seed = recalled_settings(newest, method, recipe, seed)
        learner.distributed = distributed
        learner._processes()  # refuses what cannot learn together
        return learner

    # ---- helpers of the steps above ------------------------------------------------------------------------------

    def _setup(self, train: Source, version: int = 0) -> TaskSetup:
        """The settings of a task with these training data."""
        committed = self._committed
        is_base = committed.base is not None
        recipe = auto.chosen(self.recipe, train, is_base and not committed.ready.counts_head)
        processes = self._processes()
        progress = notifier(self.progress) if processes is None or processes.writes else None
        settings = (self.method, recipe, self.seed)
        return TaskSetup(*settings, committed.body, is_base, progress, committed.store, version, processes)

    def _processes(self) -> Processes | None:
        """The processes that learn each task together, if it is not this one alone."""
        return Processes.of(self.device) if self.distributed else None

    def _check(self, setup: TaskSetup, run: TaskRun) -> CommitCheck:
        """The check of what training makes of the model; one that cannot pass is refused here."""
        data, call = run.data, setup.body.call
        with agreed(run.processes, run.task):
            first = next(iter(whole(data.train).batches(4, None)))
            val = None if data.val is None else next(iter(data.val.batches(2, None)))
            if val is not None:
                refuse_other_structure(val[0], structure(first[0]), f"{run.task}: val")
                val = take(val[0], slice(2)), val[1][:2]
            check = CommitCheck.of(run.task, data.width, first, setup.description(run).autocast, call, data.objective)
            check.before_training(setup.body, val, *run.seed_key)
            return check

    def _refuse_other_call(self) -> None:
        """Refuse a store whose tasks were learned with another transform or other outputs of the model."""
        for name, delta in self.tasks.items():
            refuse_other_call(name, delta.provenance, self._committed.body.call)

    def _compressed(self, tasks: dict[str, Delta], newest: str, base_parameters: int) -> dict[str, Delta]:
        """The tasks after the method's compression, which changes committed ones only if it declares that."""
        rule = self.method.compress
        after = dict(rule.compress(tasks, newest, base_parameters))
        changed = [n for n in tasks if n != newest and after.get(n) is not tasks[n]]
        if list(after) != list(tasks) or (changed and not rule.changes_committed):
            raise SettingError(
                f"Halrp(compress={rule!r}) must return every task in order, and change committed ones "
                f"({', '.join(map(repr, changed)) or 'none did'}) only if its changes_committed is True"
            )
        return after


def _in_worker(model: nn.Module, counts_head: bool, **settings: Any) -> Learner:
    """A learner whose base is a model as another learner has it, under the same fingerprint."""
    learner = Learner(model, base="given", progress=None, **settings)
    learner._committed.ready.counts_head = counts_head
    return learner
