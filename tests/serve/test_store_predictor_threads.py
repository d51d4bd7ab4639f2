"""Threads predict while another process commits, replaces and removes: no answer is ever that of another version."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from halrp import Delta, Learner, Store, StorePredictor
from halrp.errors import UnknownTaskError
from halrp.store import atomic, task_file
from tests.helpers import net, one_thread, tiny_task
from tests.store.stores import learned
from tests.timing import PATIENCE

X = tiny_task("conv", 9)[0][:8]
CHANGES = 30
TOLERANCE = 1e-5
"""Of rows in one pass: rounding of float32. Outputs of different versions differ by more than a hundred times that."""


def change(folder: Path, learner: Learner, versions: list[Delta]) -> None:
    """Replace `a` again and again by one version after another; let `b` come and go."""
    store, base, present = Store(folder), learner._committed.ready, versions[0]
    for number in range(CHANGES):
        new = versions[(number + 1) % len(versions)]
        store.commit(base, [new], replaced={"a": present})
        present = new
        if number % 2:
            store.remove("b")
        else:
            store.commit(base, [replace(versions[number // 2 % len(versions)], task="b")])


def expected_outputs(learner: Learner, versions: list[Delta]) -> dict[tuple[str, str], Tensor]:
    """What the module of each version gives, by name and by the checksum of its file."""
    base, outputs = learner._committed.ready, {}
    x = base.prepare_inputs(X)
    with torch.no_grad():
        for delta in (*versions, *(replace(version, task="b") for version in versions), learner.tasks["c"]):
            outputs[delta.task, atomic.checksum(task_file.write(delta))] = base.merged(delta)(x)
    return outputs


def test_every_answer_is_that_of_the_version_that_its_call_began_with(tmp_path: Path) -> None:
    with one_thread():
        learner = learned("conv", tasks=5)
        versions = [replace(learner.tasks[f"t{number}"], task="a") for number in (1, 2, 3)]
        learner.rename("t4", "c")
        expected = expected_outputs(learner, versions)
        Store(tmp_path).commit(learner._committed.ready, [versions[0], learner.tasks["c"]])
        predictor = StorePredictor.open(tmp_path, net("conv"), follow_every=0.0, memory=200_000)
        child = os.fork()
        if child == 0:
            try:
                change(tmp_path, learner, versions)
                os._exit(0)
            finally:
                os._exit(1)
        wrong: list[str] = []
        seen: set[str] = set()
        ended = threading.Event()

        def ask(seed: int) -> None:
            draw = random.Random(seed)
            while not ended.is_set():
                names = [draw.choice(["a", "a", "b", "c"]) for _ in X]
                if draw.random() < 0.3:
                    names = [names[0]] * len(X)
                try:
                    tasks = predictor.select(names)
                except UnknownTaskError as error:
                    if "'b'" not in str(error):
                        wrong.append(str(error))
                    continue
                outputs = predictor.compute(X, [tasks[name] for name in names])
                for row, name in enumerate(names):
                    alone = expected[name, tasks[name].version][row]
                    if not torch.allclose(outputs[row, : len(alone)], alone, rtol=TOLERANCE, atol=TOLERANCE):
                        wrong.append(f"{name} {tasks[name]}")
                seen.update(f"{name} {task.version}" for name, task in tasks.items())

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        _, status = os.waitpid(child, 0)
        ended.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert os.waitstatus_to_exitcode(status) == 0
    assert wrong == []
    assert len(seen) > 3, "several versions were asked"
    assert predictor.refresh() is not None
    assert predictor.tasks == Store(tmp_path).manifest().tasks
    assert sum(predictor.resident.values()) <= predictor.memory
    assert predictor.problem is None


def test_a_task_that_many_threads_ask_for_is_read_once(tmp_path: Path) -> None:
    learner = learned("conv", tasks=2, store=tmp_path)
    predictor = StorePredictor.open(tmp_path, net("conv"))
    barrier, outputs = threading.Barrier(6), []

    def ask() -> None:
        barrier.wait(PATIENCE)
        outputs.append(predictor.predict(X, "t1"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert predictor.statistics["loads"] == 1
    assert len(outputs) == 6
    assert all(torch.equal(each, learner.predict(X, "t1")) for each in outputs)
