"""Tasks learned side by side: the same bits as one after another, and errors that leave what was committed."""

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import Halrp, Learner, Progress, Recipe, seeding
from halrp.errors import DataError, SettingError, TaskError
from halrp.store import task_file
from halrp.training.progress import Notify
from tests.helpers import FAST, drawn, net, tiny_task
from tests.timing import PATIENCE

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


class Dropout(nn.Module):
    """A net that draws from the process's generators at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(10, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x).relu(), 0.5, self.training)
        return cast(Tensor, self.fc(F.dropout(self.second(hidden).relu(), 0.5, self.training)))


RANDOM_TASKS = {name: (tiny_task("mlp", seed), None) for seed, name in enumerate("abcde")}
DROPOUT_RECIPE = Recipe(epochs=6, batch=4)


def dropout_learner(progress: Notify | None = None) -> Learner:
    method = Halrp.budget(growth_per_task=0.9)
    return Learner(drawn(Dropout), method=method, recipe=DROPOUT_RECIPE, base="given", progress=progress)


@pytest.fixture
def one_by_one(quick_heads: None) -> dict[str, bytes]:
    learning = dropout_learner()
    learning.learn_many(RANDOM_TASKS)
    return files(learning)


def test_threads_give_the_same_bits_with_dropout(one_by_one: dict[str, bytes]) -> None:
    learning = dropout_learner()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change at nearly every operation
    try:
        with ThreadPoolExecutor(4) as engine:
            learning.learn_many(RANDOM_TASKS, engine=engine)
    finally:
        sys.setswitchinterval(interval)
    assert files(learning) == one_by_one


def test_two_learners_in_two_threads_give_the_same_bits_and_leave_the_generators_as_they_were(
    one_by_one: dict[str, bytes],
) -> None:
    learners = [dropout_learner(), dropout_learner()]
    states = torch.get_rng_state(), random.getstate()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as threads:
            for pending in [threads.submit(learning.learn_many, RANDOM_TASKS) for learning in learners]:
                pending.result()
    finally:
        sys.setswitchinterval(interval)
    assert files(learners[0]) == files(learners[1]) == one_by_one
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_threads_may_share_a_learner_that_has_no_base_yet() -> None:
    learning = Learner(drawn(Dropout), method=Halrp.budget(growth_per_task=0.9), recipe=DROPOUT_RECIPE)
    with ThreadPoolExecutor(2) as threads:
        for pending in [threads.submit(learning.learn, name, RANDOM_TASKS[name][0]) for name in "ab"]:
            pending.result()
    assert sorted(learning.tasks) == ["a", "b"]
    first, second = learning.tasks.values()
    assert first.is_base
    assert not second.is_base


def test_a_callback_may_learn_another_task_and_cannot_wait_for_an_engine(one_by_one: dict[str, bytes]) -> None:
    refused: list[str] = []
    other = dropout_learner()

    def callback(progress: Progress) -> None:
        if "a" not in other.tasks:
            other.learn("a", RANDOM_TASKS["a"][0])
            with ThreadPoolExecutor(1) as engine:
                try:
                    other.learn_many({"b": RANDOM_TASKS["b"]}, engine=engine)
                except SettingError as error:
                    refused.append(str(error))

    learning = dropout_learner(callback)
    learning.learn("a", RANDOM_TASKS["a"][0])
    assert files(learning) == files(other) == {"a": one_by_one["a"]}
    assert len(refused) == 1
    assert "progress callback" in refused[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_learns_can_learn_itself() -> None:
    with seeding.exclusive(), ThreadPoolExecutor(1) as thread:
        ended = thread.submit(_learns_in_a_forked_process).result()
    assert ended == 0


def _learns_in_a_forked_process() -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))  # a lock that nobody releases ends the process
        with seeding.exclusive():
            os._exit(0)  # without what pytest does at the end of a process
    return os.waitpid(child, 0)[1]
