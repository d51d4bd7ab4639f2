"""What a learner or a store holds, for people: tasks, bytes, ranks, scores, and whether tasks are what was committed.

`learner.report()` and `halrp report STORE` give a `Report`. It claims what was compared and nothing else (`retained`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

from halrp import retained
from halrp.committed import Committed
from halrp.errors import StoreError
from halrp.method.outcome import UNKNOWN, Outcome, outcome_of
from halrp.model.delta import Delta
from halrp.retained import Retained
from halrp.store import task_file
from halrp.store.manifest import Manifest
from halrp.store.store import Store
from halrp.text import counted, printable
from halrp.text_table import TextTable

TITLES = ("task", "bytes", "ranks", "start %", "score %", "retained")
RIGHT, WRAP, SPARE, SCORES = (1, 3, 4), (0, 2), (3,), (3, 4)
"""Columns that are aligned at the right, that may have several lines, that a narrow screen leaves out, and scores."""


@dataclass(frozen=True)
class TaskReport:
    """One task."""

    name: str
    bytes: int
    """Of its file; without a store, of the file that it would have."""
    delta: Delta | None
    """All that it owns; None if its file cannot be read."""
    retained: Retained

    @property
    def outcome(self) -> Outcome | None:
        """Its score on validation data when it was committed, if it had such data."""
        return None if self.delta is None else outcome_of(self.delta.provenance)

    @property
    def start(self) -> float | None:
        """The score before training, where that is a solution of its own."""
        outcome = self.outcome
        return None if outcome is None or outcome.start is None else _known(outcome.start.score)

    @property
    def score(self) -> float | None:
        """The score that was committed."""
        return None if self.outcome is None else _known(self.outcome.end.score)

    @property
    def ranks(self) -> Mapping[str, int]:
        """The rank of each weight that has components."""
        return {} if self.delta is None else {name: rank for name, rank in self.delta.ranks.items() if rank}

    @property
    def dense(self) -> tuple[str, ...]:
        """The adapted weights that it stores in full."""
        if self.delta is None:
            return ()
        return tuple(name for name in self.delta.dense if self.delta.layout.by_name[name].kind == "adapted")

    @property
    def _ranks_in_words(self) -> str:
        """The sum of the ranks, and over how many weights."""
        if self.delta is None:
            return ""
        if self.delta.is_base:
            return "the base itself"
        parts = [f"{sum(self.ranks.values())} in {counted(len(self.ranks), 'weight')}"] if self.ranks else []
        parts += [f"{len(self.dense)} dense"] if self.dense else []
        return ", ".join(parts) or "none"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        scores = _percent(self.start), _percent(self.score)
        return printable(self.name), f"{self.bytes:,}", self._ranks_in_words, *scores, self.retained.state

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON values."""
        delta, outcome = self.delta, self.outcome
        return {
            "name": self.name,
            "objective": None if delta is None else dict(delta.objective),
            "classes": None if delta is None else delta.classes,
            "bytes": self.bytes,
            "base": delta is not None and delta.is_base,
            "ranks": dict(self.ranks),
            "dense": list(self.dense),
            "start_score": self.start,
            "score": self.score,
            "guess_score": None if outcome is None else outcome.guess,
            "retained": self.retained.to_json(),
        }


class Check(NamedTuple):
    """What some tasks were compared with, and what came of it."""

    kind: str
    tasks: int
    """How many."""
    result: str

    def __str__(self) -> str:
        """In words."""
        return f"{self.kind}: {counted(self.tasks, 'task')} {self.result}"


@dataclass(frozen=True)
class Report:
    """What a learner or a store holds. As text it is a table, with remarks below it."""

    tasks: tuple[TaskReport, ...]
    """In the order of learning."""
    base_bytes: int
    bytes: int
    """Of the base and all tasks, old versions included; without a store, of the files that it would have."""
    store: str | None = None
    """The folder, if there is one."""
    has_model: bool = True
    """Whether outputs could be computed."""

    @cached_property
    def states(self) -> Counter[str]:
        """The number of tasks of each state."""
        return Counter(task.retained.state for task in self.tasks)

    @property
    def share(self) -> float | None:
        """The share of tasks that are known to be bit-identical to what was committed; None if there is no task."""
        return self.states["bitwise"] / len(self.tasks) if self.tasks else None

    @property
    def problems(self) -> Mapping[str, str]:
        """By name, why tasks are not what was committed."""
        return {task.name: task.retained.problem for task in self.tasks if task.retained.problem}

    @property
    def separate_bytes(self) -> int:
        """What one network for each task would take."""
        return self.base_bytes * len(self.tasks)

    def __str__(self) -> str:
        """The table, and what it is based on."""
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The same with a table of at most that many characters in a line."""
        table = [str(line) for line in replace(self.table, rule=True).lines(width)]
        return "\n".join([*(table if self.tasks else ["There are no tasks yet."]), "", *self.remarks()])

    @property
    def table(self) -> TextTable:
        """The rows of tasks, without scores if there are none."""
        rows = [task.cells for task in self.tasks]
        shown = [number for number in range(len(TITLES)) if number not in SCORES or any(row[number] for row in rows)]
        at = [{shown.index(number) for number in names if number in shown} for names in (RIGHT, WRAP, SPARE)]
        cells = [[row[number] for number in shown] for row in rows]
        return TextTable([TITLES[number] for number in shown], cells, right=at[0], wrap=at[1], spare=at[2])

    def remarks(self) -> Iterator[str]:
        """What the numbers mean, and what was compared, a sentence or two in each line."""
        whole = f"Base {self.base_bytes:,} bytes, with {counted(len(self.tasks), 'task')} {self.bytes:,} bytes"
        if self.tasks:
            times = self.separate_bytes / max(1, self.bytes)
            whole += f"; as separate networks {self.separate_bytes:,} bytes, {times:.1f} times as many"
        yield f"{whole}."
        if any(task.outcome for task in self.tasks):
            yield "Scores are those of validation data when a task was committed; start: what training began with."
        if guessing := [printable(task.name) for task in self.tasks if task.outcome and task.outcome.is_guess]:
            yield f"No better than guessing: {', '.join(guessing)}."
        if self.tasks:
            yield self.verdict
            yield from (f"  {check}" for check in self.checks)
            yield from (f"  {printable(name)}: {printable(problem)}" for name, problem in self.problems.items())

    @property
    def verdict(self) -> str:
        """How many tasks are what was committed, in a sentence."""
        good, all_ = self.states["bitwise"], len(self.tasks)
        if good == all_:
            return f"Retained 100 % (bitwise): {counted(all_, 'task')}."
        others = ", ".join(f"{count} {state}" for state, count in self.states.items() if state != "bitwise")
        return f"Retained {100 * good / max(1, all_):.0f} % (bitwise): {good} of {counted(all_, 'task')}; {others}."

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """What the verdict rests on: which tasks were compared with what."""
        tasks = [task.retained for task in self.tasks]
        files, memory = (sum(getattr(task, name) is True for task in tasks) for name in ("file", "memory"))
        outputs = Counter(task.outputs for task in tasks)
        unproven = sum(task.delta is not None and task.retained.outputs is None for task in self.tasks)
        and_base = "" if self.has_model else ", and the base with its own"
        in_memory = "that are in their files" if files else "that were committed"
        every = (
            Check("files", files, f"with the checksums of their commits (SHA-256){and_base}"),
            Check("memory", memory, f"with the numbers {in_memory}, on a base that has its fingerprint"),
            Check("outputs", outputs["same bits"], "with the bits that their files hold as a proof"),
            Check("outputs", outputs["to rounding"], "equal to the proofs in their files up to rounding"),
            Check("outputs", unproven if self.has_model else 0, "without a proof in their files, so not compared"),
            Check("outputs", 0 if self.has_model else unproven, "not computed, which needs the model (--model)"),
            Check("pruned", self.states["may have changed"], "that later commits of their method may have changed"),
            Check("damaged", self.states["damaged"], "not as they were committed"),
        )
        return tuple(check for check in every if check.tasks)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "store": self.store,
            "base_bytes": self.base_bytes,
            "bytes": self.bytes,
            "separate_bytes": self.separate_bytes,
            "retained": {
                "share_bitwise": self.share,
                "states": dict(self.states),
                "checks": [check._asdict() for check in self.checks],
            },
            "tasks": [task.to_json() for task in self.tasks],
        }

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        titles = "".join(f"<th>{escape(title)}</th>" for title in TITLES)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in task.cells)}</tr>" for task in self.tasks)
        remarks = "<br>".join(escape(line) for line in self.remarks())
        return f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table><p>{remarks}</p>"


def of_learner(committed: Committed) -> Report:
    """What a learner holds, compared with its commits."""
    base, store = committed.body, committed.store
    base_bytes, checks = base.size.bytes, retained.of_learner(committed) if committed.tasks else {}
    entries = committed.entries
    tasks = [
        TaskReport(name, entries[name].bytes if name in entries else delta.bytes, delta, checks[name])
        for name, delta in committed.tasks.items()
    ]
    tasks += [TaskReport(name, 0, None, Retained(problem=reason)) for name, reason in committed.damaged.items()]
    folder = None if store is None else str(store.folder)
    manifest = None if store is None or not store.exists() else store.manifest()
    if manifest is not None:
        return Report(tuple(tasks), manifest.base.bytes, _bytes(manifest), folder)
    return Report(tuple(tasks), base_bytes, base_bytes + sum(task.bytes for task in tasks), folder)


def of_store(store: Store) -> Report:
    """What a store holds, as far as its files tell: no model is needed, and a damaged task does not end the reading."""
    manifest = store.manifest()
    problem = ""
    try:
        layouts = store.layouts(manifest)
        store.content(manifest.base)
    except StoreError as error:
        problem = _line(error)
    tasks = []
    for name, entry in manifest.tasks.items():
        try:
            content = store.content(entry)
            if problem:
                raise StoreError(problem)
            delta = task_file.read(content, layouts, str(store.folder / entry.file))
            check = retained.of_file(delta, delta.base == manifest.fingerprint)
            tasks.append(TaskReport(name, entry.bytes, delta, check))
        except StoreError as error:
            tasks.append(TaskReport(name, entry.bytes, None, Retained(file=False, problem=_line(error))))
    return Report(tuple(tasks), manifest.base.bytes, _bytes(manifest), str(store.folder), has_model=False)


def _bytes(manifest: Manifest) -> int:
    return sum({entry.file: entry.bytes for entry in manifest.entries}.values())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _known(score: float) -> float | None:
    """A score that was measured; files have a very large number where it was not."""
    return score if abs(score) < UNKNOWN else None


def _percent(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.1f}"
