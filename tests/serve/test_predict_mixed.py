"""`Learner.predict` with a task per row."""

import pytest
import torch

from halrp import Halrp, Learner
from halrp.errors import DataError, UnknownTaskError
from tests.helpers import FAST, net, tiny_task


def learned(kind: str, classes: tuple[int, ...] = (3, 5, 2)) -> Learner:
    learner = Learner(net(kind), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    for number, width in enumerate(classes):
        task = tiny_task(kind, seed=number, classes=width)
        learner.learn(f"task {number}", task, val=task, classes=width)
    return learner


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "gru"])
def test_rows_of_different_tasks_get_the_logits_of_their_own_task(kind: str) -> None:
    learner = learned(kind)
    x, _ = tiny_task(kind, seed=9)
    names = [*learner.tasks, None]
    rows = [names[i % len(names)] for i in range(len(x))]
    logits = learner.predict(x, task=rows)
    assert logits.shape == (len(x), 5)
    for name in names:
        index = torch.tensor([i for i, row in enumerate(rows) if row == name])
        alone = learner.predict(x[index], task=name)
        torch.testing.assert_close(logits[index, : alone.shape[1]], alone, rtol=1e-5, atol=1e-5)
        assert torch.equal(logits[index].argmax(1), alone.argmax(1))
        assert bool((logits[index, alone.shape[1] :] == -torch.inf).all())


def test_the_result_is_as_wide_as_the_widest_task_in_the_batch_in_every_chunk() -> None:
    learner = learned("conv")
    x, _ = tiny_task("conv", seed=9)
    assert learner.predict(x, task=["task 2"] * len(x)).shape == (len(x), 2)
    rows = ["task 2"] * (len(x) - 1) + ["task 1"]
    assert learner.predict(x, task=rows, batch=4).shape == (len(x), 5)


def test_tasks_learned_later_can_be_mixed_in() -> None:
    learner = learned("conv")
    x, _ = tiny_task("conv", seed=9)
    before = learner.predict(x[:2], task=["task 0", "task 1"])
    learner.learn("later", tiny_task("conv", seed=7), classes=3)
    torch.testing.assert_close(learner.predict(x[:2], task=["task 0", "task 1"]), before)
    assert learner.predict(x[:2], task=["later", None]).shape == (2, 3)


def test_unknown_tasks_and_wrong_numbers_of_tasks_are_refused() -> None:
    learner = learned("conv")
    x, _ = tiny_task("conv", seed=9)
    with pytest.raises(UnknownTaskError, match="no task named 'cars'"):
        learner.predict(x[:2], task=["task 0", "cars"])
    with pytest.raises(DataError, match="3 tasks for 2 rows"):
        learner.predict(x[:2], task=["task 0"] * 3)
