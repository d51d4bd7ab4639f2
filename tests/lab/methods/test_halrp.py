"""HALRP as a method: what it promises, what it stores, and that a state brings everything back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from halrp import Halrp
from halrp.lab.methods import make
from halrp.lab.methods.check import check_method
from halrp.lab.methods.comparison import deserialised, serialised
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.tiny import tiny_context, tiny_tasks
from halrp.lab.streams import Task
from halrp.method.prune import Prune

NAMES = ("zebra", "ant", "mole")
"""Not in the order of the alphabet, in which a folder is read."""


def tasks() -> list[Task]:
    return [replace(task, name=name) for task, name in zip(tiny_tasks(), NAMES, strict=True)]


def test_the_order_of_tasks_survives_and_so_does_pruning_of_committed_ones() -> None:
    method = make("halrp-official", tiny_context(), growth=0.3)
    assert isinstance(method, HalrpMethod)
    first, second, third = tasks()
    method.learn(first)
    method.learn(second)
    early, before = serialised(method.state()), method.predict(second.test.x, 1)
    method.learn(third)
    assert not torch.equal(method.predict(second.test.x, 1), before), "the second task was pruned again"

    again = make("halrp-official", tiny_context(), growth=0.3)
    assert isinstance(again, HalrpMethod)
    again.restore(deserialised(early))
    assert torch.equal(again.predict(second.test.x, 1), before)
    again.learn(third)
    late = make("halrp-official", tiny_context(), growth=0.3)
    assert isinstance(late, HalrpMethod)
    late.restore(deserialised(serialised(method.state())))
    for other in (again, late):
        assert other.learner is not None
        assert list(other.learner.tasks) == list(NAMES)
        for i, task in enumerate(tasks()):
            assert torch.equal(other.predict(task.test.x, i), method.predict(task.test.x, i))
        assert other.stored() == method.stored()


@pytest.mark.parametrize(
    ("name", "frozen"), [("halrp-budget", True), ("halrp-official", False), ("halrp-paper", False), ("lrp", False)]
)
def test_only_pruning_of_committed_tasks_forgets(name: str, frozen: bool) -> None:
    method = make(name, tiny_context())
    assert (method.frozen, method.first_decides) == (frozen, frozen)


def test_pruning_the_newest_task_keeps_old_ones_but_looks_at_all_that_was_added() -> None:
    composition = replace(Halrp.official(growth=0.3), compress=Prune(growth=0.3))
    method = HalrpMethod(tiny_context(), composition)
    assert (method.frozen, method.first_decides) == (True, False)
    logits = []
    for order in ((0, 1, 2), (0, 2)):
        method = HalrpMethod(tiny_context(), composition)
        for i in order:
            method.learn(tasks()[i])
        logits.append(method.predict(tasks()[2].test.x, len(order) - 1))
    assert not torch.equal(*logits)
    check_method(lambda context: HalrpMethod(context, replace(composition, compress=Prune(growth=0.9))))


def test_the_base_and_its_deltas_are_what_is_stored() -> None:
    method = make("halrp-budget", tiny_context(), parameters_per_task=600)
    sizes = []
    for task in tasks():
        method.learn(task)
        sizes.append(method.stored().parameters)
    base = sum(t.numel() for t in tiny_context().build(3, 0).state_dict().values())
    assert sizes[0] == base
    assert all(0 < later - earlier <= 600 for earlier, later in pairwise(sizes))


def test_details_hold_the_ranks_of_the_newest_task() -> None:
    method = make("lrp", tiny_context(), rank=2)
    for task in tasks()[:2]:
        method.learn(task)
    assert method.details()["ranks"] == {"conv1.weight": 2, "conv2.weight": 2, "linear.weight": 2}
