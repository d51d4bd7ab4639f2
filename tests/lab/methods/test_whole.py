"""`stl` and `mtl`: a network per task, and one for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from halrp.errors import SettingError, TaskError
from halrp.lab.methods import make
from halrp.lab.methods.mtl import Joint, Turns
from halrp.lab.methods.network import contents
from halrp.lab.methods.protocol import Size
from halrp.lab.methods.stl import Separate
from halrp.lab.methods.tiny import TINY, TinyNet, tiny_context, tiny_tasks
from halrp.training.batches import InMemory


def separate(order: str, **settings: Any) -> list[Tensor]:
    method = make("stl", tiny_context(order=order), **settings)
    tasks = tiny_tasks()[:2]
    for task in tasks:
        method.learn(task)
    return [method.predict(task.test.x, i) for i, task in enumerate(tasks)]


def test_separate_networks_do_not_depend_on_the_order_unless_redrawn() -> None:
    assert all(torch.equal(a, b) for a, b in zip(separate("A"), separate("B"), strict=True))
    redrawn = separate("A", redraw=True), separate("B", redraw=True)
    assert not any(torch.equal(a, b) for a, b in zip(*redrawn, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(separate("A", redraw=True), redrawn[0], strict=True))


def test_separate_networks_say_whether_the_first_task_decides() -> None:
    assert make("stl", tiny_context()).first_decides
    assert not make("stl", tiny_context(), redraw=True).first_decides


def test_separate_networks_store_one_network_per_task() -> None:
    method = make("stl", tiny_context())
    tasks = tiny_tasks((3, 3, 3))
    for task in tasks:
        method.learn(task)
    item = Size.of(contents(TinyNet(3)).values())
    assert method.stored() == (3 * item.parameters, 3 * item.bytes)
    assert method.counted() == 3 * sum(p.numel() for p in TinyNet(3).parameters())


@pytest.mark.parametrize("mixed", [False, True])
def test_joint_learning_of_one_task_is_single_task_learning(mixed: bool) -> None:
    task = tiny_tasks()[0]
    joint = cast(Joint, make("mtl", tiny_context(1), mixed_batches=mixed))
    alone = cast(Separate, make("stl", tiny_context(1)))
    joint.learn(task)
    alone.learn(task)
    assert joint.net is not None
    mine, its = contents(joint.net), contents(alone.nets[0])
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[n], its[n]) for n in mine)


def test_joint_learning_stores_one_network_and_a_head_per_task() -> None:
    method = make("mtl", tiny_context())
    for task in tiny_tasks():
        method.learn(task)
    assert method.counted() == sum(p.numel() for p in TinyNet(3).parameters()) + 17 * (2 + 4)


def batches(order: list[int], mixed: bool) -> list[tuple[Tensor, Tensor]]:
    """The batches of one pass over tiny tasks in an order, labels as (task identity, label)."""
    method = Joint(tiny_context(), mixed_batches=mixed)
    tasks = [tiny_tasks()[i] for i in order]
    method.waiting, method.classes = tasks, [task.classes for task in tasks]
    data = method._data(TinyNet(3))
    owner = torch.cat([torch.full((task.classes,), task.identity) for task in tasks])
    result = [(x, owner[y]) for x, y in data.batches(16, torch.Generator().manual_seed(0))]
    assert len(result) == data.steps(16)
    return result


def pictures(result: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.cat([x for x, _ in result]).flatten(1).sum(1).sort().values


def test_mixed_batches_hold_the_same_examples_in_every_order_and_all_tasks_in_each() -> None:
    item, other = batches([0, 1, 2], mixed=True), batches([2, 0, 1], mixed=True)
    assert len(item) == len(other)
    torch.testing.assert_close(pictures(item), pictures(other))
    for _, owners in item + other:
        assert set(owners.tolist()) == {0, 1, 2}


def test_unmixed_batches_belong_to_one_task_and_tasks_take_turns() -> None:
    result = batches([2, 0, 1], mixed=False)
    assert all(len(set(owners.tolist())) == 1 for _, owners in result)
    assert [int(owners[0]) for _, owners in result] == [2, 0, 1] * 3
    assert sum(len(owners) for _, owners in result) == 48 + 48 + 49
    torch.testing.assert_close(pictures(result), pictures(batches([0, 1, 2], mixed=True)))


def test_turns_go_on_when_a_task_has_no_more() -> None:
    parts = [InMemory(torch.zeros(n, 1), torch.full((n,), i)) for i, n in enumerate((2, 6, 4))]
    turns = Turns(tuple(parts))
    assert [int(y[0]) for _, y in turns.batches(2, None)] == [0, 1, 2, 1, 2, 1]
    assert (turns.examples, turns.steps(2)) == (12, 6)
    assert turns.identity() != Turns(tuple(parts[::-1])).identity()


def test_dropping_the_last_batch_holds_for_every_task() -> None:
    method = Joint(tiny_context(recipe=replace(TINY, drop_last=True, batch=10)))
    method.waiting = tiny_tasks()
    method.classes = [task.classes for task in method.waiting]
    data = method._data(TinyNet(3))
    assert {len(y) for _, y in data.batches(10, torch.Generator().manual_seed(0))} == {10}
    assert data.steps(10) == 12
    method.context = tiny_context(recipe=replace(TINY, drop_last=True, batch=49))
    with pytest.raises(SettingError, match="leaves no batch of 48 examples"):
        method._data(TinyNet(3))


def test_joint_learning_refuses_tasks_that_change_their_images_differently() -> None:
    tasks = tiny_tasks()
    method = Joint(tiny_context())
    method.learn(tasks[0])
    with pytest.raises(TaskError, match="'tiny-1' and 'tiny-0' differ in `augment`"):
        method.learn(replace(tasks[1], augment=lambda x, generator: x))
