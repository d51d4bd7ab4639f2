"""Networks for mixed batches: reused, made again when it pays, bounded, and right with whatever shares them."""

from __future__ import annotations

import pytest
import torch

from halrp import Learner
from halrp.model.base import Base
from halrp.serve import rosters as module
from halrp.serve.loaded import LoadedTask
from halrp.serve.rosters import Roster, Rosters
from tests.store.stores import learned


@pytest.fixture(scope="module")
def learner() -> Learner:
    return learned("mlp", tasks=6)


def loaded(learner: Learner) -> tuple[Base, list[LoadedTask]]:
    base = learner._committed.ready
    tasks = [LoadedTask(base, delta, name) for name, delta in learner.tasks.items()]
    for task in tasks:
        task.resident = True
    return base, tasks


def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tasks of the networks that are made."""
    sizes: list[int] = []
    create = Roster.__init__

    def recorded(self: Roster, base: Base, tasks: list[LoadedTask], *arguments: object) -> None:
        sizes.append(len(tasks))
        create(self, base, tasks, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module.Roster, "__init__", recorded)
    return sizes


def test_a_network_serves_all_batches_of_its_tasks(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    base, tasks = loaded(learner)
    sizes = made(monkeypatch)
    rosters = Rosters(base, LoadedTask.module, 1 << 30)
    for batch in (tasks[:4], tasks[1:3], tasks[:2], tasks[2:4]):
        assert set(batch) <= rosters.over(batch).positions.keys()
    assert sizes == [4]


def test_stacking_is_at_most_twice_what_the_batches_need(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    base, tasks = loaded(learner)
    sizes = made(monkeypatch)
    rosters = Rosters(base, LoadedTask.module, 1 << 30)
    for number in range(30):
        pair = [tasks[number % 6], tasks[(number * 5 + 1) % 6]]
        rosters.over(list(dict.fromkeys(pair)))
    assert sizes[-1] == 6, "in the end one network has all"
    assert sum(sizes) <= 2 * 2 * 6 + 6


def test_what_is_stacked_is_bounded_and_dropped_tasks_leave(learner: Learner) -> None:
    base, tasks = loaded(learner)
    tight = Rosters(base, LoadedTask.module, 1)
    for start in (0, 1, 2, 3, 0, 1):
        assert tight.over(tasks[start : start + 2]).positions.keys() == set(tasks[start : start + 2])
    rosters = Rosters(base, LoadedTask.module, 1 << 30)
    rosters.over(tasks)
    for task in tasks[:3]:
        task.resident = False
    rosters.forget_dropped()
    assert rosters.over(tasks[3:5]).positions.keys() == set(tasks[3:5])


def test_rows_agree_with_their_tasks_whatever_else_is_in_the_network(learner: Learner) -> None:
    base, tasks = loaded(learner)
    x = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    rows = [tasks[0], tasks[1]] * 4
    expected = learner.predict(x, ["t0", "t1"] * 4)
    for others in (tasks[:2], tasks):
        roster = Roster(base, others, LoadedTask.module, set())
        with torch.no_grad():
            outputs = roster.network.batched(x, roster.indices(rows, x.device), 8)
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
