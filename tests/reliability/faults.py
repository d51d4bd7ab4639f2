"""Faults at the n-th step of an operation, a kill, a full disk or a power cut, and what must hold afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from halrp.errors import HalrpError
from tests.reliability.crash_states import Tree, crash_states, restore
from tests.reliability.operations import Operation
from tests.reliability.shim import Fault, Step, watch


def steps_of(operation: Operation, scratch: Path) -> list[Step]:
    """What an uninterrupted run does to the disk, and a check that it comes out as it did before."""
    folder = _fresh(operation.before(), scratch)
    with watch(folder) as steps:
        operation.run(folder)
    assert operation.final(folder) == operation.end(), f"{operation.name}: two runs differ"
    shutil.rmtree(folder)
    return steps


def at(number: int, act: Callable[[Step], None]) -> Fault:
    """A fault that acts at the n-th step, the first being 1."""
    count = 0

    def fault(step: Step) -> None:
        nonlocal count
        count += 1
        if count == number:
            act(step)

    return fault


# ---- kills -----------------------------------------------------------------------------------------------------------


def _die(_: Step) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(operation: Operation, folder: Path, number: int) -> bool:
    """Run an operation in a forked child that is killed at a step; whether it came that far."""
    process = os.fork()
    if not process:
        code = 1
        try:
            with watch(folder, at(number, _die)):
                operation.run(folder)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{operation.name}: an error at step {number}"
    return os.WIFSIGNALED(status)


def kill_at(operation: Operation, numbers: Sequence[int], scratch: Path) -> int:
    """Kill one process after another, each at its step, and then finish the work; return the number of kills."""
    folder = _fresh(operation.before(), scratch)
    kills = 0
    for number in numbers:
        kills += killed(operation, folder, number)
        _check_seen(operation, folder, f"killed at step {number} of {list(numbers)}")
    _finish(operation, folder, f"killed at steps {list(numbers)}")
    return kills


# ---- a full disk -----------------------------------------------------------------------------------------------------

_CODES = {"remove": errno.EIO, "remove folder": errno.EIO}


def _refuse(step: Step) -> None:
    code = _CODES.get(step.kind, errno.ENOSPC)
    raise OSError(code, os.strerror(code), step.path)


def full_at(operation: Operation, number: int, scratch: Path) -> bool:
    """Let the disk be full at a step; whether the operation was refused, which must be by a typed error."""
    folder = _fresh(operation.before(), scratch)
    refused = False
    with watch(folder, at(number, _refuse)):
        try:
            operation.run(folder)
        except HalrpError:
            refused = True
    _check_seen(operation, folder, f"the disk was full at step {number}")
    if not refused:
        assert operation.seen(folder) == operation.new(), f"{operation.name}: lost by a full disk at step {number}"
    _finish(operation, folder, f"the disk was full at step {number}")
    return refused


# ---- power loss ------------------------------------------------------------------------------------------------------


def lose_power(operation: Operation, steps: Sequence[Step], scratch: Path, most: int, stride: int = 1) -> int:
    """Look at what power cuts at every step may leave, or at every n-th of these states; return their number.

    What an operation did before it returned is there afterwards.
    """
    count = 0
    for number, (step, tree) in enumerate(crash_states(operation.before(), steps, most=most)):
        if number % stride:
            continue
        folder = _fresh(tree, scratch)
        message = f"power was lost after step {step} of {len(steps)}, state {number}"
        if step == len(steps):
            assert operation.seen(folder) == operation.new(), f"{operation.name}: lost what had returned"
        _check_seen(operation, folder, message)
        _finish(operation, folder, message)
        count += 1
    return count


# ---- what must hold --------------------------------------------------------------------------------------------------


def _fresh(tree: Tree, scratch: Path) -> Path:
    folder = scratch / "store"
    shutil.rmtree(folder, ignore_errors=True)
    restore(tree, folder)
    return folder


def _check_seen(operation: Operation, folder: Path, message: str) -> None:
    """A reader finds the old state or the new one, complete."""
    try:
        seen = operation.seen(folder)
    except HalrpError as error:
        raise AssertionError(f"{operation.name}: {message}: {error}") from error
    assert seen == operation.old() or seen == operation.new(), f"{operation.name}: {message}: neither old nor new"


def _finish(operation: Operation, folder: Path, message: str) -> None:
    """The same call once more ends as an uninterrupted run does."""
    operation.run(folder)
    assert operation.final(folder) == operation.end(), f"{operation.name}: {message}: the end differs"
    shutil.rmtree(folder)
