"""Disks that are full, read-only or failing, at every step of a commit in turn.

A failed commit must leave the old state readable and complete, in the store and in the learner, and the next try must
work. `Fault` makes the n-th call of one kind of system call fail; each test first counts the calls of a commit without
faults and then goes through all of them.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Halrp, Learner, Recipe, Store
from halrp.errors import StoreError, WriteError
from halrp.store import atomic
from tests.helpers import net, tiny_task
from tests.store.stores import OFFICIAL, committed, roomy, snapshot

QUICK = Recipe(epochs=2, batch=24)
REASONS = {errno.ENOSPC: "the disk is full", errno.EROFS: "Read-only file system", errno.EIO: "Input/output error"}


class Fault:
    """Fail the n-th call of a kind, or count calls; n = 0 fails all of them."""

    def __init__(self, at: int | None, code: int) -> None:
        self.at, self.code, self.calls = at, code, 0

    def step(self, path: object) -> None:
        self.calls += 1
        if self.at is not None and self.at in (0, self.calls):
            raise OSError(self.code, os.strerror(self.code), str(path))


def _before(fault: Fault, original: Callable[..., Any], when: Callable[..., bool] = lambda *_, **__: True) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if when(*arguments, **options):
            fault.step(arguments[0])
        return original(*arguments, **options)

    return call


def _writing(path: Path, mode: str = "r", *_: Any, **__: Any) -> bool:
    return mode != "r" and "r" not in mode


def _half_written(fault: Fault, original: Callable[..., Any]) -> Any:
    """Open files whose `write` writes half of the content and fails."""

    class Half(io.FileIO):
        def write(self, content: Any) -> int:
            written = super().write(content[: len(content) // 2])
            fault.step(self.name)
            return written + super().write(content[len(content) // 2 :])

    def call(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return Half(path, "x") if _writing(path, mode) else original(path, mode, *arguments, **options)

    return call


def _existing(path: Any, *_: Any, **__: Any) -> bool:
    return os.path.lexists(path)


STEPS: dict[str, tuple[Any, str, Callable[[Fault, Any], Any]]] = {
    "open": (Path, "open", lambda fault, original: _before(fault, original, _writing)),
    "write": (Path, "open", _half_written),
    "flush": (os, "fsync", _before),
    "move": (os, "replace", _before),
    "make folder": (Path, "mkdir", _before),
    "open folder": (os, "open", _before),
    "open lock": (atomic, "Lock", _before),
    "move to trash": (os, "rename", _before),
    "remove": (os, "unlink", lambda fault, original: _before(fault, original, _existing)),
    "remove path": (Path, "unlink", lambda fault, original: _before(fault, original, _existing)),
}

UNDOES_NOTHING = {"remove", "remove path", "move to trash"}
"""Steps that come after the commit, or clean up what failed: the commit's result is not theirs to decide."""


def faulty(patch: pytest.MonkeyPatch, step: str, at: int | None, code: int = errno.ENOSPC) -> Fault:
    fault = Fault(at, code)
    owner, name, wrap = STEPS[step]
    patch.setattr(owner, name, wrap(fault, getattr(owner, name)))
    return fault


def count_at_commit(patch: pytest.MonkeyPatch, fault: Fault) -> list[int]:
    """The calls that were counted when the manifest was in place; a list that is filled then."""
    original, counts = os.replace, list[int]()

    def replace(source: Any, target: Any) -> None:
        original(source, target)
        if Path(target).name == "manifest.json":
            counts.append(fault.calls)

    patch.setattr(os, "replace", replace)
    return counts


def opened(folder: Path, method: Halrp) -> Learner:
    return Learner(net("mlp"), recipe=QUICK, method=method, store=Store(folder, checkpoint_every=0))


SCENARIOS = {"first task": (0, roomy()), "later task": (2, roomy("int8")), "pruning old tasks": (2, OFFICIAL)}


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Halrp]:
    """A store before a task is learned, and after."""
    tasks, method = SCENARIOS[request.param]
    folder = tmp_path_factory.mktemp("scenario")
    before, after = folder / "before", folder / "after"
    before.mkdir()
    for number in range(tasks):
        opened(before, method).learn(f"t{number}", tiny_task("mlp", number))
    shutil.copytree(before, after)
    opened(after, method).learn("new", tiny_task("mlp", 5))
    return before, after, method


def readable(folder: Path, expected: Path) -> bool:
    """Whether a store holds exactly the tasks of another one, complete. Unfinished files do not count."""
    if not Store(expected).exists():
        return not Store(folder).exists()
    names = committed(expected) - {"lock"}
    ours, theirs = snapshot(folder), snapshot(expected)
    Learner.load(folder, net("mlp"))
    return all(ours[name] == theirs[name] for name in names)


def refusal(learner: Learner) -> WriteError | None:
    """Learn the task "new", which may fail in this way only."""
    try:
        learner.learn("new", tiny_task("mlp", 5))
    except WriteError as error:
        return error
    return None


@pytest.mark.parametrize("step", STEPS)
def test_a_fault_at_any_step_leaves_the_old_state_or_the_new_one_and_the_next_try_works(
    step: str, scenario: tuple[Path, Path, Halrp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, method = scenario
    x = tiny_task("mlp", 7)[0]
    survived = []
    number, calls, at_commit = 0, 1, 0
    while number < calls:
        number += 1
        folder = tmp_path / str(number)
        if number == 1:  # count first
            shutil.copytree(before, folder / "count")
            learner = opened(folder / "count", method)
            with monkeypatch.context() as patch:
                fault = faulty(patch, step, None)
                counts = count_at_commit(patch, fault)
                learner.learn("new", tiny_task("mlp", 5))
            calls, at_commit = fault.calls, counts[0]
            if not calls:
                assert step in UNDOES_NOTHING
                return
        code = list(REASONS)[number % 3]
        shutil.copytree(before, folder / "store")
        learner = opened(folder / "store", method)
        tasks, base = dict(learner.tasks), learner._committed.base
        logits = {name: learner.predict(x, name) for name in tasks}
        with monkeypatch.context() as patch:
            faulty(patch, step, number, code)
            error = refusal(learner)
        if error is None:
            survived.append(number)
        else:
            assert str(folder) in str(error)
            assert REASONS[code] in str(error)
            assert dict(learner.tasks) == tasks
            assert learner._committed.base is base
            assert all(torch.equal(learner.predict(x, name), logits[name]) for name in tasks)
            assert readable(folder / "store", before), f"{step} {number} of {calls}"
        if number not in survived:
            learner.learn("new", tiny_task("mlp", 5))
            ours, theirs = snapshot(folder / "store"), snapshot(after)
            assert ours == theirs, f"{step} {number} of {calls}: {ours.keys() ^ theirs.keys()}"
        assert readable(folder / "store", after)
        assert list(learner.tasks) == list(Store(after).manifest().tasks)
    # Once the manifest is in place nothing is taken back, whatever happens to what it no longer names.
    assert survived == list(range(1 if step in UNDOES_NOTHING else at_commit + 1, calls + 1))


@pytest.mark.parametrize("code", REASONS)
def test_a_folder_that_is_read_only_can_be_read_and_not_written(
    code: int, scenario: tuple[Path, Path, Halrp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, method = scenario
    folder = tmp_path / "store"
    shutil.copytree(after, folder)
    with monkeypatch.context() as patch:
        for step in STEPS:
            if step != "write":  # "open" comes first
                faulty(patch, step, 0, code)
        learner = opened(folder, method)
        learner.predict(tiny_task("mlp", 7)[0], "new")
        tasks = dict(learner.tasks)
        with pytest.raises(WriteError, match=str(folder)):
            learner.learn("newer", tiny_task("mlp", 6))
        with pytest.raises(WriteError, match=str(tmp_path)):
            learner.save(tmp_path / "elsewhere")
        assert dict(learner.tasks) == tasks
    assert snapshot(folder) == snapshot(after)
    learner.learn("newer", tiny_task("mlp", 6))
    assert list(Learner.load(folder, net("mlp")).tasks) == [*tasks, "newer"]
    assert before.exists()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_a_file_system_that_cannot_flush_folders_is_good_enough(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if Path(path).is_dir():
            raise OSError(code, os.strerror(code), str(path))
        return original(path, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        opened(tmp_path / "a" / "b", roomy()).learn("t", tiny_task("mlp", 0))
    assert list(Learner.load(tmp_path / "a" / "b", net("mlp")).tasks) == ["t"]


def test_nothing_is_named_before_the_disk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut only what was flushed is there, so the order of flushes and moves is what counts."""
    log: list[tuple[str, str]] = []
    paths: dict[int, str] = {}
    replace, fsync, open_ = os.replace, os.fsync, os.open

    def spy_replace(source: Any, target: Any) -> None:
        log.append(("move", Path(target).relative_to(tmp_path).as_posix()))
        replace(source, target)

    def spy_open(path: Any, *rest: Any, **options: Any) -> int:
        handle = open_(path, *rest, **options)
        paths[handle] = Path(path).relative_to(tmp_path).as_posix() if Path(path).is_relative_to(tmp_path) else "?"
        return handle

    def spy_fsync(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}") if os.path.exists("/proc/self/fd") else paths[handle]
        log.append(("flush", Path(name).relative_to(tmp_path).as_posix() if name.startswith("/") else name))
        fsync(handle)

    learner = Learner(net("mlp"), recipe=QUICK, method=roomy(), base="given")
    learner.learn("t", tiny_task("mlp", 0))
    monkeypatch.setattr(os, "replace", spy_replace)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "open", spy_open)
    learner.save(tmp_path / "store")
    moves = [name for kind, name in log if kind == "move"]
    commit = log.index(("move", "store/manifest.json"))
    assert [name.split("-")[0] for name in moves] == [
        "store/base",
        "store/layout",
        "store/tasks/t",
        "store/manifest.json",
    ]
    for name in moves:
        # The content of a file is flushed under its temporary name just before it is moved …
        kind, flushed = log[log.index(("move", name)) - 1]
        assert (kind, Path(flushed).suffix) == ("flush", atomic.TEMPORARY)
        # … and its folder before the manifest names it.
        if name != "store/manifest.json":
            folder = ("flush", Path(name).parent.as_posix())
            assert log.index(("move", name)) < max(i for i in range(commit) if log[i] == folder)
    assert ("flush", ".") in log[:commit]  # the store's own folder
    assert log[-1] == ("flush", "store")


def test_an_interrupt_inside_a_write_leaves_no_unfinished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    learner = opened(tmp_path, roomy())
    learner.learn("t0", tiny_task("mlp", 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn("t1", tiny_task("mlp", 1))
    assert list(learner.tasks) == ["t0"]
    assert set(snapshot(tmp_path)) == committed(tmp_path)


def test_a_manifest_that_cannot_be_looked_at_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = opened(tmp_path, roomy())
    learner.learn("t0", tiny_task("mlp", 0))
    before = snapshot(tmp_path)

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", fail)
        with pytest.raises(StoreError, match="cannot be read: Input/output error"):
            learner.save(tmp_path)
    assert snapshot(tmp_path) == before
