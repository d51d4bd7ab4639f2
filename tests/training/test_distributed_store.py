"""The store, checkpoints and decisions of processes that learn together: one writes, and all do the same."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halrp import Learner, StopTraining, Store
from halrp.errors import ProcessError
from halrp.store import task_file
from halrp.training.updates import Updates
from tests.helpers import net, tiny_task
from tests.training.processes import KILLED, RECIPE, Log, learner, together


def learn_two(folder: Path, log: Log | None = None, kill: int | None = None) -> Callable[[int], Any]:
    """Learn two tasks in a store; the process `kill` ends in the middle of the second epoch of the second."""

    def work(rank: int) -> Any:
        if kill == rank:
            _die_at(5)
        store = Store(folder, checkpoint_every=0)
        result = learner("conv", base="first", store=store, progress=log)
        for name, seed in (("a", 0), ("b", 1)):
            if name not in result.tasks:
                result.learn(name, tiny_task("conv", seed), val=tiny_task("conv", 5))
        entries = result._committed.entries
        return [task_file.write(d) for d in result.tasks.values()], [] if log is None else log.epochs, entries

    return work


def _die_at(step: int) -> None:
    """End this process in a step of the stages after the base's, as a kill does."""
    steps = 0
    end = Updates.end

    def dying(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 4 * 3 + step:
            os._exit(9)
        end(*arguments)

    setattr(Updates, "end", dying)  # noqa: B010  (for mypy; this process ends here)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_store_is_written_once_and_loads_in_one_process(tmp_path: Path) -> None:
    first, second = together(learn_two(tmp_path / "tasks", Log()), tmp_path / "group")
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert {stage for stage, _ in first[1]} >= {"base", "warm-up"}
    assert second[1] == []  # one process reports
    loaded = Learner.load(tmp_path / "tasks", net("conv"), progress=None)
    assert [task_file.write(delta) for delta in loaded.tasks.values()] == first[0]
    assert loaded.tasks["b"].provenance["processes"] == 2
    manifest = Store(tmp_path / "tasks").manifest()
    assert manifest.generation == 2  # one commit for each task
    loaded.learn("c", tiny_task("conv", 2))  # and it learns on, alone
    assert "processes" not in loaded.tasks["c"].provenance


@pytest.mark.parametrize("kill", [0, 1])
def test_after_a_kill_of_either_process_two_others_end_with_the_same_files(kill: int, tmp_path: Path) -> None:
    whole = together(learn_two(tmp_path / "whole", Log()), tmp_path / "first")
    interrupted = together(learn_two(tmp_path / "tasks", kill=kill), tmp_path / "second")
    assert interrupted[kill] == KILLED
    assert isinstance(interrupted[1 - kill], ProcessError)
    assert "another process ended" in str(interrupted[1 - kill])
    assert list(Store(tmp_path / "tasks").manifest().tasks) == ["a"]
    resumed = together(learn_two(tmp_path / "tasks", Log()), tmp_path / "third")
    assert resumed[0][0] == whole[0][0] == resumed[1][0]
    done = len([stage for stage, _ in whole[0][1] if stage == "base"])
    assert 0 < len(resumed[0][1]) < len(whole[0][1]) - done  # epochs of the killed run are not trained again
    assert contents(tmp_path / "tasks") == contents(tmp_path / "whole")


def test_after_an_interrupt_of_the_first_process_no_finished_epoch_is_trained_again(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def learn(log: Log) -> Callable[[int], Any]:
        def work(rank: int) -> Any:
            result = learner(store=Store(tmp_path / "tasks", checkpoint_every=1e6), progress=log)
            result.learn("a", tiny_task("mlp"))
            return log.epochs

        return work

    first, second = together(learn(Log(after=1, then=interrupt)), tmp_path / "first")
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, ProcessError)
    resumed, _ = together(learn(Log()), tmp_path / "second")
    assert len(resumed) == RECIPE.epochs - 1


def test_early_stopping_and_stop_training_end_all_processes_alike(tmp_path: Path) -> None:
    def stop() -> None:
        raise StopTraining

    def work(rank: int) -> Any:
        log = Log(after=3, then=stop)
        stopped = learner(progress=log)
        stopped.learn("a", tiny_task("mlp"), val=tiny_task("mlp", 5))
        patient = learner(recipe=dataclasses.replace(RECIPE, epochs=30, lr=0.1, patience=1))
        patient.learn("a", tiny_task("mlp"), val=tiny_task("mlp", 5))
        return task_file.write(stopped.tasks["a"]), task_file.write(patient.tasks["a"]), log.epochs

    first, second = together(work, tmp_path)
    assert first[:2] == second[:2]
    assert len(first[2]) == 3
    assert second[2] == []
