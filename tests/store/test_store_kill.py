"""Processes killed at any moment: nothing that was finished is lost, and going on ends where nobody was killed.

Children are forked from the test process, so that a life costs milliseconds and not an import of torch. A child learns
a stream into a store and says so after each task; it is killed by SIGKILL after a random time, or at a chosen step
inside a write, and the next one goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from halrp import Halrp, Learner, Recipe, Store
from halrp.errors import LockedError
from halrp.store import atomic
from tests.helpers import net, one_thread, tiny_task
from tests.store.stores import OFFICIAL, roomy, snapshot

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked"),
    # Forking beside threads is deprecated; torch's threads are asleep, and children use one.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TASKS = 4
RECIPE = Recipe(epochs=3, batch=8)
METHODS = {"budget": roomy("int8"), "pruning old tasks": OFFICIAL}


def live(folder: Path, method: Halrp, say: Callable[[str], None]) -> None:
    """Learn what is left of the stream. The last save changes nothing but removes what an earlier life left over."""
    learner = Learner(net("mlp"), recipe=RECIPE, method=method, store=Store(folder, checkpoint_every=0))
    for number in range(TASKS):
        if f"t{number}" not in learner.tasks:
            x, y = tiny_task("mlp", number)
            learner.learn(f"t{number}", (x, y), val=(x, y))
            say(f"t{number}")
    learner.save(folder)


def child(folder: Path, method: Halrp, die_at: int | None) -> tuple[int, int]:
    """Fork a life; return its process and the end of a pipe on which it says what it has finished.

    With `die_at` it kills itself at that step of writing: each opening, flush and move is one.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.close(reading)
        if die_at is not None:
            _die_at(die_at)
        os.write(writing, b"ready\n")
        live(folder, method, lambda line: (os.write(writing, f"{line}\n".encode()), None)[1])
        os.write(writing, b"done\n")
        os._exit(0)
    except BaseException as error:
        os.write(writing, f"failed: {type(error).__name__}: {error}\n".encode())
        os._exit(1)


def _die_at(step: int) -> None:
    """Kill this process at the n-th step of writing, after half of the content where that is a write."""
    steps = 0

    def mortal(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call

    class Half:
        """A file that can be killed between the halves of its content."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.close()

        def write(self, content: bytes) -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            mortal(self.file.write)(content[len(content) // 2 :])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    path_open = Path.open

    def open_(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        file = path_open(path, mode, *rest, **options)
        return Half(file) if "x" in mode else file

    setattr(Path, "open", open_)  # noqa: B010  (this process never puts it back)
    setattr(os, "replace", mortal(os.replace))  # noqa: B010
    setattr(os, "rename", mortal(os.rename))  # noqa: B010
    setattr(os, "fsync", mortal(os.fsync))  # noqa: B010
    setattr(os, "unlink", mortal(os.unlink))  # noqa: B010


def heard(reading: int) -> list[str]:
    """What a killed child reported, complete lines only."""
    reported = b""
    while part := os.read(reading, 4096):
        reported += part
    os.close(reading)
    lines = reported.decode().splitlines()
    assert not [line for line in lines if line.startswith("failed")], lines
    return lines


def one_life(folder: Path, method: Halrp, delay: float | None, die_at: int | None) -> list[str]:
    """Let a child live until it is done or killed, `delay` seconds after it is ready; return what it finished."""
    process, reading = child(folder, method, die_at)
    first = os.read(reading, 6)
    assert first == b"ready\n"
    if delay is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    lines = heard(reading)
    os.waitpid(process, 0)
    return lines


def lives_until_done(folder: Path, method: Halrp, kills: Iterator[tuple[float | None, int | None]]) -> int:
    """Kill one child after another and look at the store each time, until one is done; return the number killed."""
    finished: set[str] = set()
    killed = 0
    while True:
        delay, die_at = next(kills, (None, None))
        reported = one_life(folder, method, delay, die_at)
        done = "done" in reported
        finished |= set(reported) - {"done"}
        if Store(folder).exists():
            stored = set(Learner.load(folder, net("mlp")).tasks)  # reads and checks every file
            assert finished <= stored
        else:
            assert not finished
        if done:
            return killed
        killed += 1


@pytest.fixture(scope="module", params=METHODS)
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Halrp, Path, float]:
    """A method, the store of a stream that nobody interrupted, and the seconds it took."""
    method, folder = METHODS[request.param], tmp_path_factory.mktemp("whole")
    with one_thread():
        live(tmp_path_factory.mktemp("warm"), method, lambda _: None)  # imports and caches that children inherit
        began = time.perf_counter()
        assert one_life(folder, method, None, None) == ["t0", "t1", "t2", "t3", "done"]
    return method, folder, time.perf_counter() - began


def kill_often(uninterrupted: tuple[Halrp, Path, float], folder: Path, kills: int, seed: int) -> None:
    """Kill at random moments, half of them inside writes, stream after stream until there were enough."""
    method, whole, seconds = uninterrupted
    random, total, streams = Random(seed), 0, 0

    def moments() -> Iterator[tuple[float | None, int | None]]:
        yield None, random.randrange(1, 23)  # a step that every stream comes to, however fast it is
        for _ in range(5):
            yield (random.uniform(0, seconds / 2), None) if random.random() < 0.5 else (None, random.randrange(1, 60))

    with one_thread():
        while total < kills:
            streams += 1
            store = folder / str(streams)
            total += lives_until_done(store, method, moments())
            assert snapshot(store) == snapshot(whole), f"seed {seed}, stream {streams}"


def test_a_stream_that_is_killed_again_and_again_ends_as_if_it_were_not(
    uninterrupted: tuple[Halrp, Path, float], tmp_path: Path
) -> None:
    kill_often(uninterrupted, tmp_path, kills=4, seed=1)


@pytest.mark.slow
def test_a_stream_that_is_killed_fifty_times_ends_as_if_it_were_not(
    uninterrupted: tuple[Halrp, Path, float], tmp_path: Path
) -> None:
    kill_often(uninterrupted, tmp_path, kills=60, seed=2)


def kill_at_steps(uninterrupted: tuple[Halrp, Path, float], folder: Path, stride: int) -> int:
    method, whole, _ = uninterrupted
    with one_thread():
        step = 1
        while True:
            store = folder / str(step)
            if not lives_until_done(store, method, iter([(None, step)])):
                return step
            assert snapshot(store) == snapshot(whole)
            step += stride


def test_a_kill_at_some_steps_of_writing_loses_nothing(
    uninterrupted: tuple[Halrp, Path, float], tmp_path: Path
) -> None:
    assert kill_at_steps(uninterrupted, tmp_path, stride=23) > 23


@pytest.mark.slow
def test_a_kill_at_every_step_of_writing_loses_nothing(
    uninterrupted: tuple[Halrp, Path, float], tmp_path: Path
) -> None:
    assert kill_at_steps(uninterrupted, tmp_path, stride=1) > 60


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        with atomic.locked(tmp_path):
            os.write(writing, b"locked")
            signal.pause()
        os._exit(0)
    assert os.read(reading, 6) == b"locked"
    with pytest.raises(LockedError), atomic.locked(tmp_path, wait=0.1):
        pass
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reading)
    os.close(writing)
    with atomic.locked(tmp_path, wait=0.1):
        pass
