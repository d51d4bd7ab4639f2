"""Tasks learned side by side: the same bits as one after another, and errors that leave what was committed."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from halrp import Halrp, Learner
from halrp.errors import DataError, SettingError, TaskError
from halrp.store import task_file
from tests.helpers import FAST, net, tiny_task

METHOD = Halrp.budget(growth_per_task=0.5)
TASKS = {name: (tiny_task("conv", seed), tiny_task("conv", seed + 10)) for seed, name in enumerate("abcd")}


class Backwards:
    """An engine that learns the last submitted task first."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.result = lambda timeout=None: self._finish(future)  # type: ignore[method-assign]
        self.work.append((future, function, arguments))
        return future

    def _finish(self, wanted: "Future[Any]") -> Any:
        while self.work:
            future, function, arguments = self.work.pop()
            future.set_result(function(*arguments))
        return Future.result(wanted)


def learner(**settings: Any) -> Learner:
    return Learner(net("conv"), method=METHOD, recipe=FAST, **settings)


def files(learned: Learner) -> dict[str, bytes]:
    return {name: task_file.write(delta) for name, delta in learned.tasks.items()}


@pytest.fixture(scope="module")
def sequential() -> dict[str, bytes]:
    learning = learner()
    for name, (train, val) in TASKS.items():
        learning.learn(name, train, val)
    return files(learning)


def test_without_an_engine_tasks_are_learned_one_after_another(sequential: dict[str, bytes]) -> None:
    learning = learner()
    assert list(learning.learn_many(TASKS)) == list("abcd")
    assert files(learning) == sequential


def test_an_engine_that_works_backwards_gives_the_same_bits_in_the_given_order(sequential: dict[str, bytes]) -> None:
    learning = learner()
    learning.learn_many(TASKS, engine=Backwards())
    assert list(learning.tasks) == list("abcd")
    assert files(learning) == sequential


def test_processes_give_the_same_bits_and_the_store_has_them(sequential: dict[str, bytes], tmp_path: Path) -> None:
    learning = learner(store=tmp_path)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as engine:
        learning.learn_many(TASKS, engine=engine)
    assert files(learning) == sequential
    assert files(Learner.load(tmp_path, net("conv"))) == sequential


def test_tasks_are_added_to_those_already_learned(sequential: dict[str, bytes]) -> None:
    learning = learner()
    learning.learn_many({n: TASKS[n] for n in "ab"})
    learning.learn_many({n: {"train": TASKS[n][0], "val": TASKS[n][1], "classes": 3} for n in "cd"}, engine=Backwards())
    assert files(learning) == sequential


def test_a_task_that_fails_leaves_those_before_it_and_none_after(sequential: dict[str, bytes]) -> None:
    learning = learner()
    x, y = TASKS["c"][0]
    broken = {**TASKS, "c": ((x * float("nan"), y), None)}
    with ThreadPoolExecutor(1) as engine, pytest.raises(DataError, match="c: train"):
        learning.learn_many(broken, engine=engine)
    assert files(learning) == {n: sequential[n] for n in "ab"}


def test_a_method_whose_compression_depends_on_other_tasks_cannot_learn_in_parallel() -> None:
    learning = Learner(net("conv"), method=Halrp.official(), recipe=FAST)
    with pytest.raises(SettingError, match=r"Prune\(.*cannot be learned in parallel"):
        learning.learn_many(TASKS, engine=Backwards())


def test_names_and_data_are_checked_before_anything_is_learned() -> None:
    learning = learner()
    with pytest.raises(TaskError, match="cannot read task data"):
        learning.learn_many({"a": TASKS["a"], "b": TASKS["b"][0]})
    with pytest.raises(TaskError, match="non-empty"):
        learning.learn_many({"a": TASKS["a"], "": TASKS["b"]})
    assert not learning.tasks
