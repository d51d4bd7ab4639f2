"""`check_method`: tests an implementation of `Method` on three tiny tasks, in about a second.

`check_method("be")` checks a method of the registry, `check_method(Mine)` anything that makes a method from a
`Context`. The checks are listed in `ITEMS`; all failures are reported together. The tiny network and tasks are in
`halrp.lab.methods.tiny`, for other tests too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from halrp import seeding
from halrp.errors import HalrpError
from halrp.lab import methods
from halrp.lab.methods.comparison import (
    deserialised,
    differences,
    global_state,
    restoring_settings,
    same,
    same_state,
    serialised,
)
from halrp.lab.methods.protocol import Context, Method, Size
from halrp.lab.methods.tiny import tiny_context, tiny_tasks
from halrp.lab.streams import Task

__all__ = ["ITEMS", "MethodCheckFailed", "Report", "check_method"]

Make = Callable[[Context], Method]
Result = TypeVar("Result")


class MethodCheckFailed(HalrpError, AssertionError):  # noqa: N818  (reads as what it says)
    """A method fails some checks; `items` are their names."""

    def __init__(self, method: str, complaints: Mapping[str, Sequence[str]]) -> None:
        """List all failures."""
        lines = [f"- {item}: {'; '.join(problems)}" for item, problems in complaints.items()]
        super().__init__("\n".join([f"{method} fails the checks of a method:", *lines]))
        self.items = tuple(complaints)


@dataclass(frozen=True)
class Report:
    """The checks that passed."""

    method: str
    device: str
    passed: tuple[str, ...]


def check_method(
    make: Make | str,
    tasks: Sequence[Task] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    context: Context | None = None,
    device: str | torch.device | None = None,
) -> Report:
    """Check a method, or raise `MethodCheckFailed` with all failures.

    `make` makes the method of a context, or names one of the registry, with `settings`. Tasks of your own need the
    `context` of a network that fits them. `device` is that of the tiny network, by default the CPU.
    """
    name = make if isinstance(make, str) else getattr(make, "__name__", type(make).__name__)
    given = dict(settings or {})
    maker: Callable[..., Method] = (lambda c, **kw: methods.make(make, c, **kw)) if isinstance(make, str) else make
    target = torch.device(device or "cpu")
    tasks = tiny_tasks() if tasks is None else list(tasks)
    context = replace(context or tiny_context(device=target), tasks=len(tasks))
    cudnn = torch.backends.cudnn.flags(deterministic=True)
    with restoring_settings(), seeding.isolated("check_method", device=target), cudnn:
        bench = _Bench(lambda c: maker(c, **given), context, tasks)
        try:
            bench.observe()
        except Exception as error:
            raise MethodCheckFailed(name, {"learns and predicts": [_described(error)]}) from error
        complaints = {item.__name__.strip("_").replace("_", " "): _all(item(bench)) for item in ITEMS}
    broken = {item: problems for item, problems in complaints.items() if problems}
    if broken:
        raise MethodCheckFailed(name, broken)
    return Report(name, str(target), tuple(complaints))


@dataclass(frozen=True)
class _Step:
    """What a method showed after a task."""

    logits: list[Tensor]
    """Of every task learned so far, on its test examples."""
    state: tuple[bytes, str]
    size: Size
    counted: int
    details: dict[str, Any]


@dataclass
class _Bench:
    """A method's first run, and what it takes to repeat parts of it."""

    make: Make
    context: Context
    tasks: list[Task]
    steps: dict[int, _Step] = field(default_factory=dict)
    """By position; a joint method has only the last."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """Problems noticed during the run, by the name of the check that reports them."""

    def observe(self) -> None:
        """Let a method learn all tasks, and record what it shows after each."""
        before = [[t.clone() for t in _tensors(task)] for task in self.tasks]
        self.method = method = self.make(self.context)
        for position, task in enumerate(self.tasks):
            self._observed(f"learn(task {position})", partial(method.learn, task))
            if method.joint and position < len(self.tasks) - 1:
                self._note("joint", self._early(method))
                continue
            self.steps[position] = self._look(method, position)
            self._note("learns", self._accuracy(method, position))
        for task, old in zip(self.tasks, before, strict=True):
            if not all(torch.equal(a, b) for a, b in zip(_tensors(task), old, strict=True)):
                self._note("inputs", [f"the tensors of {task.name!r} were changed in place"])

    def _look(self, method: Method, position: int) -> _Step:
        first = serialised(method.state())
        logits = [self._observed(f"predict(task {i})", partial(self._predict, method, i)) for i in range(position + 1)]
        state = self._observed("state()", method.state)
        if not same_state(deserialised(first), deserialised(serialised(state))):
            self._note("predicting", [f"predict changed the state after task {position}"])
        size, counted = self._observed("stored()", method.stored), method.counted()
        return _Step(logits, serialised(state), size, counted, method.details())

    def _predict(self, method: Method, task: int) -> Tensor:
        x = self.tasks[task].test.x
        with torch.enable_grad():
            free = method.predict(x, task)
        with torch.no_grad():
            bound = method.predict(x, task)
        if free.requires_grad:
            self._note("predicting", [f"logits of task {task} carry a gradient"])
        if not same(free, bound):
            self._note("predicting", [f"logits of task {task} differ from one call to the next"])
        return bound.detach().clone()

    def _accuracy(self, method: Method, position: int) -> list[str]:
        problems = []
        for i in range(position + 1) if method.joint else [position]:
            task = self.tasks[i]
            right = method.predict(task.train.x, i).argmax(1).cpu() == task.train.y.cpu()
            share, least = float(right.float().mean()), (1 + 3 / task.classes) / 4
            if not share >= least:
                problems.append(
                    f"accuracy {share:.2f} on the training data of task {i}, chance is {1 / task.classes:.2f}"
                )
        return problems

    def _early(self, method: Method) -> list[str]:
        try:
            method.predict(self.tasks[0].test.x, 0)
        except HalrpError:
            return []
        except Exception as error:
            return [f"predict before the last task raised no HalrpError but {_described(error)}"]
        return ["predict before the last task raised nothing"]

    def _observed(self, label: str, call: Callable[[], Result]) -> Result:
        before = global_state()
        with restoring_settings():
            result = call()
            after = global_state()
        self._note("surroundings", [f"{label} changed the {key}" for key in before if before[key] != after[key]])
        return result

    def _note(self, item: str, problems: Iterable[str]) -> None:
        self.notes.setdefault(item, []).extend(problems)

    def logits(self, method: Method, position: int) -> list[Tensor]:
        """Logits of every task up to a position."""
        with torch.no_grad():
            return [method.predict(self.tasks[i].test.x, i) for i in range(position + 1)]


def _learns(bench: _Bench) -> Iterator[str]:
    """A task just learned is known better than by chance, on its training data."""
    yield from bench.notes.get("learns", [])


def _logits(bench: _Bench) -> Iterator[str]:
    """Logits are floats, finite, of shape (rows, classes) and on the network's device."""
    for position, step in bench.steps.items():
        for i, logits in enumerate(step.logits):
            task = bench.tasks[i]
            expected = (len(task.test.y), task.classes)
            if tuple(logits.shape) != expected:
                yield f"task {i} has logits of shape {tuple(logits.shape)} after task {position}, not {expected}"
            elif not (logits.is_floating_point() and bool(logits.isfinite().all())):
                yield f"task {i} has logits after task {position} that are not finite floats"


def _predicting(bench: _Bench) -> Iterator[str]:
    """Predicting changes nothing, has no gradient, and gives the same bits in every grad mode."""
    yield from bench.notes.get("predicting", [])


def _joint(bench: _Bench) -> Iterator[str]:
    """Joint methods refuse to predict before the last task has been learned."""
    yield from bench.notes.get("joint", [])


def _inputs(bench: _Bench) -> Iterator[str]:
    """The tensors of tasks are left as they are."""
    yield from bench.notes.get("inputs", [])


def _surroundings(bench: _Bench) -> Iterator[str]:
    """Generators, default dtype, grad mode and number of threads are left as they were."""
    yield from dict.fromkeys(bench.notes.get("surroundings", []))


def _sizes(bench: _Bench) -> Iterator[str]:
    """Sizes are positive whole numbers, of at least a bit per number; what is frozen is never given back."""
    last: Size | None = None
    for position, step in bench.steps.items():
        size, after = step.size, f"after task {position}"
        numbers = (*size, step.counted) if isinstance(size, Size) else ()
        if not numbers or any(type(n) is not int or n <= 0 for n in numbers):
            yield f"stored() and counted() are {size!r} and {step.counted!r} {after}, not a Size and a whole number"
            continue
        if 8 * size.bytes < size.parameters:
            yield f"{size.parameters} numbers in {size.bytes} bytes {after}"
        if step.counted > size.parameters:
            yield f"counted() is {step.counted} {after}, more than the {size.parameters} numbers that are stored"
        if bench.method.frozen and last is not None and (size.parameters < last.parameters or size.bytes < last.bytes):
            yield f"stored() fell from {tuple(last)} to {tuple(size)} {after}, yet no learned task may change"
        last = size


def _details(bench: _Bench) -> Iterator[str]:
    """Details are a dictionary that JSON can hold."""
    for position, step in bench.steps.items():
        try:
            if json.loads(json.dumps(step.details, allow_nan=False)) is None or not isinstance(step.details, dict):
                yield f"details() is {step.details!r} after task {position}, not a dictionary"
        except (TypeError, ValueError) as error:
            yield f"details() cannot be JSON after task {position}: {error}"


def _deterministic(bench: _Bench) -> Iterator[str]:
    """A second run gives the same bits, whatever the state of the global generators."""
    with seeding.isolated("check_method", "second run", device=_device(bench.context)):
        method = bench.make(bench.context)
        for position, task in enumerate(bench.tasks):
            method.learn(task)
            if position not in bench.steps:
                continue
            step = bench.steps[position]
            yield from differences(step.logits, bench.logits(method, position), f"after task {position}")
            if not same_state(deserialised(step.state), deserialised(serialised(method.state()))):
                yield f"the state differs after task {position}"


def _restores(bench: _Bench) -> Iterator[str]:
    """A new method restored from a file behaves bit-identically."""
    for position, step in bench.steps.items():
        method = bench.make(bench.context)
        method.restore(deserialised(step.state))
        yield from differences(step.logits, bench.logits(method, position), f"restored after task {position}")
        if (method.stored(), method.counted()) != (step.size, step.counted):
            yield f"sizes differ, restored after task {position}"
        if not same_state(deserialised(step.state), deserialised(serialised(method.state()))):
            yield f"the state of a method restored after task {position} is another"
        if position + 1 in bench.steps:
            method.learn(bench.tasks[position + 1])
            later = f"after task {position + 1}, restored after task {position}"
            yield from differences(bench.steps[position + 1].logits, bench.logits(method, position + 1), later)


def _restoring_replaces(bench: _Bench) -> Iterator[str]:
    """Restoring an earlier state leaves nothing of what was learned since."""
    first = min(bench.steps)
    step = bench.steps[first]
    bench.method.restore(deserialised(step.state))
    yield from differences(step.logits, bench.logits(bench.method, first), "set back")
    if bench.method.stored() != step.size:
        yield f"{tuple(bench.method.stored())} are stored after being set back, not {tuple(step.size)}"


def _frozen(bench: _Bench) -> Iterator[str]:
    """Frozen: no later task changes one bit of a learned one."""
    if not bench.method.frozen:
        return
    for position, step in bench.steps.items():
        for i, logits in enumerate(step.logits):
            if i in bench.steps and not same(bench.steps[i].logits[i], logits):
                yield f"task {position} changed the logits of task {i}"


def _first_decides(bench: _Bench) -> Iterator[str]:
    """First decides: the last task is the same when only the first came before it."""
    last = len(bench.tasks) - 1
    if bench.method.first_decides and last >= 2:
        method = bench.make(bench.context)
        method.learn(bench.tasks[0])
        method.learn(bench.tasks[last])
        with torch.no_grad():
            logits = method.predict(bench.tasks[last].test.x, 1)
        if not same(bench.steps[last].logits[last], logits):
            yield f"task {last} has other logits when only task 0 comes before it"


ITEMS: tuple[Callable[[_Bench], Iterator[str]], ...] = (
    _logits,
    _learns,
    _predicting,
    _joint,
    _inputs,
    _surroundings,
    _sizes,
    _details,
    _frozen,
    _deterministic,
    _restores,
    _first_decides,
    _restoring_replaces,
)
"""The checks, in order; the last one restores the first run's method to an earlier state."""


def _all(problems: Iterator[str]) -> list[str]:
    complaints = []
    try:
        for complaint in problems:
            complaints.append(complaint)  # noqa: PERF402  (those before an error count)
    except Exception as error:
        complaints.append(_described(error))
    return complaints


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _tensors(task: Task) -> list[Tensor]:
    return [tensor for split in (task.train, task.val, task.test) for tensor in split]


def _device(context: Context) -> torch.device:
    return next(context.build(2, context.seed).parameters()).device
