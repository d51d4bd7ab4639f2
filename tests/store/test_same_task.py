"""Several processes that learn the same tasks into one store at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halrp import Halrp, Learner, Recipe, Store
from tests.helpers import net, tiny_task

PROCESSES = 4
TASKS = 6

LEARN = """
import sys
from pathlib import Path
from tests.store.test_same_task import learn

sys.stdin.readline()  # all begin together
learn(Path(sys.argv[1]))
"""


def learn(folder: Path) -> None:
    """Learn every task that the store did not have when it was opened, with a checkpoint after every epoch."""
    recipe = Recipe(epochs=6, batch=8, lr=5e-3)
    for number in range(TASKS):
        store = Store(folder, checkpoint_every=0)
        learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=recipe, store=store)
        if f"task {number}" not in learner.tasks:
            learner.learn(f"task {number}", tiny_task("mlp", number), val=tiny_task("mlp", 10 + number))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_processes_that_learn_the_same_tasks_all_succeed_and_make_the_store_of_one(tmp_path: Path) -> None:
    learn(tmp_path / "one")
    command = [sys.executable, "-c", LEARN, str(tmp_path / "many")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert errors == [""] * PROCESSES
    assert [process.returncode for process in processes] == [0] * PROCESSES
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
