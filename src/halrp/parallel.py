"""Learning several tasks in parallel: each in its own worker, all on the same base.

A task depends on the base and on its own data and on nothing else, so later tasks can be learned anywhere in any order
and are sent back as the bytes of their files. An engine is anything with `submit(function, *arguments)` that returns
something with `result()`: an executor of `concurrent.futures`, a Dask client, or your own class. Its workers need this
library; the engine sends them the model with the base's weights, and the task's data.

Threads give the same bits and save no time: dropout and the like draw from generators that a process has once, so its
threads learn in turn (`seeding.exclusive`). Use processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from halrp import seeding
from halrp.errors import SettingError, TaskError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.store import task_file

TaskArguments = Mapping[str, "Mapping[str, Any] | Sequence[Any]"]
"""By task name, what `Learner.learn` takes after it: a mapping of its arguments, or `(train,)` or `(train, val)`."""


class Pending(Protocol):
    """A result that is being computed."""

    def result(self) -> Any:
        """Wait for it; raises what the work raised."""


class Engine(Protocol):
    """Something that runs a function elsewhere."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Pending:
        """Start `function(*arguments)` and return at once."""


class TaskLearner(Protocol):
    """What a worker builds: a learner on a given base."""

    def learn(self, name: str, /, *args: Any, **kwargs: Any) -> Delta:
        """Learn one task."""


def arguments_of(name: str, given: Any) -> dict[str, Any]:
    """The arguments of `Learner.learn` for a task, by name."""
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (tuple, list)) and 1 <= len(given) <= 2 and not isinstance(given[0], torch.Tensor):
        return dict(zip(("train", "val"), given, strict=False))
    raise TaskError(
        f"{name}: cannot read task data from {type(given).__name__}; give (train, val), such as ((x, y), None), or a "
        "mapping of the arguments of learn, such as {'train': (x, y), 'classes': 3}"
    )


def learn_elsewhere(
    build: Callable[[nn.Module], TaskLearner], base: Base, tasks: Mapping[str, dict[str, Any]], engine: Engine
) -> Iterator[tuple[str, Delta]]:
    """Learn tasks on a base in the engine's workers; yield each as it would be committed, in order.

    `build(model)` makes a learner whose given base is the model; an engine must be able to send it to a worker.
    """
    if seeding.is_exclusive():
        raise SettingError(
            "learn_many(engine=...) inside a progress callback would wait for threads that wait for the callback to "
            "end; call it after learn, or leave the engine out"
        )
    model, threads = views.clone(base.module), torch.get_num_threads()
    for name, parameter in model.named_parameters():  # so that a worker makes the same plan
        parameter.requires_grad_(base.plan.parameters[name].kind != "shared")
    waiting = {
        name: engine.submit(learn_in_worker, build, model, threads, name, arguments)
        for name, arguments in tasks.items()
    }
    try:
        for name in tasks:
            content = waiting.pop(name).result()
            yield name, task_file.load(content, base, name)
    finally:
        for pending in waiting.values():
            getattr(pending, "cancel", lambda: None)()


def learn_in_worker(
    build: Callable[[nn.Module], TaskLearner],
    model: nn.Module,
    threads: int,
    name: str,
    arguments: Mapping[str, Any],
) -> bytes:
    """Learn one task on a given base, and return the bytes of its file; a worker runs this."""
    with seeding.exclusive(), _threads(threads):  # sums of floats depend on the number of threads that share them
        return task_file.write(build(model).learn(name, **arguments))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)
