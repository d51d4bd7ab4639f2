"""From what a user passes to `Learner.learn` to a task that can be trained: data, checks, seeds and checkpoints.

Everything that can be refused before training is refused here.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch.utils.data import DataLoader

from halrp._version import __version__
from halrp.errors import CheckpointWarning, SettingError, TaskError
from halrp.identity import UnidentifiedError, identity
from halrp.method import outcome
from halrp.method.method import CHOICES, Halrp
from halrp.method.protocols import Allocator, EarlyCheck
from halrp.method.start_choice import start_of
from halrp.method.task_costs import Costs
from halrp.model.base import Base
from halrp.model.description import Description
from halrp.model.file_size import TensorEntry
from halrp.model.inference import normalises_by_batch
from halrp.model.size import Size
from halrp.model.views import redrawn_buffers
from halrp.objectives import Classification, Objective, described, is_registered
from halrp.objectives.labels import given_classes
from halrp.provenance import KNOWN, call_settings, describe, method_settings
from halrp.store import atomic
from halrp.store.store import Store
from halrp.text import is_encodable
from halrp.training.batches import Augment, Data, InMemory, TaskData, refuse_batch_of_one
from halrp.training.checkpoint import Checkpoints
from halrp.training.distributed import Processes, SharedCheckpoints, agreed
from halrp.training.prepare import Source, prepare
from halrp.training.progress import Notify
from halrp.training.recipe import Recipe
from halrp.training.requirements import refuse_unsuited_data
from halrp.training.run import TaskRun
from halrp.training.shared_data import joined, part_of, refuse_validation_part


@dataclass(frozen=True)
class TaskArguments:
    """What a user passes for one task; see `Learner.learn`."""

    name: str
    train: Source
    val: Source | None = None
    classes: int | None = None
    class_names: Sequence[str] | None = None
    augment: Augment | None = None
    data_key: str | None = None
    objective: Objective | None = None


def check_epochs(method: Halrp, recipe: Recipe, base: Base | None) -> None:
    """Refuse a recipe whose epochs the method's warm-up uses up, if it has one on this base."""
    warms_up = base is None or not start_of(method, base).reports
    if warms_up and recipe.epochs <= method.warm_up:
        raise SettingError(
            f"Recipe(epochs={recipe.epochs}) leaves nothing to fine-tune after "
            f"Halrp(warm_up={method.warm_up}); give more epochs"
        )


@dataclass(frozen=True)
class TaskSetup:
    """The settings with which a learner learns a task, and the body it learns it on."""

    method: Halrp
    recipe: Recipe
    seed: int
    body: Base
    """The base, or what will become it."""
    is_base: bool
    """Whether the body is the base, so that the task becomes a delta."""
    progress: Notify | None = None
    store: Store | None = None
    version: int = 0
    """The number of versions that the task has had before."""
    processes: Processes | None = None
    """The processes that learn the task together."""

    def seed_key(self, name: str) -> tuple[object, ...]:
        """What every random draw of a task is a function of."""
        return self.seed, self.body.fingerprint if self.is_base else None, name

    def prepare(self, arguments: TaskArguments) -> TaskRun:
        """Check a task's data and make it uniform; its checkpoints are those of the same base, data and settings."""
        with agreed(self.processes, arguments.name):
            run = self._run(arguments)
        if self.processes is not None:
            run = self._shared(run, self.processes)
        if self.store is None:
            return run
        checkpoints = self._checkpoints(self.store, run, arguments.data_key)
        if self.processes is not None:
            checkpoints = SharedCheckpoints(self.processes, checkpoints)
        return replace(run, checkpoints=checkpoints)

    def _run(self, arguments: TaskArguments) -> TaskRun:
        check_epochs(self.method, self.recipe, self.body if self.is_base else None)
        key = arguments.data_key
        if key is not None and not (isinstance(key, str) and key):
            raise SettingError(f"{arguments.name}: data_key={key!r} must be a non-empty text, such as 'v3', or None")
        if self.method.prototypes is not None and self.processes is not None:
            raise SettingError(
                f"{arguments.name}: Halrp(prototypes=...) with Learner(distributed=True): prototypes are computed by "
                "one process from all examples; leave one of them out"
            )
        data = self._data(arguments)
        refuse_unsuited_data(self.recipe, data.train, data.val, arguments.name)
        seed_key = self.seed_key(arguments.name)
        run = TaskRun(arguments.name, data, self.recipe, seed_key, self.progress, processes=self.processes)
        if self.is_base:
            self._check_budget(run)
        return run

    def _shared(self, run: TaskRun, processes: Processes) -> TaskRun:
        """The task as all processes have it together; raises in all of them if they have different ones."""
        train, val = joined(run.data.train, processes, f"{run.task}: train"), run.data.val
        data = run.data._replace(train=train)
        facts: dict[str, object] = {
            "the task": run.task,
            "the base": self.body.fingerprint,
            "settings": self.provenance(data),
            "the objective": described(data.objective),
            "the width of the head": data.width,
            "whether there is a store": self.store is not None,
            "the kind of data": type(train).__name__,
            "the number of examples": train.examples,
            "the number of validation examples": 0 if val is None else val.examples,
        }
        for name, part in (("the examples", train), ("the validation examples", val)):
            if isinstance(part, InMemory):
                facts[name] = part.identity()
        processes.refuse_differences({name: str(fact) for name, fact in facts.items()})
        return replace(run, data=data)

    @contextmanager
    def ending(self, name: str) -> Iterator[None]:
        """Let the progress callback finish when a task ends in any way; after Ctrl-C, add how it is resumed."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if self.store is None:
                interrupt.add_note(f"{name!r} is not learned; with Learner(..., store=...) it could be resumed")
            else:
                interrupt.add_note(
                    f"{name!r} resumes at its last finished epoch when learn is called again with the same data, "
                    f"settings and store: {self.store.folder}"
                )
            raise
        finally:
            getattr(self.progress, "finish", lambda: None)()

    def _checkpoints(self, store: Store, run: TaskRun, data_key: str | None) -> Checkpoints:
        """The checkpoints of a task: those that were made with the same base, data, functions and settings."""
        data = run.data
        if data_key is None:
            examples = data.train.identity(), data.val.identity() if data.val is not None and self.is_base else None
        else:
            examples = data_key, "val" if data.val is not None and self.is_base else None
        meaning = data.width, described(data.objective)
        parts = (*run.seed_key, self.body.fingerprint, *meaning, *examples, self.provenance(data))
        key = atomic.checksum(repr((*parts, self._functions(run))).encode())
        return Checkpoints(store.work_folder(run.task, self.version), key, store.checkpoint_every, store.signing_key)

    def _functions(self, run: TaskRun) -> list[str]:
        """What tells functions of the user from others; a new text every time for those that nothing tells."""
        choices = [getattr(self.method, field) for field in CHOICES]
        foreign = [choice for choice in choices if choice is not None and type(choice) not in KNOWN.values()]
        foreign += [make for make in (self.recipe.optimiser, self.recipe.scheduler) if callable(make)]
        foreign += [part for part in (self.body.call.transform, self.body.call.output) if callable(part)]
        try:
            return [identity(function) for function in (*foreign, run.data.augment)]
        except UnidentifiedError as error:
            warnings.warn(
                f"{run.task}: {error} cannot be compared with that of an interrupted run, so the task starts again if "
                "it is interrupted; use plain values, arrays or tensors in augment and in choices of your own",
                CheckpointWarning,
                stacklevel=2,
            )
            return [secrets.token_hex()]

    def _check_budget(self, run: TaskRun) -> None:
        """Raise `BudgetTooSmall` if the task's file would be too large without a single component."""
        allocate = self.method.allocate
        if not isinstance(allocate, EarlyCheck):
            return
        base, costs = self.body, self.costs(run)
        start, size = start_of(self.method, base), Size(base.parameter_count, base.size.bytes)
        for view in self.method.views(any(slot.kernel for slot in base.layout.adapted), run.data.val is not None):
            allocate.check_smallest(*start.least(base, costs, run.data.width, view), size)

    def costs(self, run: TaskRun) -> Costs:
        """What a task costs, whole or part by part."""
        redrawn = redrawn_buffers(self.body.module, self.body.plan)
        settings = self.method.precision, partial(self.description, run), self.method.rest, redrawn
        return Costs(self.body.layout, *settings, self._statistics(run))

    def _statistics(self, run: TaskRun) -> Mapping[str, TensorEntry]:
        """The tensors of prototypes in the task's file, if the method stores them."""
        if self.method.prototypes is None:
            return {}
        rows, _ = next(iter(run.data.train.batches(2, None)))
        return self.method.prototypes.entries(run.data.objective, run.data.width, self.body, rows)

    def description(self, run: TaskRun, view: str = "", allocate: Allocator | None = None) -> Description:
        """All of a task that is not a tensor: a delta in a view, or the base's own task; `allocate` if not ours."""
        method = self.method if allocate is None else replace(self.method, allocate=allocate)
        autocast = self.recipe.autocast
        return Description(
            task=run.task,
            classes=run.data.width,
            class_names=run.data.class_names,
            objective=described(run.data.objective),
            view=view,
            precision=method.precision if view else "float32",
            autocast=None if autocast is None else str(autocast).removeprefix("torch."),
            provenance=self.provenance(run.data) | {"method": method_settings(method)} | self._outcome(run, view),
        )

    def _outcome(self, run: TaskRun, view: str) -> dict[str, str]:
        """Room for the score of a task on its validation data, and for what it gains over its start."""
        if not view or run.data.val is None:
            return {}
        return {outcome.KEY: outcome.BLANK if start_of(self.method, self.body).reports else outcome.BLANK_END}

    def provenance(self, data: TaskData) -> dict[str, Any]:
        """How a task is learned."""
        settings = {"halrp": __version__, "method": method_settings(self.method), "recipe": describe(self.recipe)}
        settings |= {"seed": self.seed} | call_settings(self.body.call)
        settings |= {} if self.processes is None else {"processes": self.processes.size}
        return settings | ({} if data.augment is None else {"augment": describe(data.augment)})

    def _data(self, arguments: TaskArguments) -> TaskData:
        name, names = arguments.name, arguments.class_names
        for wrong in (n for n in map(str, names or ()) if not is_encodable(n)):
            raise TaskError(f"{name}: the class name {wrong!r} cannot be written to a file: half of a surrogate pair")
        identify = self.store is not None and arguments.data_key is None
        objective = objective_of(arguments, self.body)
        train = self._prepared(name, "train", arguments.train, objective, identify)
        val = None if arguments.val is None else self._prepared(name, "val", arguments.val, train.objective, identify)
        if self.processes is not None:
            is_loader = isinstance(arguments.train, DataLoader)
            train = part_of(train, is_loader, self.processes, self.recipe.batch, f"{name}: train")
            if val is not None:
                refuse_validation_part(val, f"{name}: val")
        if names is not None and len(names) != train.objective.named:
            raise TaskError(f"{name}: {len(names)} class names for {train.objective.named} classes; give one for each")
        if self.body.has_batch_norm:
            refuse_batch_of_one(train, self.recipe.batch, f"{name}: train")
        if val is not None and normalises_by_batch(self.body.module):
            refuse_batch_of_one(val, self.recipe.batch, f"{name}: val")
        width = self.body.outputs if train.objective.keeps_head else cast(int, train.objective.outputs)
        return TaskData(train, val, width, None if names is None else tuple(map(str, names)), arguments.augment)

    def _prepared(self, name: str, part: str, source: Source, objective: Objective, identify: bool) -> Data:
        return prepare(
            source,
            name=f"{name}: {part}",
            device=self.body.device,
            batch=self.recipe.batch,
            objective=objective,
            call=self.body.call,
            shuffle=self.recipe.shuffle,
            channels_last=self.body.channels_last,
            drop_last=self.recipe.drop_last and part == "train",
            identify=identify,
        )


def objective_of(arguments: TaskArguments, body: Base) -> Objective:
    """What a task's outputs mean, as far as that is known without its targets: as given, or else classification."""
    name, names, objective = arguments.name, arguments.class_names, arguments.objective
    if objective is None:
        classes = None if arguments.classes is None else given_classes(arguments.classes, f"{name}: train")
        objective = Classification(classes)
    elif not isinstance(objective, Objective):
        raise SettingError(f"{name}: objective={objective!r} is no objective; give one of halrp.objectives")
    elif arguments.classes is not None:
        raise SettingError(
            f"{name}: classes={arguments.classes!r} is for classification; with objective={objective!r}, give the "
            "number to the objective"
        )
    if not is_registered(objective):
        raise SettingError(
            f"{name}: {type(objective).__name__} is not registered under the name {objective.name!r}, so a file with "
            "it could not be answered; decorate the class with halrp.objectives.register"
        )
    if names is not None and objective.named is None and not objective.keeps_head:
        objective = objective.with_names(len(names))
    if not body.plan.head:
        if objective.outputs not in (None, body.outputs):
            raise TaskError(
                f"{name}: {objective.outputs} classes, but head=False keeps the model's {body.outputs} outputs for "
                "every task; give labels of these, or a head that is replaced"
            )
        return objective.with_outputs(body.outputs)
    if objective.keeps_head:
        raise SettingError(
            f"{name}: {type(objective).__name__} keeps the model's own outputs, and this learner replaces the head "
            f"{body.plan.head!r} for every task; make it with Learner(model, head=False)"
        )
    return objective
