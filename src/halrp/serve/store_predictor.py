"""Predictions for all tasks of a store, in one process and in bounded memory: `StorePredictor`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from halrp.errors import DataError, SettingError, StoreError, UnknownTaskError
from halrp.model import batch as tree
from halrp.model import proof
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Pick
from halrp.model.delta import Delta
from halrp.model.layers.mixed_head import output_dimension
from halrp.model.settings import refuse_other_call
from halrp.serve.answers import answers
from halrp.serve.base_task import BaseTask
from halrp.serve.checks import check_predict
from halrp.serve.computing import Computing, Mixed
from halrp.serve.follow import Follower, Generation
from halrp.serve.identify import (
    AUTO,
    Asked,
    Identified,
    Identifier,
    Together,
    answers_of,
    refuse_other_objectives,
    without_unknown,
)
from halrp.serve.known_inputs import KnownInputs
from halrp.serve.loaded import LoadedTask
from halrp.serve.opening import open_base
from halrp.serve.resident import LEAST_BYTES, TIMES_BASE
from halrp.serve.residents import ResidentTasks
from halrp.store.changes import Changes
from halrp.store.manifest import Entry
from halrp.store.signing import AnyKey
from halrp.store.store import Store

LEAST_STACKED = 2**25
"""What stacks for mixed batches may take, if that is at most a quarter of the bound; the base's bytes, if more."""


class StorePredictor:
    """Predicts for every task of a store, and follows it: tasks that others commit, replace or remove are seen.

    Opening reads the manifest and the base. A task's file is read and verified when the task is first used. Tasks in
    memory are bounded in bytes. A call computes with the versions of tasks that it began with. Any number of threads
    may call, as long as the model's forward pass keeps nothing between calls.
    """

    def __init__(
        self,
        store: Store,
        follower: Follower,
        base: Base,
        memory: int | None = None,
        mixed: Mixed = "fastest",
        check: bool = False,
    ) -> None:
        """Take what `open` has opened."""
        self.base, self._store, self._follower, self._check = base, store, follower, check
        limit = max(LEAST_BYTES, TIMES_BASE * base.size.bytes) if memory is None else memory
        self._residents = ResidentTasks(limit)
        stacked = min(limit // 4, max(LEAST_STACKED, base.size.bytes))
        self._computing = Computing(base, self._residents.module, mixed, stacked)
        self._base_task = BaseTask(store, base)
        self._identifier, self._known = Identifier(base), KnownInputs(limit // 4)
        self._pinned: dict[str, None] = {}
        self._shown, self._lock = follower.present, Lock()

    @staticmethod
    def open(
        folder: str | os.PathLike[str],
        model: nn.Module,
        *,
        head: nn.Module | None = None,
        output: Pick = None,
        transform: Callable[[Batch], Batch] | None = None,
        verify_key: AnyKey = None,
        memory: int | None = None,
        pinned: Iterable[str] = (),
        follow_every: float = 0.5,
        mixed: Mixed = "fastest",
        check: bool = False,
    ) -> StorePredictor:
        """Open a store.

        `model` gives the architecture; its weights do not matter. `head`, `output`, `transform` and `verify_key` are
        those of `Learner.load`. `memory` bounds the bytes of tasks beside the base, by default 256 MB or four times the
        base; the least recently used make room for others, but for those that are `pinned`, which are read now.
        Every `follow_every` seconds, and when a task is not there, a call looks whether the store has changed.

        `mixed` says how rows of different tasks are computed: in one pass, task by task, or, by default, in the way
        that is the fastest for their number, as measured. Task by task, outputs have the bits of a call for each task.

        With `check`, a task that is read must give the outputs that its file holds, or calls for it raise
        `InactiveError`.
        """
        store = Store(folder, verify_key=verify_key)
        follower = Follower(store, follow_every)
        base = open_base(store, follower.present, model, head, output, transform)
        predictor = StorePredictor(store, follower, base, memory, mixed, check)
        predictor.pin(*pinned)
        return predictor

    # ---- predictions ------------------------------------------------------------------------------------------------

    def predict(self, x: Batch, task: str | Sequence[str | None] | None, batch: int = 512) -> Tensor:
        """Outputs (logits) of a task, or of a task per row; `None` is the base's own task (see `Learner.predict`)."""
        if task == AUTO and AUTO not in self.tasks:
            identified = self.identify(x, top=1, batch=batch)
            return without_unknown(self._predict(x, identified.best, batch)[0], identified)
        return self._predict(x, task, batch)[0]

    def answer(self, x: Batch, task: str | Sequence[str | None] | None, batch: int = 512) -> Any:
        """What a task answers, by its objective: labels and probabilities, values, masks (see `Learner.answer`)."""
        if task == AUTO and AUTO not in self.tasks:
            identified = self.identify(x, top=1, batch=batch)
            return answers_of(self.answer(x, identified.best, batch), identified)
        outputs, tasks = self._predict(x, task, batch)
        return answers(lambda name: tasks[name].delta, outputs, task)

    def identify(
        self,
        x: Batch,
        *,
        tasks: Sequence[str] | None = None,
        together: Together = False,
        top: int = 3,
        rerank: int = 0,
        batch: int = 512,
    ) -> Identified:
        """Which task each row is of, by the prototypes that tasks store (see `Learner.identify`).

        The file of a task is read when the task is first compared; tasks whose files cannot be read are left out.
        """
        given, generation = check_predict(x, None, batch), self._generation()
        models, left_out = self._known.of(generation, tasks, partial(self._delta, generation))
        asked = Asked(together, top, rerank, left_out)
        loaded = self.select(models) if rerank else {}
        refuse_other_objectives(task.delta for task in loaded.values())

        def logits_of(name: str, rows: Batch) -> Tensor:
            return self.compute(rows, [loaded[name]] * tree.rows(rows), batch)

        return self._identifier(given, models, asked, logits_of, batch)

    def select(self, names: Iterable[str | None]) -> Mapping[str | None, LoadedTask]:
        """Tasks by name, as one generation of the store has them, in memory; `None` is the base's own."""
        wanted, looked = tuple(dict.fromkeys(names)), False
        while True:
            generation = self._generation(now=looked)
            try:
                return {name: self._task(generation, name) for name in wanted}
            except (StoreError, UnknownTaskError):
                # Another process may have committed, replaced or removed it since.
                if looked and self._follower.present is generation:
                    raise
                looked = True

    def compute(self, x: Batch, rows: Sequence[LoadedTask], batch: int = 512) -> Tensor:
        """Outputs of N rows of x for the task of each, in the versions at hand, (N, ...)."""
        return self._computing(x, rows, batch)

    def narrowed(self, outputs: Tensor, rows: Sequence[LoadedTask]) -> Tensor:
        """Outputs of some rows of a batch, as wide as the widest task among them."""
        width = max(task.delta.classes for task in rows)
        dimension = output_dimension(self.base.module.get_submodule(self.base.plan.output), outputs)
        wider = outputs.dim() > 1 and outputs.shape[dimension] > width
        return outputs.narrow(dimension, 0, width) if wider else outputs

    def _predict(
        self, given: Batch, task: str | Sequence[str | None] | None, batch: int
    ) -> tuple[Tensor, Mapping[str | None, LoadedTask]]:
        x = check_predict(given, task, batch)
        count = tree.rows(x)
        names = [task] * count if task is None or isinstance(task, str) else task
        if len(names) != count:
            raise DataError(f"predict: {len(names)} tasks for {count} rows; name one for each row")
        tasks = self.select(names)
        return self.compute(x, [tasks[name] for name in names], batch), tasks

    # ---- the store --------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Mapping[str, Entry]:
        """The tasks of the store by name, each with its file."""
        return MappingProxyType(self._generation().manifest.tasks)

    @property
    def base_version(self) -> str:
        """The checksum of the base's file."""
        return self._follower.present.manifest.base.sha256

    @property
    def generation(self) -> int:
        """The number of commits since the store was begun."""
        return self._generation().manifest.generation

    @property
    def problem(self) -> StoreError | None:
        """Why the store cannot be followed at present; what was read before is served."""
        return self._follower.problem

    def refresh(self) -> Changes:
        """Look at the store now, and return the names of tasks that changed since it was last looked at.

        A store that vanished, was rolled back or is another one raises `StoreChangedError`, and a manifest that cannot
        be read `DamagedError`; then predictions continue with what was read before.
        """
        before = self._follower.present.manifest.tasks
        self._show(self._follower.refresh())
        return Changes.between(before, self._follower.present.manifest.tasks)

    def delta(self, name: str | None) -> Delta:
        """What a task owns."""
        return self.select([name])[name].delta

    # ---- memory -----------------------------------------------------------------------------------------------------

    @property
    def resident(self) -> Mapping[str, int]:
        """The tasks that are in memory by name, with the bytes that each takes beside the base."""
        sizes = self._residents.sizes
        return {name: sizes[entry.sha256] for name, entry in self.tasks.items() if entry.sha256 in sizes}

    @property
    def statistics(self) -> Mapping[str, int]:
        """Counts since opening: files read, tasks dropped for room, and mixed batches by the way they were computed."""
        ways = {way.replace(" ", "_"): number for way, number in self._computing.costs.chosen.items()}
        return {"loads": self._residents.loads, "evictions": self._residents.evictions, **ways}

    @property
    def memory(self) -> int:
        """The bound on the bytes of tasks in memory."""
        return self._residents.limit

    def pin(self, *names: str) -> None:
        """Read tasks, and never drop them for others; a later version of one is pinned in its stead."""
        pinned = {**self._pinned, **dict.fromkeys(names)}
        tasks = [task for task in self.select(pinned).values() if not task.delta.is_base]
        needed = sum(task.delta_bytes + task.module_bytes for task in tasks)
        if needed > self.memory:
            raise SettingError(
                f"pinned tasks need {needed:,} bytes with their merged weights, more than the {self.memory:,} that "
                "tasks may take; pin fewer, or open the store with more memory=..."
            )
        with self._lock:
            self._pinned = {**self._pinned, **pinned}
            self._residents.pin(self._versions(self._pinned))

    def unpin(self, *names: str) -> None:
        """Let tasks make room for others again."""
        with self._lock:
            self._pinned = {name: None for name in self._pinned if name not in names}
            self._residents.pin(self._versions(self._pinned))

    def drop(self, name: str) -> bool:
        """Give the memory of a task back; the next call for it reads its file again. Returns whether it was there."""
        tasks = self.tasks
        if name not in tasks:
            raise UnknownTaskError(f"{self._store.folder} has no task {name!r}")
        return self._residents.drop(tasks[name].sha256)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _generation(self, now: bool = False) -> Generation:
        generation = self._follower.generation(now)
        if generation is not self._shown:
            self._show(generation)
        return generation

    def _show(self, generation: Generation) -> None:
        """Drop what a new generation no longer names."""
        with self._lock:
            if generation is self._shown or generation is not self._follower.present:
                return
            self._shown = generation
            self._residents.pin(self._versions(self._pinned))
            self._residents.keep_only({entry.sha256 for entry in generation.manifest.tasks.values()})
            self._computing.rosters.forget_dropped()

    def _versions(self, names: Iterable[str]) -> set[str]:
        tasks = self._follower.present.manifest.tasks
        return {tasks[name].sha256 for name in names if name in tasks}

    def _task(self, generation: Generation, name: str | None) -> LoadedTask:
        if name is None:
            return self._base_task.of(generation)
        entry = generation.manifest.tasks.get(name)
        if entry is None:
            raise UnknownTaskError(f"{self._store.folder} has no task {name!r}; `tasks` has the names of all")
        return self._residents.task(entry.sha256, partial(self._read, generation, name, entry))

    def _delta(self, generation: Generation, name: str, entry: Entry) -> Delta:
        return self._store.read_file(entry, name, self.base, generation.layouts)

    def _read(self, generation: Generation, name: str, entry: Entry) -> LoadedTask:
        delta = self._delta(generation, name, entry)
        refuse_other_call(name, delta.provenance, self.base.call)
        if self._check:
            proof.check([delta], self.base)
        return LoadedTask(self.base, delta, entry.sha256)
